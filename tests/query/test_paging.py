"""Pages are the whole and nothing twice: offset and keyset, both ways, while rows come and go."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from maniflex import Context, Model, Next, Operation, Server, field
from maniflex.testing import client
from tests.kit.http import data_of, error_of


def open_field(**options: Any) -> Any:
    return field(filterable=True, sortable=True, **options)


class Event(Model, cursor_field="at"):
    at: datetime = open_field()
    label: str | None = open_field(default=None)
    size: int | None = open_field(default=None)


class Price(Model, cursor_field="amount"):
    amount: Decimal = open_field()
    name: str = open_field(default="x")


class Word(Model, cursor_field="text"):
    text: str = open_field()


class Ratio(Model, cursor_field="value"):
    value: float = open_field()


MODELS = (Event, Price, Word, Ratio)
START = datetime(2026, 1, 1, tzinfo=UTC)


def made(random: Random, model: type[Model], number: int) -> dict[str, Any]:
    """A row with a value that many share."""
    record_id = f"{random.randrange(10**6):06}-{number}"
    match model.__name__:
        case "Event":
            at = START + timedelta(microseconds=random.randint(0, 8))
            label = random.choice([None, "", "a", "A", "ä"])
            return {"id": record_id, "at": at, "label": label, "size": random.choice([None, 1, 2])}
        case "Price":
            return {
                "id": record_id,
                "amount": random.choice([Decimal(1), Decimal("1.0"), Decimal(9), Decimal(10)]),
            }
        case "Word":
            return {"id": record_id, "text": random.choice(["", "a", "b", "Ä", "\U0001f600", "x y+z/&%"])}
        case _:
            return {"id": record_id, "value": random.choice([0.1, 1.0, -1e300, 5e-324])}


async def filled(server: Server, model: type[Model], random: Random, count: int) -> list[str]:
    rows = [made(random, model, n) for n in range(count)]
    async with server.transaction():
        for row in rows:
            await server.db(model).create(row)
    return [row["id"] for row in rows]


def started(*models: type[Model]) -> Server:
    server = Server()
    server.register(*(models or MODELS))
    return server


def path_of(model: type[Model]) -> str:
    return {"Event": "/api/events", "Price": "/api/prices", "Word": "/api/words", "Ratio": "/api/ratios"}[
        model.__name__
    ]


SORTS = [
    "",
    "label",
    "label:desc",
    "size:desc,label",
    "label,size:desc,at",
    "at:desc,label:desc",
    "size,id:desc",
]


@pytest.mark.parametrize("seed", range(4))
async def test_offset_pages_put_together_are_the_list_and_no_row_comes_twice(
    database_url: str, seed: int
) -> None:
    random = Random(seed)
    server = started(Event)
    async with client(server, database=database_url) as http:
        ids = await filled(server, Event, random, 57)
        for sort in SORTS:
            whole = [
                row["id"]
                for row in data_of(
                    await http.get(f"/api/events?limit=200&sort={sort}" if sort else "/api/events?limit=200")
                )
            ]
            assert sorted(whole) == sorted(ids)
            limit = random.choice([1, 4, 10, 56, 57])
            pages = []
            for page in range(1, -(-57 // limit) + 1):
                query = f"page={page}&limit={limit}" + (f"&sort={sort}" if sort else "")
                pages += [row["id"] for row in data_of(await http.get(f"/api/events?{query}"))]
            assert pages == whole, (sort, limit)


async def page_at(http: httpx.AsyncClient, path: str, query: str, token: str) -> dict[str, Any]:
    answer = await http.get(f"{path}?cursor={quote(token)}&{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("direction", ["asc", "desc"])
async def test_a_keyset_walk_there_and_back_meets_every_row_once(
    database_url: str, model: type[Model], direction: str
) -> None:
    random = Random(1)
    server = started()
    name = model.__options__.cursor_field
    async with client(server, database=database_url) as http:
        ids = await filled(server, model, random, 41)
        for limit in (1, 4, 40, 41, 50):
            query = f"limit={limit}&sort={name}:{direction}"
            there, tokens = await walked(http, path_of(model), query, "next_cursor")
            assert sorted(there) == sorted(ids), limit
            ordered = [
                r["id"]
                for r in data_of(
                    await http.get(f"{path_of(model)}?limit=200&sort={name}:{direction},id:{direction}")
                )
            ]
            assert there == ordered
            if tokens:
                last = await page_at(http, path_of(model), query, tokens[-1])
                back = [row["id"] for row in last["data"]]
                while "prev_cursor" in last["meta"]:
                    last = await page_at(http, path_of(model), query, last["meta"]["prev_cursor"])
                    back = [row["id"] for row in last["data"]] + back
                    assert last["meta"]["has_more"] is True
                assert back == there, limit


async def walked(http: httpx.AsyncClient, path: str, query: str, word: str) -> tuple[list[str], list[str]]:
    ids: list[str] = []
    tokens: list[str] = []
    token = ""
    while True:
        page = await page_at(http, path, query, token)
        ids += [row["id"] for row in page["data"]]
        assert page["meta"]["has_more"] is (word in page["meta"])
        assert "total" not in page["meta"]
        if word not in page["meta"]:
            return ids, tokens
        token = page["meta"][word]
        tokens.append(token)


@pytest.mark.parametrize("seed", range(6))
async def test_rows_that_come_and_go_during_a_walk_disturb_no_other(database_url: str, seed: int) -> None:
    random = Random(seed)
    server = started(Event)
    direction = random.choice(["asc", "desc"])
    query = f"limit={random.choice([2, 5])}&sort=at:{direction}"
    async with client(server, database=database_url) as http:
        stayed = set(await filled(server, Event, random, 40))
        seen: list[str] = []
        came: set[str] = set()
        token, turns = "", 0
        while turns < 200:
            turns += 1
            page = await page_at(http, "/api/events", query, token)
            seen += [row["id"] for row in page["data"]]
            if not page["meta"]["has_more"]:
                break
            token = page["meta"]["next_cursor"]
            if turns < 30:
                gone = random.sample(sorted(stayed), 1)
                if random.random() < 0.5:  # also the very row the token was made from
                    gone.append(seen[-1])
                for record_id in {*gone} & stayed:
                    await server.db(Event).delete(record_id)
                    stayed.discard(record_id)
                row = made(random, Event, 1000 + turns)
                await server.db(Event).create(row)
                came.add(row["id"])
        assert turns < 200
        assert len(seen) == len(set(seen))
        assert stayed <= set(seen)


async def test_a_walk_backwards_past_deleted_rows_ends_without_a_way_on(database_url: str) -> None:
    server = started(Event)
    async with client(server, database=database_url) as http:
        ids = await filled(server, Event, Random(3), 6)
        first = await page_at(http, "/api/events", "limit=3", "")
        second = await page_at(http, "/api/events", "limit=3", first["meta"]["next_cursor"])
        assert {r["id"] for p in (first, second) for r in p["data"]} == set(ids)
        for row in first["data"]:
            await server.db(Event).delete(row["id"])
        empty = await page_at(http, "/api/events", "limit=3", second["meta"]["prev_cursor"])
        assert empty == {"data": [], "meta": {"limit": 3, "has_more": False}}


async def test_a_walk_goes_on_under_filters_that_middleware_adds(database_url: str) -> None:
    server = started(Event)

    @server.pipeline.service.middleware(operations=[Operation.LIST])
    async def labelled(ctx: Context, next: Next) -> None:
        ctx.query.add_filter("label", "a")
        await next()

    async with client(server, database=database_url) as http:
        await filled(server, Event, Random(4), 60)
        ids, tokens = await walked(http, "/api/events", "limit=2", "next_cursor")
        assert len(tokens) > 2
        assert len(ids) == await server.db(Event).count({"label": "a"})


async def test_a_walk_can_select_include_nothing_and_filter(database_url: str) -> None:
    server = started(Event)
    async with client(server, database=database_url) as http:
        await filled(server, Event, Random(5), 30)
        page = await page_at(http, "/api/events", "limit=1&select=label&filter=size:eq:1", "")
        assert set(page["data"][0]) == {"label"}
        assert (
            await http.get(
                f"/api/events?limit=1&select=size&filter=size:eq:1&cursor={page['meta']['next_cursor']}"
            )
        ).status_code == 200


async def test_a_token_is_good_for_its_own_walk_alone(database_url: str) -> None:
    server = started()
    async with client(server, database=database_url) as http:
        for model in MODELS:
            await filled(server, model, Random(6), 5)
        token = (await page_at(http, "/api/events", "limit=2", ""))["meta"]["next_cursor"]
        for url in (
            f"/api/prices?cursor={token}",
            f"/api/events?cursor={token}&sort=at:desc",
            f"/api/events?cursor={token}&filter=size:eq:1",
            f"/api/events?cursor={token}&filter[0]=size:eq:1",
        ):
            assert "not made for this list" in error_of(await http.get(url), 400, "INVALID_QUERY")["message"]
        for url in (
            f"/api/events?cursor={token}&page=2",
            f"/api/events?cursor={token}&sort=label",
            "/api/events?cursor=&sort=at,label",
            "/api/events?cursor=&sort=id",
        ):
            error_of(await http.get(url), 400, "INVALID_QUERY")
        assert (await http.get(f"/api/events?cursor={token}&limit=1")).status_code == 200


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


async def test_a_token_that_was_tampered_with_is_400(database_url: str) -> None:
    server = started()
    async with client(server, database=database_url) as http:
        await filled(server, Event, Random(7), 5)
        await filled(server, Word, Random(7), 5)
        for path in ("/api/events", "/api/words"):
            token = (await page_at(http, path, "limit=2", ""))["meta"]["next_cursor"]
            version, walk, value, record_id, backwards = json.loads(
                base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            )
            for wrong in (
                "x", "é", "=", "%00", "null", token[:-3], token + "AAAA",
                encoded([]), encoded({}), encoded("x"),
                encoded([version + 1, walk, value, record_id, backwards]),
                encoded([version, walk + "0", value, record_id, backwards]),
                encoded([version, walk, 5, record_id, backwards]),
                encoded([version, walk, value, None, backwards]),
                encoded([version, walk, value, "\x00", backwards]),
                encoded([version, walk, "\x00", record_id, backwards]),
                encoded([version, walk, value, "\ud800", backwards]),
                encoded([version, walk, value, record_id, "yes"]),
            ):  # fmt: skip
                error_of(await http.get(f"{path}?cursor={quote(wrong)}"), 400, "INVALID_QUERY")
        error_of(
            await http.get(f"/api/events?cursor={encoded([1, 'x', 'not a date', 'x', False])}"),
            400,
            "INVALID_QUERY",
        )


async def test_lists_without_a_cursor_field_have_no_walk(sqlite_url: str) -> None:
    class Plain(Model):
        name: str = open_field()

    server = started(Plain)
    async with client(server, database=sqlite_url) as http:
        for token in ("", "x"):
            error = error_of(await http.get(f"/api/plains?cursor={token}"), 400, "INVALID_QUERY")
            assert error["message"] == "cursor: not available on these records"
