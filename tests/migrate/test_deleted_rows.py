"""Rows that a soft delete marked do not come back when the class no longer knows the mark."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from maniflex import WithDeletedAt, WithIsDeleted, field
from maniflex.errors import ConstraintViolation
from tests.kit.schema import ANEW, columns, model, refused, run_advice, statements, warnings
from tests.kit.servers import started

MIXINS = {"deleted_at": WithDeletedAt, "is_deleted": WithIsDeleted}
TITLE = {"title": (str, field(unique=True))}


def thing(*bases: type, **extra: Any) -> Any:
    return model("Thing", "things", {**TITLE, **extra}, *bases)


async def delete_some(url: str, before: Any, count: int = 2) -> None:
    """One live record, and `count` deleted ones, which share its title."""
    async with started(url, before) as server:
        for _ in range(count):
            gone = await server.db(before).create(title="same")
            await server.db(before).delete(gone.id)
        await server.db(before).create(title="same")


async def is_unique(server: Any, after: Any) -> bool:
    with pytest.raises(ConstraintViolation):
        await server.db(after).create(title="same")
    return True


@pytest.mark.parametrize("auto_migrate", [True, False])
@pytest.mark.parametrize("mark", MIXINS)
async def test_a_mark_that_is_no_longer_declared_stops_the_start(
    mark: str, auto_migrate: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = thing(MIXINS[mark]), thing()
    await delete_some(database_url, before)

    for _ in range(2):
        problem = await refused(database_url, after, auto_migrate=auto_migrate)
    mixin = MIXINS[mark].__name__
    assert problem.startswith(
        f"Thing: 2 rows of 'things' marked as deleted by '{mark}' would be shown again, because Thing no"
        f" longer has that field. To keep them deleted, declare {mixin} again (class Thing(Model, {mixin}))."
    )
    assert (ANEW in problem) is not auto_migrate

    async with started(database_url, before, auto_migrate=auto_migrate) as server:  # the first way
        assert await server.db(before).count() == 1
    await run_advice(database_url, statements(problem))  # the second

    caplog.clear()
    async with started(database_url, after) as server:
        assert await server.db(after).count() == 1
        assert await is_unique(server, after)
    assert warnings(caplog) == []
    assert mark not in await columns(database_url, "things")


@pytest.mark.parametrize("auto_migrate", [True, False])
@pytest.mark.parametrize("old", MIXINS)
@pytest.mark.parametrize("way", ["anew", "for good"])
async def test_a_mark_that_took_the_place_of_another_is_given_to_the_same_rows(
    way: str, old: str, auto_migrate: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    [new] = MIXINS.keys() - {old}
    before, after = thing(MIXINS[old]), thing(MIXINS[new])
    await delete_some(database_url, before, count=1)

    problem = await refused(database_url, after, auto_migrate=auto_migrate)
    assert problem.startswith(f"Thing: 1 row of 'things' marked as deleted by '{old}' would be shown again")
    assert f", or mark them by {new} in a migration" in problem
    anew, _, for_good = problem.partition(". If they are not needed any more")
    await run_advice(database_url, statements(anew if way == "anew" else for_good))

    caplog.clear()
    async with started(database_url, after) as server:
        assert await server.db(after).count() == 1
        assert await is_unique(server, after)
        rows = await server.raw_query(f"SELECT count(*) AS n FROM things WHERE {new} IS NOT NULL")
    assert warnings(caplog) == []
    assert rows[0]["n"] == {"deleted_at": 1, "is_deleted": 2}[new] - (way == "for good")
    assert old not in await columns(database_url, "things")


@pytest.mark.parametrize("mark", MIXINS)
async def test_a_renamed_mark_keeps_its_column(mark: str, database_url: str) -> None:
    await delete_some(database_url, thing(MIXINS[mark]))
    type_: Any = datetime | None if mark == "deleted_at" else bool
    default = None if mark == "deleted_at" else False

    def renamed(**rules: Any) -> Any:
        return model(
            "Thing", "things", {**TITLE, "gone": (type_, field(default=default, **rules))}, soft_delete="gone"
        )

    assert f'or declare gone with field(column="{mark}")' in await refused(database_url, renamed())
    after = renamed(column=mark)
    async with started(database_url, after) as server:
        assert await server.db(after).count() == 1


@pytest.mark.parametrize("mark", MIXINS)
async def test_without_deleted_rows_the_column_is_one_like_any_other(
    mark: str, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = thing(MIXINS[mark]), thing()
    await delete_some(database_url, before, count=0)

    problem = await refused(database_url, after)  # the index leaves out deleted rows, or a create would fail
    assert "shown again" not in problem
    await run_advice(database_url, problem.rpartition(": ")[2])

    caplog.clear()
    async with started(database_url, after) as server:
        assert await server.db(after).count() == 1
        assert await is_unique(server, after)
    assert warnings(caplog) == [f"things.{mark} is in the database but not on Thing"]


async def test_a_field_of_the_same_name_is_a_field(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = model("Thing", "things", {"title": str}, WithDeletedAt)
    after = model("Thing", "things", {"title": str, "deleted_at": (datetime | None, None)})
    async with started(database_url, before) as server:
        gone = await server.db(before).create(title="gone")
        await server.db(before).delete(gone.id)

    async with started(database_url, after) as server:
        assert await server.db(after).count() == 1
    assert warnings(caplog) == []
