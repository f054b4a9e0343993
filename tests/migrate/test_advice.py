"""The SQL that messages advise is SQL that works, with the database's own tools, on both databases."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from maniflex import field
from maniflex.errors import ConstraintViolation
from tests.kit.schema import (
    ANEW,
    columns,
    indexes,
    kind,
    model,
    refusals,
    refused,
    run_advice,
    statements,
    warnings,
)
from tests.kit.servers import started

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
    await run_advice(database_url, statements(problem))

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
    await run_advice(database_url, statements(problem))

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
    await run_advice(database_url, statements(problem))

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


async def test_a_missing_table_stops_a_start_that_does_not_migrate(database_url: str) -> None:
    thing = model("Thing", "things", {"name": str})

    assert await refused(database_url, thing, auto_migrate=False) == (
        "Thing: there is no table 'things', so every request for it would fail; start once with"
        " auto_migrate=True, or write migration files with `maniflex migrate make tests.kit.servers:server`"
        " and apply them with `maniflex migrate up tests.kit.servers:server`"
    )


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
    await run_advice(database_url, statements(warning))

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
    await run_advice(database_url, statements(problem))

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
    rows = await run_advice(database_url, problem.partition("All groups: ")[2])

    assert sorted((row[0], row[1]) for row in rows) == ([("a", 2)] if soft else [("a", 2), ("b", 2)])


WORDS = field(searchable=True)
LOOSE = (str | None, field(searchable=True, default=None))
TWICE: dict[str, dict[str, Any]] = {
    "two dropped": {"name": str},
    "one dropped, one may be null": {"name": str, "body": LOOSE},
    "two may be null": {"name": str, "title": LOOSE, "body": LOOSE, "price": Decimal, "cost": Decimal},
}


@pytest.mark.parametrize("after", TWICE)
async def test_the_statements_of_all_problems_of_a_message_run_one_after_the_other(
    after: str, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"name": str, "title": (str, WORDS), "body": (str, WORDS), "price": Decimal, "cost": Decimal}
    pair = {"indices": [("title", "body"), ("price", "cost")]}
    before = model("Thing", "things", fields, **pair)
    later = model("Thing", "things", TWICE[after])
    async with started(database_url, before) as server:
        await server.db(before).create(name="n", title="t", body="b", price=1, cost=2)

    problems = await refusals(database_url, later)
    assert len(problems) > 1
    await run_advice(database_url, "; ".join(statements(problem) for problem in problems))

    caplog.clear()
    async with started(database_url, later) as server:
        await server.db(later).create(
            **{"name": "m", **({"price": 1, "cost": 2} if "two may" in after else {})}
        )
        assert await server.db(later).count() == 2
    assert warnings(caplog) == []


IN_A_SCHEMA: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "dropped": ({"gone": str}, {}, {}),
    "searched": ({"gone": (str, WORDS), "text": (str, WORDS)}, {"text": (str, WORDS)}, {}),
    "may be null": ({"gone": str}, {"gone": (str | None, None)}, {}),
    "missing": ({}, {"gone": (str | None, None)}, {"auto_migrate": False}),
    "no longer unique": ({"gone": (str, field(unique=True))}, {"gone": str}, {}),
    "unique otherwise": (
        {"gone": (str, field(unique=True)), "deleted_at": datetime | None},
        {"gone": (str, field(unique=True)), "deleted_at": (datetime | None, None)},
        {},
    ),
}


@pytest.mark.parametrize("case", IN_A_SCHEMA)
async def test_statements_for_a_table_in_a_schema_leave_another_of_the_same_name_alone(
    case: str, postgres_url: str
) -> None:
    old, new, settings = IN_A_SCHEMA[case]
    marked = {"soft_delete": "deleted_at"} if "deleted_at" in new else {}
    before, after = model("Thing", "things", old), model("Thing", "things", new, **marked)
    values = {name: name for name in old if name != "deleted_at"}
    for place in ({}, {"schema": "Shop"}):
        async with started(postgres_url, before, **place) as server:
            await server.db(before).create(**values)
    public = await columns(postgres_url, "things"), await indexes(postgres_url, "things")

    problem = await refused(postgres_url, after, schema="Shop", **settings)
    assert '"Shop"."' in problem
    await run_advice(postgres_url, problem.rpartition(": ")[2])

    async with started(postgres_url, after, schema="Shop", **settings):
        pass
    assert (await columns(postgres_url, "things"), await indexes(postgres_url, "things")) == public
    async with started(postgres_url, before) as server:
        assert await server.db(before).count() == 1


async def test_statements_that_keep_or_look_for_uniqueness_name_the_schema_too(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = (model("Thing", "things", {"code": (str, rule)}) for rule in ("", field(unique=True)))
    async with started(postgres_url, before):
        pass
    async with started(postgres_url, before, schema="shop") as server:
        one = await server.db(before).create(code="a")
        await server.db(before).create(code="a")

    problem = await refused(postgres_url, after, schema="shop")
    assert [tuple(row) for row in await run_advice(postgres_url, problem.partition("All groups: ")[2])] == [
        ("a", 2)
    ]

    async with started(postgres_url, before, schema="shop") as server:
        await server.db(before).delete(one.id)
    caplog.clear()
    async with started(postgres_url, after, schema="shop", auto_migrate=False):
        pass
    [warning] = [w for w in warnings(caplog) if "things" in w]
    await run_advice(postgres_url, statements(warning))

    caplog.clear()
    async with started(postgres_url, after, schema="shop", auto_migrate=False):
        assert warnings(caplog) == []
    assert list(await indexes(postgres_url, "things")) == []


@pytest.mark.parametrize("nullable", [False, True])
async def test_a_column_of_another_type_is_kept_beside_the_new_one_in_a_single_start(
    nullable: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = model("Thing", "things", {"size": (str | None, None) if nullable else str})
    async with started(database_url, before) as server:
        old = await server.db(before).create(size="42")

    problem = await refused(database_url, model("Thing", "things", {"size": int}))
    assert 'give size a new column, field(column="size_new"), with a default or `| None`' in problem
    if nullable:
        assert 'another field that is `| None`, field(column="size", default=None)' in problem
        kept: Any = (str | None, field(column="size", default=None))
    else:
        assert 'another field with a default of the old type, field(column="size", default=...)' in problem
        kept = (str, field(column="size", default=""))
    after = model("Thing", "things", {"old": kept, "size": (int, field(column="size_new", default=0))})

    caplog.clear()
    async with started(database_url, after) as server:
        await server.db(after).create(size=7)
        read: Any = await server.db(after).read(old.id)
    assert (read.old, read.size) == ("42", 0)
    assert warnings(caplog) == []
