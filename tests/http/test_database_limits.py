"""What one database refuses and the other would take is one limit, with one answer on both."""

from __future__ import annotations

import string
from decimal import Decimal
from random import Random
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest

from maniflex import Index, Model, Server, field
from maniflex.errors import ConstraintViolation, ValidationFailed
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, offenders, serving
from tests.kit.schema import model, raw
from tests.kit.servers import started


def noise(size: int) -> str:
    """Text that nothing makes smaller."""
    return "".join(Random(size).choices(string.ascii_letters + string.digits, k=size))


class Team(Model):
    name: str = ""


class Member(Model, indices=[Index(("first", "last"))], cursor_field="rank", soft_delete=True, restore=True):
    email: str | None = field(default=None, unique=True)
    phone: str | None = field(default=None, unique="team_id")
    nick: str | None = field(default=None, index=True)
    first: str | None = None
    last: str | None = None
    rank: str = field(default="", sortable=True)
    token: bytes | None = field(default=None, index=True)
    secret: str | None = field(default=None, index=True, hidden=True)
    bio: str = ""
    team_id: str | None = None


LONGEST = {"email": 2600, "nick": 2600, "phone": 2345, "rank": 2345, "first": 1300, "last": 1300}


async def test_an_indexed_text_has_one_longest_form_and_its_field_is_named(database_url: str) -> None:
    async with serving(database_url, Team, Member) as http:
        team = await created(http, "/api/teams")
        member = await created(http, "/api/members", team_id=team["id"], bio=noise(10_000))
        one = f"/api/members/{member['id']}"
        for name, most in LONGEST.items():
            for text in (noise(10_000), noise(most + 1), "x" * (most + 1), "é" * (most // 2 + 1)):
                for answer in (
                    await http.post("/api/members", json={name: text}),
                    await http.patch(one, json={name: text}),
                ):
                    assert offenders(answer) == {name: "index_length"}, name
        fitting = {name: noise(most) for name, most in LONGEST.items()}
        await created(http, "/api/members", **fitting, team_id=team["id"])
        changed = {name: text[::-1] for name, text in fitting.items()}
        assert data_of(await http.patch(one, json=changed))["nick"] == changed["nick"]
        both = await http.patch(one, json={"email": noise(3000), "nick": noise(3000), "bio": noise(3000)})
        assert offenders(both) == {"email": "index_length", "nick": "index_length"}


async def test_code_gets_the_same_answer_for_ids_and_bytes(database_url: str) -> None:
    server = Server()
    server.register(Team, Member)
    async with client(server, database=database_url):
        wrong: list[dict[str, Any]] = [
            {"id": noise(3000)},
            {"id": noise(300)},  # it shares an index with another text
            {"token": bytes(3000)},
            {"nick": noise(2601)},
        ]
        for values in wrong:
            with pytest.raises(ValidationFailed) as refused:
                await server.db(Member).create(**values)
            [detail] = cast(list[dict[str, str]], refused.value.details)
            assert detail["field"] in values
        with pytest.raises(ValidationFailed) as hidden:
            await server.db(Member).create(secret=noise(2601))
        assert hidden.value.details is None
        await server.db(Team).create(id=noise(2600))


DIGITS = [
    ("1" * 1000, 200),
    ("1" * 1001, 400),
    ("1" * 1500, 400),
    ("0." + "1" * 999, 200),
    ("0." + "1" * 1000, 400),
    ("1e999", 200),
    ("1e-999", 200),
    ("1.5e-999", 400),
]


class Amount(Model, aggregate=True):
    value: Decimal = field(filterable=True)


async def test_a_decimal_to_compare_with_has_at_most_a_thousand_digits(database_url: str) -> None:
    async with serving(database_url, Amount) as http:
        for value in ("1", "9" * 1000, "9" * 1000):
            await created(http, "/api/amounts", value=value)

        async def asked(digits: str) -> list[httpx.Response]:
            specs = []
            for value in (digits, f'"{digits}"'):
                total = '"select": [{"op": "sum", "field": "value", "as": "total"}]'
                specs += [
                    f'{{{total}, "where": [{{"field": "value", "operator": "lt", "value": {value}}}]}}',
                    f'{{{total}, "having": [{{"alias": "total", "operator": "gt", "value": {value}}}]}}',
                ]
            urls = [f"/api/amounts/aggregate?aggregate={quote(spec)}" for spec in specs]
            return [await http.get(url) for url in (*urls, f"/api/amounts?filter=value:lt:{digits}")]

        for digits, status in DIGITS:
            for answer in await asked(digits):
                assert answer.status_code == status, (digits[:20], len(digits), answer.text[:200])
                if status == 400:
                    assert "at most 1000 digits" in error_of(answer, 400, "INVALID_QUERY")["message"]


async def test_a_column_that_may_not_be_null_any_more_gives_one_answer(database_url: str) -> None:
    strict = model("Thing", "things", {"name": str, "secret": str, "gone": str})
    async with started(database_url, strict):
        pass
    loose = model(
        "Thing",
        "things",
        {
            "name": (str | None, field(default="n")),
            "secret": (str | None, field(default="s", hidden=True)),
            "gone": (str | None, field(default="g")),
        },
    )
    server = Server()
    server.register(loose)
    async with client(server, database=database_url) as http:
        error = error_of(await http.post("/api/things", json={"name": None}), 409, "CONFLICT")
        assert error == {
            "code": "CONFLICT",
            "message": "a value that is required is missing",
            "details": [{"field": "name", "message": "a value that is required is missing"}],
        }
        with pytest.raises(ConstraintViolation, match="a value that is required is missing") as refused:
            await server.db(loose).create({"name": "x", "secret": None})
        assert refused.value.details is None


async def test_a_rule_somebody_else_gave_the_table_gives_one_answer(database_url: str) -> None:
    await raw(
        database_url,
        "CREATE TABLE things (id TEXT PRIMARY KEY, name TEXT NOT NULL CHECK (name <> 'no'),"
        " created_at TEXT, updated_at TEXT)"
        if database_url.startswith("sqlite")
        else "CREATE TABLE things (id TEXT PRIMARY KEY, name TEXT NOT NULL CHECK (name <> 'no'),"
        " created_at TIMESTAMPTZ, updated_at TIMESTAMPTZ)",
    )
    async with serving(database_url, model("Thing", "things", {"name": str})) as http:
        await created(http, "/api/things", name="yes")
        error = error_of(await http.post("/api/things", json={"name": "no"}), 409, "CONFLICT")
        assert error == {"code": "CONFLICT", "message": "a value breaks a rule of the table"}
