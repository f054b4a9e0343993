"""The SQL that messages advise is SQL that works, with the database's own tools, on both databases."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from maniflex import field
from maniflex.errors import ConstraintViolation, DeclarationError
from tests.migrate.schema import indexes, kind, model, started, warnings

ANEW = "start once with auto_migrate=True afterwards"


async def run(url: str, advised: str) -> list[Any]:
    """What a person does who copies the statements into a shell; the rows of the last of them."""
    if kind(url) == "postgres":
        connection = await asyncpg.connect(url)
        try:
            rows: list[Any] = []
            for statement in advised.split("; "):
                rows = await connection.fetch(statement)
            return rows
        finally:
            await connection.close()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as shell, shell:
        for statement in advised.split("; "):
            rows = shell.execute(statement).fetchall()
        return rows


async def refused(url: str, *models: Any, **settings: Any) -> str:
    with pytest.raises(DeclarationError) as stopped:
        async with started(url, *models, **settings):
            raise AssertionError("it must not start")
    [problem] = stopped.value.problems
    return problem


def statements(problem: str) -> str:
    return problem.rpartition("migration: ")[2]


DERIVED: dict[str, Any] = {
    "plain": str,
    "with an order key": Decimal,
    "unique": (str, field(unique=True)),
    "searched": (str, field(searchable=True)),
}


@pytest.mark.parametrize("auto_migrate", [True, False])
@pytest.mark.parametrize("given", DERIVED)
async def test_a_field_that_may_be_null_now_comes_with_statements_that_allow_it(
    given: str, auto_migrate: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {"price": Decimal, "body": (str, field(searchable=True)), "code": (str, field(unique=True))}
    annotation = Decimal if given == "with an order key" else str
    before = model("Thing", "things", {**kept, "value": DERIVED[given]})
    loose = {"unique": field(unique=True, default=None), "searched": field(searchable=True, default=None)}
    after = model("Thing", "things", {**kept, "value": (annotation | None, loose.get(given))})
    row = {"price": Decimal(9), "body": "word", "code": "c"}
    async with started(database_url, before) as server:
        old = await server.db(before).create(**row, value="10")
    made = await indexes(database_url, "things")

    problem = await refused(database_url, after, auto_migrate=auto_migrate)
    derived = kind(database_url) == "sqlite" and given != "plain"
    assert (ANEW in problem) is (derived and not auto_migrate)
    await run(database_url, statements(problem))

    caplog.clear()
    async with started(database_url, after) as server:
        await server.db(after).create(price=Decimal(10), body="word", code="d")
        read: Any = await server.db(after).read(old.id)
        found: Any = await server.db(after).list([("price", "gt", 9)])
    assert str(read.value) == "10"
    assert [thing.code for thing in found] == ["d"]
    assert (await indexes(database_url, "things")).keys() == made.keys()
    assert warnings(caplog) == []


async def test_a_dropped_field_that_search_needs_says_what_brings_search_back(database_url: str) -> None:
    words = field(searchable=True)
    before = model("Thing", "things", {"title": (str, words), "body": (str, words)})
    after = model("Thing", "things", {"title": (str, words)})
    async with started(database_url, before) as server:
        await server.db(before).create(title="one", body="two")

    assert ANEW not in await refused(database_url, after)
    problem = await refused(database_url, after, auto_migrate=False)
    assert ANEW in problem
    await run(database_url, statements(problem))

    async with started(database_url, after):
        pass
    async with started(database_url, after, auto_migrate=False) as server:
        await server.db(after).create(title="three")
        answer = await server.execute("list", after, query={"q": "three"})
    assert [thing["title"] for thing in answer.data] == ["three"]


async def test_a_missing_column_stops_a_start_that_does_not_migrate(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = model("Thing", "things", {"name": str, "price": Decimal})
    after = model("Thing", "things", {"name": str, "price": Decimal, "owner": (str | None, None)})
    async with started(database_url, before) as server:
        await server.db(before).create(name="n", price=1)

    problem = await refused(database_url, after, auto_migrate=False)
    assert problem.startswith("Thing.owner: the table 'things' has no column 'owner', so every request")
    assert "start once with auto_migrate=True" in problem
    await run(database_url, statements(problem))

    caplog.clear()
    async with started(database_url, after, auto_migrate=False) as server:
        await server.db(after).create(name="m", price=2, owner="ada")
        assert await server.db(after).count() == 2
    assert warnings(caplog) == []


@pytest.mark.parametrize("auto_migrate", [True, False])
async def test_a_new_field_is_never_taken_for_a_column_the_framework_derived(
    auto_migrate: bool, database_url: str
) -> None:
    before = model("Thing", "things", {"price": Decimal, "body": (str, field(searchable=True))})
    after = model("Thing", "things", {"price": Decimal, "body": (str, field(searchable=True)), "owner": str})
    async with started(database_url, before) as server:
        await server.db(before).create(price=1, body="b")

    problem = await refused(database_url, after, auto_migrate=auto_migrate)

    assert problem.startswith("Thing.owner: ")
    assert "field(column=" not in problem


async def test_a_missing_table_is_reported_by_a_start_that_does_not_migrate(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    thing = model("Thing", "things", {"name": str})

    async with started(database_url, thing, auto_migrate=False):
        pass

    assert [w for w in warnings(caplog) if "things" in w] == [
        "Thing: there is no table 'things', so every request for it fails; start once with"
        " auto_migrate=True, or make it in a migration"
    ]


@pytest.mark.parametrize("type_", [str, Decimal])
async def test_uniqueness_that_no_index_keeps_is_reported_with_the_statement_that_keeps_it(
    type_: Any, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = model("Thing", "things", {"code": type_})
    after = model("Thing", "things", {"code": (type_, field(unique=True))})
    async with started(database_url, before):
        pass

    async with started(database_url, after, auto_migrate=False):
        pass
    [warning] = [w for w in warnings(caplog) if "things" in w]
    assert warning.startswith("Thing: code is unique on Thing and not in the database")
    await run(database_url, statements(warning))

    caplog.clear()
    async with started(database_url, after, auto_migrate=False) as server:
        await server.db(after).create(code="1")
        with pytest.raises(ConstraintViolation):
            await server.db(after).create(code="1")
    assert warnings(caplog) == []


async def test_uniqueness_that_is_no_longer_declared_stops_a_start_that_does_not_migrate(
    database_url: str,
) -> None:
    before = model("Thing", "things", {"code": (str, field(unique=True))})
    after = model("Thing", "things", {"code": str})
    async with started(database_url, before) as server:
        await server.db(before).create(code="1")

    problem = await refused(database_url, after, auto_migrate=False)
    await run(database_url, statements(problem))

    async with started(database_url, after, auto_migrate=False) as server:
        await server.db(after).create(code="1")


@pytest.mark.parametrize("soft", [False, True])
async def test_rows_with_equal_values_come_with_the_query_that_lists_them_all(
    soft: bool, database_url: str
) -> None:
    options: dict[str, Any] = {"soft_delete": True} if soft else {}
    before = model("Thing", "things", {"code": str | None}, **options)
    after = model("Thing", "things", {"code": (str | None, field(unique=True))}, **options)
    async with started(database_url, before) as server:
        for code in ("a", "a", "b", "b", "c", None, None):
            await server.db(before).create(code=code)
        if soft:
            [gone, _] = await server.db(before).list([("code", "eq", "b")])
            await server.db(before).delete(gone.id)

    problem = await refused(database_url, after)
    rows = await run(database_url, problem.partition("All groups: ")[2])

    assert sorted((row[0], row[1]) for row in rows) == ([("a", 2)] if soft else [("a", 2), ("b", 2)])
