"""A class under a new name gets a new table; the start says so when the old one holds its records."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pytest

from maniflex import Model, field
from tests.kit.postgres import as_role
from tests.kit.schema import model, raw, refused, warnings
from tests.kit.servers import started

FIELDS: dict[str, Any] = {"name": (str, field(searchable=True)), "wage": Decimal}
ADVICE = (
    "the database has 'people' with the same columns, with rows and without a model; if Human is a new name"
    ' for that model, keep its table: class Human(Model, table="people")'
)


async def fill(url: str, **settings: Any) -> None:
    person = model("Person", "people", FIELDS)
    async with started(url, person, **settings) as server:
        await server.db(person).create(name="ada", wage=1)


@pytest.mark.parametrize("schema", [None, "Shop"])
async def test_a_renamed_class_is_told_how_to_keep_its_table(
    schema: str | None, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"schema": schema} if schema and database_url.startswith("postgres") else {}
    await fill(database_url, **settings)

    human = model("Human", "humans", FIELDS)
    async with started(database_url, human, **settings) as server:
        assert await server.db(human).count() == 0
    assert warnings(caplog) == [f"Human gets the new table 'humans', and {ADVICE}"]

    class Human(Model, table="people"):
        name: str = field(searchable=True)
        wage: Decimal

    caplog.clear()
    async with started(database_url, Human, **settings) as server:
        assert [each.name for each in await server.db(Human).list()] == ["ada"]
    assert warnings(caplog) == []


async def test_a_start_that_does_not_migrate_says_it_too(database_url: str) -> None:
    await fill(database_url)

    problem = await refused(database_url, model("Human", "humans", FIELDS), auto_migrate=False)
    assert f"there is no table 'humans', so every request for it would fail; {ADVICE}; otherwise" in problem


async def test_other_tables_are_not_mentioned(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    person = model("Person", "people", FIELDS)
    bare = model("Bare", "bares", {})
    empty = model("Empty", "empties", {"size": int})
    async with started(database_url, person, bare, empty) as server:
        await server.db(person).create(name="ada", wage=1)
        await server.db(bare).create()

    later = [
        model("Human", "humans", FIELDS),  # people has a model
        model("Naked", "nakeds", {}),  # nothing but what every table has
        model("Void", "voids", {"size": int}),  # empties has no rows
        model("Other", "others", {"name": str, "wage": Decimal, "size": int}),
    ]
    async with started(database_url, person, *later):
        pass
    assert warnings(caplog) == []


async def test_a_table_that_may_not_be_read_is_no_obstacle(postgres_url: str, caplog: Any) -> None:
    await fill(postgres_url)
    role = f"poor_{urlsplit(postgres_url).path.strip('/')}"
    poor = as_role(postgres_url, role)
    grant = f"GRANT CREATE, USAGE ON SCHEMA public TO {role}"
    await raw(postgres_url, f"CREATE ROLE {role} LOGIN", grant)
    try:
        async with started(poor, model("Human", "humans", FIELDS)):
            pass
    finally:
        await raw(postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert warnings(caplog) == []
