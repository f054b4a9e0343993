"""Every type a field can have, through create, read, update, list and delete."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

import httpx
import pytest
from pydantic import BaseModel

from maniflex import Context, Model, Next, Server, field
from maniflex.testing import FakeClock, client
from tests.kit.http import created, data_of, error_of, offenders, serving, total


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Size:
    width: int
    height: float


class Address(BaseModel):
    street: str
    since: date


class Thing(Model):
    text: str
    whole: int
    ratio: float
    flag: bool
    amount: Decimal
    moment: datetime
    day: date
    clock: time
    token: UUID
    blob: bytes
    kind: Literal["a", "b"]
    colour: Colour
    extra: dict[str, Any]
    tags: list[str]
    size: Size
    address: Address


class Maybe(Model):
    text: str | None
    whole: int | None
    ratio: float | None
    flag: bool | None
    amount: Decimal | None
    moment: datetime | None
    day: date | None
    clock: time | None
    token: UUID | None
    blob: bytes | None
    kind: Literal["a", "b"] | None
    colour: Colour | None
    extra: dict[str, Any] | None
    tags: list[str] | None
    size: Size | None
    address: Address | None


FULL: dict[str, Any] = {
    "text": 'quoted "text", back\\slash, tab\t, ünï, 🙂, \x7f\x1f</script>',
    "whole": -(2**63),
    "ratio": 0.1,
    "flag": True,
    "amount": "12345678901234567890.1234567890",
    "moment": "2026-03-01T12:30:45.123456Z",
    "day": "2026-02-28",
    "clock": "23:59:59.000001",
    "token": "0190b3a8-7c2e-7d11-8f3a-0123456789ab",
    "blob": "AP8QgA==",
    "kind": "b",
    "colour": "blue",
    "extra": {"z": 1, "a": [1.0, 1e21, 1e-9, None, True, {"deep": "ü\u2028"}], "m": 123456789012345680.0},
    "tags": ["x", "", "y"],
    "size": {"width": 3, "height": 2.5},
    "address": {"street": "Main", "since": "2020-01-01"},
}
OTHER: dict[str, Any] = {
    "text": "",
    "whole": 2**63 - 1,
    "ratio": -1e-300,
    "flag": False,
    "amount": "0.00",
    "moment": "1970-01-01T00:00:00Z",
    "day": "0001-01-01",
    "clock": "00:00:00",
    "token": "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "blob": "",
    "kind": "a",
    "colour": "red",
    "extra": {},
    "tags": [],
    "size": {"width": 0, "height": 0.0},
    "address": {"street": "", "since": "1999-12-31"},
}
NOTHING = dict.fromkeys(FULL)


def sent_part(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in FULL}


@pytest.mark.parametrize("model", [Thing, Maybe])
async def test_every_type_comes_back_as_it_was_sent(database_url: str, model: type[Model]) -> None:
    path = f"/api/{'things' if model is Thing else 'maybes'}"
    async with serving(database_url, model) as http:
        record = await created(http, path, **FULL)
        assert sent_part(record) == FULL
        one = f"{path}/{record['id']}"
        assert data_of(await http.get(one)) == record

        changed = data_of(await http.patch(one, json=OTHER))
        assert sent_part(changed) == OTHER
        assert data_of(await http.get(one)) == changed
        assert data_of(await http.get(path)) == [changed]

        assert (await http.delete(one)).status_code == 204
        assert (await http.get(one)).status_code == 404
        assert await total(http, path) == 0


@pytest.mark.parametrize("name", FULL)
async def test_one_changed_field_leaves_the_others_alone(sqlite_url: str, name: str) -> None:
    async with serving(sqlite_url, Thing) as http:
        record = await created(http, "/api/things", **FULL)
        changed = data_of(await http.patch(f"/api/things/{record['id']}", json={name: OTHER[name]}))
        assert sent_part(changed) == {**FULL, name: OTHER[name]}


async def test_every_nullable_type_takes_null_and_gives_it_up_again(database_url: str) -> None:
    async with serving(database_url, Maybe) as http:
        empty = await created(http, "/api/maybes")
        assert sent_part(empty) == NOTHING
        one = f"/api/maybes/{empty['id']}"
        assert sent_part(data_of(await http.patch(one, json=FULL))) == FULL
        assert sent_part(data_of(await http.patch(one, json=NOTHING))) == NOTHING
        assert sent_part(data_of(await http.get(one))) == NOTHING


async def test_null_is_refused_for_every_type_that_is_not_nullable(database_url: str) -> None:
    async with serving(database_url, Thing) as http:
        assert offenders(await http.post("/api/things", json=NOTHING)) == dict.fromkeys(FULL, "not_null")
        record = await created(http, "/api/things", **FULL)
        one = f"/api/things/{record['id']}"
        assert offenders(await http.patch(one, json=NOTHING)) == dict.fromkeys(FULL, "not_null")
        assert data_of(await http.get(one)) == record


async def test_all_required_fields_are_missed_at_once(database_url: str) -> None:
    async with serving(database_url, Thing) as http:
        assert offenders(await http.post("/api/things", json={})) == dict.fromkeys(FULL, "required")


WRONG: dict[str, list[Any]] = {
    "text": [1, True, ["x"], {}],
    "whole": ["1", 1.5, True, 2**63, -(2**63) - 1, 10**300],
    "ratio": ["0.1", True, []],
    "flag": [1, 0, "true"],
    "amount": ["NaN", "Infinity", "1,5", "", True, "1" * 1001, "1e1000"],
    "moment": [
        "yesterday",
        "2026-13-01T00:00:00Z",
        "2026-01-01",
        1767225600,
        "2026-01-01T00:00:00.1234567Z",
        "0001-01-01T00:00:00+01:00",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
    ],
    "day": ["2026-02-30", "2026-02-28T00:00:00Z", 20260228, "26-02-28"],
    "clock": ["24:00:00", "12:00:00Z", "12:00:00+01:00", "noon"],
    "token": ["not-a-uuid", 5, ""],
    "blob": ["***", 5, "AP8"],
    "kind": ["c", "A", 1],
    "colour": ["green", "RED", 1],
    "extra": [[], "x", 1],
    "tags": [{}, "x", [1]],
    "size": [{"width": "3", "height": 1.0}, {"width": 3}, [], 5],
    "address": [{"street": "x"}, {"street": 1, "since": "2020-01-01"}, "x"],
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_value_of_the_wrong_type_names_its_field_and_stores_nothing(
    database_url: str, name: str
) -> None:
    async with serving(database_url, Thing) as http:
        for value in WRONG[name]:
            refused = offenders(await http.post("/api/things", json={**FULL, name: value}))
            assert {field.partition(".")[0] for field in refused} == {name}, value
        assert await total(http, "/api/things") == 0


class Ratio(Model, optimistic_lock=True):
    value: float


@pytest.mark.parametrize("sent", ["0", "0.0", "-0.0", "2", "2.0", "-3.0", "1e15", "1e16", "1e300", "5e-324"])
async def test_a_float_reads_the_same_whether_it_was_created_updated_or_found(
    database_url: str, sent: str
) -> None:
    text = b'"value":%b,' % str(float(sent) + 0.0).replace("+", "").encode()
    async with serving(database_url, Ratio) as http:
        made = await http.post("/api/ratios", content=b'{"value": %b}' % sent.encode())
        one = f"/api/ratios/{data_of(made, 201)['id']}"
        found = await http.get(one)
        assert text in made.content
        assert (found.content, found.headers["etag"]) == (made.content, made.headers["etag"])
        changed = await http.patch(one, content=b'{"value": %b}' % sent.encode())
        assert text in changed.content
        assert (await http.get(one)).headers["etag"] == changed.headers["etag"]


class Event(Model):
    at: datetime = field(filterable=True)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z"),
        ("2026-03-01T12:00:00", "2026-03-01T12:00:00Z"),
        ("2026-03-01 12:00", "2026-03-01T12:00:00Z"),
        ("2026-03-01T12:00:00+02:00", "2026-03-01T10:00:00Z"),
        ("2026-03-01T00:30:00-05:30", "2026-03-01T06:00:00Z"),
        ("2026-03-01T12:00:00.5Z", "2026-03-01T12:00:00.500000Z"),
        ("2026-03-01T12:00:00.000001Z", "2026-03-01T12:00:00.000001Z"),
        ("9999-12-31T23:59:59.999998Z", "9999-12-31T23:59:59.999998Z"),
        ("0001-01-01T00:00:00.000001Z", "0001-01-01T00:00:00.000001Z"),
    ],
)
async def test_instants_become_utc_and_keep_their_microseconds(
    database_url: str, sent: str, stored: str
) -> None:
    async with serving(database_url, Event) as http:
        record = await created(http, "/api/events", at=sent)
        assert record["at"] == stored
        assert data_of(await http.get(f"/api/events/{record['id']}"))["at"] == stored


class Price(Model):
    amount: Decimal
    note: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (b'"1.50"', "1.50"),
        (b"1.50", "1.50"),
        (b"0.1", "0.1"),
        (b"7", "7"),
        (b'"-0.0"', "0.0"),
        (b"123456789012345678.12345678901234567890", "123456789012345678.12345678901234567890"),
        (b'"1e3"', "1000"),
        (b'"0.0000000001"', "1E-10"),
    ],
)
async def test_decimals_keep_every_digit_however_they_are_written(
    database_url: str, sent: bytes, stored: str
) -> None:
    async with serving(database_url, Price) as http:
        body = b'{"amount":%b,"note":{"ratio":0.25}}' % sent
        record = data_of(await http.post("/api/prices", content=body), 201)
        assert (record["amount"], record["note"]) == (stored, {"ratio": 0.25})
        assert data_of(await http.get(f"/api/prices/{record['id']}")) == record


async def answers(http: httpx.AsyncClient) -> list[bytes]:
    """The bodies of one walk through the API, with ids replaced by their order."""
    bodies, ids = [], []
    for body in (FULL, OTHER):
        response = await http.post("/api/things", json=body)
        ids.append(data_of(response, 201)["id"])
        bodies.append(response.content)
    bodies.append((await http.post("/api/maybes", json={})).content)
    ids.append(data_of(await http.get("/api/maybes"))[0]["id"])
    paths = (f"/api/things/{ids[0]}", "/api/things", "/api/things?limit=1&page=2", "/api/maybes")
    bodies += [(await http.get(path)).content for path in paths]
    bodies.append((await http.patch(f"/api/things/{ids[1]}", json=FULL)).content)
    bodies.append((await http.patch(f"/api/things/{ids[1]}", json={})).content)
    bodies.append((await http.post("/api/things", json={"whole": "x", "kind": "c"})).content)
    for number, record_id in enumerate(ids):
        bodies = [body.replace(record_id.encode(), b"id-%d" % number) for body in bodies]
    return bodies


async def look(ctx: Context, next: Next) -> None:
    await next()
    if ctx.result is not None:
        ctx.state["seen"] = ctx.result


async def look_late(ctx: Context, next: Next) -> None:
    ctx.state["seen"] = ctx.result
    await next()


def a_server(watched: bool = False) -> Server:
    server = Server(clock=FakeClock())
    server.register(Thing, Maybe)
    if watched:
        server.pipeline.service.register(look)
        server.pipeline.response.register(look_late)
    return server


async def test_both_databases_answer_byte_for_byte_the_same(sqlite_url: str, postgres_url: str) -> None:
    async with client(a_server(), database=sqlite_url) as http:
        on_sqlite = await answers(http)
    async with client(a_server(), database=postgres_url) as http:
        assert await answers(http) == on_sqlite


async def test_middleware_that_looks_at_the_result_does_not_change_a_byte(
    database_url: str, sqlite_url: str
) -> None:
    async with client(a_server(), database=database_url) as http:
        unseen = await answers(http)
    async with client(a_server(watched=True), database=":memory:") as http:
        assert await answers(http) == unseen


async def test_a_stored_record_is_read_back_with_the_same_bytes_by_a_watched_server(
    database_url: str,
) -> None:
    async with client(a_server(), database=database_url) as http:
        record = await created(http, "/api/things", **FULL)
        paths = [f"/api/things/{record['id']}", "/api/things"]
        unseen = [(await http.get(path)).content for path in paths]
    async with client(a_server(watched=True), database=database_url) as http:
        assert [(await http.get(path)).content for path in paths] == unseen


class Box(Model):
    held: dict[str, Any]


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**30])
async def test_an_integer_beyond_64_bits_inside_a_json_column_is_refused_or_kept_exactly(
    database_url: str, number: int
) -> None:
    async with serving(database_url, Box) as http:
        response = await http.post("/api/boxes", json={"held": {"n": number}})
        assert response.status_code in (201, 400, 422), response.text
        if response.status_code == 201:
            stored = await http.get(f"/api/boxes/{response.json()['data']['id']}")
            assert stored.json()["data"]["held"] == {"n": number}


async def test_deep_json_is_refused_before_it_is_stored(database_url: str) -> None:
    deep = b'{"held":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}"
    async with serving(database_url, Box) as http:
        error_of(await http.post("/api/boxes", content=deep), 400, "INVALID_JSON")
        assert await total(http, "/api/boxes") == 0
