"""What differs and is not ours to change is reported at every start; what is right is not mentioned."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tests.migrate.schema import columns, kind, model, raw, started, warnings

KINDS: dict[str, Any] = {
    "text": str,
    "whole": int,
    "real": float,
    "flag": bool,
    "money": Decimal,
    "moment": datetime,
    "day": date,
    "clock": time,
    "key": UUID,
    "raw": bytes,
    "tree": dict[str, Any],
}


@pytest.mark.parametrize("name", KINDS)
async def test_a_changed_type_is_reported_at_every_start_and_never_rewritten(
    name: str, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = "whole" if name != "whole" else "text"
    before = model("Thing", "things", {"value": KINDS[name]})
    after = model("Thing", "things", {"value": KINDS[other]})
    async with started(database_url, before):
        pass
    for _ in range(2):
        caplog.clear()
        async with started(database_url, after):
            pass
        [warning] = warnings(caplog)
        assert warning.startswith("things.value is ")
        assert "Thing expects" in warning

    caplog.clear()
    async with started(database_url, before):  # it is what it was
        pass
    assert warnings(caplog) == []


async def test_a_column_without_a_field_is_reported_and_kept(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = model("Thing", "things", {"name": str, "old": (str | None, None), "gone": str})
    after = model("Thing", "things", {"name": str})
    async with started(database_url, before):
        pass
    for _ in range(2):
        caplog.clear()
        async with started(database_url, after):
            pass
        assert sorted(warnings(caplog)) == [
            "things.gone is in the database but not on Thing; inserts will fail: it may not be null",
            "things.old is in the database but not on Thing",
        ]
    assert {"old", "gone"} <= await columns(database_url, "things")


async def test_nullability_that_differs_is_reported_either_way(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    loose = model("Thing", "things", {"a": (str | None, None), "b": str})
    strict = model("Thing", "things", {"a": str, "b": (str | None, None)})
    async with started(database_url, loose):
        pass
    for _ in range(2):
        caplog.clear()
        async with started(database_url, strict):
            pass
        assert sorted(warnings(caplog)) == [
            "things.a may be null in the database, on Thing it may not",
            "things.b may not be null in the database, on Thing it may",
        ]


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
