"""What contradicts stops the start, what only differs is reported; what is right is not mentioned."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from maniflex import field
from tests.kit.schema import PLAIN_TYPES, columns, kind, model, raw, refusals, warnings
from tests.kit.servers import started


@pytest.mark.parametrize("auto_migrate", [True, False])
@pytest.mark.parametrize("name", PLAIN_TYPES)
async def test_a_changed_type_stops_every_start_and_is_never_rewritten(
    name: str, auto_migrate: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = "whole" if name != "whole" else "text"
    before = model("Thing", "things", {"value": PLAIN_TYPES[name]})
    after = model("Thing", "things", {"value": PLAIN_TYPES[other]})
    async with started(database_url, before):
        pass
    for _ in range(2):
        [problem] = await refusals(database_url, after, auto_migrate=auto_migrate)
        assert problem.startswith("Thing.value: things.value is ")
        assert "Thing expects" in problem
        assert "migration" in problem
        assert "field(column=" in problem

    async with started(database_url, before, auto_migrate=auto_migrate):  # it is what it was
        pass
    assert warnings(caplog) == []


@pytest.mark.parametrize("auto_migrate", [True, False])
async def test_a_dropped_field_that_every_insert_would_miss_stops_the_start(
    auto_migrate: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = model("Thing", "things", {"name": str, "old": (str | None, None), "gone": str})
    after = model("Thing", "things", {"name": str})
    async with started(database_url, before) as server:
        await server.db(before).create(name="n", gone="here")

    for _ in range(2):
        [problem] = await refusals(database_url, after, auto_migrate=auto_migrate)
        assert problem == (
            "Thing: the table 'things' has a column 'gone' that Thing does not know. It may not be null and"
            " has no default, so every create would fail. To keep its values: if a field of Thing has taken"
            ' its place, give that field field(column="gone"). If they are not needed any more, remove it in'
            ' a migration: ALTER TABLE "things" DROP COLUMN "gone"'
        )
    assert {"old", "gone"} <= await columns(database_url, "things")

    await raw(database_url, problem.rpartition("migration: ")[2])
    caplog.clear()
    async with started(database_url, after, auto_migrate=auto_migrate) as server:
        await server.db(after).create(name="new")
    assert warnings(caplog) == ["things.old is in the database but not on Thing"]


DERIVED: dict[str, Any] = {
    "with an order key": Decimal,
    "with an order key and an index": (Decimal, field(index=True)),
    "unique": (str, field(unique=True)),
    "searched": (str, field(searchable=True)),
}


@pytest.mark.parametrize("auto_migrate", [True, False])
@pytest.mark.parametrize("gone", DERIVED)
async def test_the_advice_for_a_dropped_field_removes_what_was_derived_from_it(
    gone: str, auto_migrate: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = {"name": str, "price": Decimal, "text": (str, field(searchable=True))}
    before = model("Thing", "things", {**kept, "gone": DERIVED[gone]})
    after = model("Thing", "things", kept)
    async with started(database_url, before) as server:
        await server.db(before).create(name="n", price=Decimal(9), text="word", gone="10")

    [problem] = await refusals(database_url, after, auto_migrate=auto_migrate)
    assert warnings(caplog) == []
    await raw(database_url, *problem.rpartition("migration: ")[2].split("; "))

    async with started(database_url, after) as server:
        await server.db(after).create(name="new", price=Decimal(10), text="word")
        found: Any = await server.db(after).list([("price", "gt", 9)])
        assert [thing.name for thing in found] == ["new"]
    assert warnings(caplog) == []
    assert not {"gone", "gone$order"} & await columns(database_url, "things")


RENAMED = {
    "required": str,
    "with a default": (str, ""),
    "or none": (str | None, None),
}


@pytest.mark.parametrize("new", RENAMED)
async def test_a_renamed_field_stops_the_start_and_the_advice_keeps_its_values(
    new: str, database_url: str
) -> None:
    before = model("Thing", "things", {"title": str})
    async with started(database_url, before) as server:
        old = await server.db(before).create(title="kept")

    after = model("Thing", "things", {"headline": RENAMED[new]})
    [problem] = await refusals(database_url, after)
    assert 'if Thing.headline is its new name, declare it with field(column="title")' in problem
    assert "default or" not in problem
    assert await columns(database_url, "things") == {"id", "created_at", "updated_at", "title"}

    default: Any = {"default": ""} if new == "with a default" else {}
    advised = model("Thing", "things", {"headline": (str, field(column="title", **default))})
    async with started(database_url, advised) as server:
        read: Any = await server.db(advised).read(old.id)
        await server.db(advised).create(headline="another")
    assert read.headline == "kept"


async def test_a_renamed_field_that_may_be_null_is_reported_with_the_way_to_keep_its_values(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = model("Thing", "things", {"title": (str | None, None)})
    async with started(database_url, before) as server:
        await server.db(before).create(title="kept")

    caplog.clear()
    async with started(database_url, model("Thing", "things", {"headline": (str | None, None)})):
        pass
    [warning] = warnings(caplog)
    assert warning == (
        "things.title is in the database but not on Thing;"
        ' if Thing.headline is its new name, declare it with field(column="title")'
    )

    required = model("Thing", "things", {"headline": (str | None, None), "heading": str})
    [problem] = await refusals(database_url, required)
    assert problem == (
        "Thing.heading: the table 'things' has rows and the new column 'heading' has no value for them; if it"
        ' is an old field under a new name, declare it with field(column="title") and its values stay;'
        " otherwise give the field a default, make it `| None`, or add and fill the column in a migration"
    )


async def test_every_problem_of_every_table_is_named_at_once(database_url: str) -> None:
    first = model("First", "firsts", {"a": str, "b": int})
    second = model("Second", "seconds", {"c": str})
    async with started(database_url, first, second):
        pass

    problems = await refusals(
        database_url, model("First", "firsts", {"b": str}), model("Second", "seconds", {"c": int})
    )

    assert sorted(problem.partition(":")[0] for problem in problems) == ["First", "First.b", "Second.c"]


LEGACY_POSTGRES = """
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE DOMAIN amount AS bigint;
CREATE TABLE stored (id text PRIMARY KEY, name mood NOT NULL, size amount NOT NULL,
    created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
CREATE VIEW things AS SELECT * FROM stored
"""


async def test_enums_domains_and_views_of_a_database_made_by_hand_are_taken_as_they_are(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await raw(postgres_url, *LEGACY_POSTGRES.split(";\n"))
    thing = model("Thing", "things", {"name": str, "size": int})
    async with started(postgres_url, thing, auto_migrate=False) as server:
        things: Any = server.db(thing)
        made = await things.create(name="good", size=3)
        async with server.transaction():  # a view has no versions of its rows to compare
            read = await things.read(made.id)
            await things.update(made.id, size=read.size + 1)
            [read] = await things.list()

    assert (read.name, read.size) == ("good", 4)
    assert [
        text for text in warnings(caplog) if "may be null" not in text
    ] == []  # every column of a view may


async def test_nullability_that_differs_is_reported_either_way(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    loose = model("Thing", "things", {"a": (str | None, None), "b": str})
    strict = model("Thing", "things", {"a": str, "b": (str | None, "")})
    async with started(database_url, loose):
        pass
    for _ in range(2):
        caplog.clear()
        async with started(database_url, strict):
            pass
        assert sorted(warnings(caplog)) == [
            "things.a may be null in the database, on Thing it may not: rows without a value are shown with"
            " null; fill them in a migration, or declare the field `| None`",
            "things.b may not be null in the database, on Thing it may: null is refused; let the column be"
            " null in a migration, or the field not",
        ]


@pytest.mark.parametrize("type_", [str, Decimal])
async def test_a_field_that_is_no_longer_unique_stops_the_start_until_its_index_is_dropped(
    type_: Any, database_url: str
) -> None:
    before = model("Thing", "things", {"size": (type_, field(unique=True))})
    after = model("Thing", "things", {"size": type_})
    async with started(database_url, before):
        pass

    [problem] = await refusals(database_url, after)
    await raw(database_url, problem.rpartition("migration: ")[2])

    async with started(database_url, after) as server:
        for _ in range(2):
            await server.db(after).create(size=type_("7"))
        assert await server.db(after).count() == 2


NULLABLE: dict[str, tuple[Any, Any, Any]] = {
    "plain": (int, (int | None, None), 7),
    "with an order key": (Decimal, (Decimal | None, None), Decimal("7.50")),
    "unique": ((str, field(unique=True)), (str | None, field(default=None, unique=True)), "seven"),
}


@pytest.mark.parametrize("auto_migrate", [True, False])
@pytest.mark.parametrize("name", NULLABLE)
async def test_a_field_that_becomes_null_by_default_stops_the_start_and_the_advice_keeps_its_values(
    name: str, auto_migrate: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    required, optional, value = NULLABLE[name]
    before, after = (model("Thing", "things", {"size": size}) for size in (required, optional))
    async with started(database_url, before) as server:
        old = await server.db(before).create(size=value)

    [problem] = await refusals(database_url, after, auto_migrate=auto_migrate)
    await raw(database_url, *problem.rpartition("migration: ")[2].split("; "))

    async with started(database_url, after) as server:
        new: Any = await server.db(after).create()
        kept: Any = await server.db(after).read(old.id)
    assert (kept.size, new.size) == (value, None)
    assert warnings(caplog) == []


HAND_MADE = {
    "sqlite": "CREATE TABLE things (id TEXT PRIMARY KEY, name VARCHAR(80) NOT NULL, size INTEGER NOT NULL,"
    " created_at DATETIME_TEXT NOT NULL, updated_at DATETIME_TEXT NOT NULL)",
    "postgres": "CREATE TABLE things (id varchar(36) PRIMARY KEY, name varchar(80) NOT NULL,"
    " size integer NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz(6) NOT NULL)",
}


async def test_a_table_made_by_hand_with_fitting_types_is_taken_as_it_is(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await raw(database_url, HAND_MADE[kind(database_url)])
    thing = model("Thing", "things", {"name": str, "size": int})
    async with started(database_url, thing) as server:
        made: Any = await server.db(thing).create(name="by hand", size=3)
        read: Any = await server.db(thing).read(made.id)

    assert (read.name, read.size) == ("by hand", 3)
    assert warnings(caplog) == []
