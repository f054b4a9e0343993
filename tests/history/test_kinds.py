"""H7, H9: whatever a field holds, its history has it in the form of answers, and the past gives it back."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import httpx
import pytest
from pydantic import JsonValue

from maniflex import Model, Server
from maniflex.sql.statement import by_dialect
from maniflex.testing import FakeClock, client
from tests.history.test_as_of import text
from tests.kit.internals import adapter_of
from tests.kit.statements import calls_of


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Thing(Model, table="hist_things", versioned=True):
    words: str | None = None
    number: int | None = None
    ratio: float | None = None
    flag: bool | None = None
    price: Decimal | None = None
    moment: datetime | None = None
    day: date | None = None
    hour: time | None = None
    key: UUID | None = None
    data: bytes | None = None
    shape: JsonValue | None = None
    colour: Colour | None = None


class Diffed(Thing, table="hist_diffed", versioned_diff_only=True):
    pass


EAST = timezone(timedelta(hours=5, minutes=30))
STATES: list[dict[str, Any]] = [
    {"words": "", "number": 0, "ratio": 0.0, "flag": False, "price": Decimal("0.00"), "shape": []},
    {"words": 'Grüße 🎈 \\ "x"', "number": 2**63 - 1, "ratio": 1e300, "flag": True, "shape": {"a": None}},
    {"price": Decimal("1E+5"), "moment": datetime(2026, 1, 1, 4, 0, tzinfo=EAST), "colour": Colour.RED},
    {"price": Decimal("-0.0"), "moment": datetime(1, 1, 2, tzinfo=UTC), "ratio": -0.0, "shape": "text"},
    {"price": Decimal("123456789012345678901234567890.123456789"), "hour": time(23, 59, 59, 5)},
    {
        "day": date(2024, 2, 29),
        "hour": time(1, 2, 3),
        "key": UUID(int=2**127),
        "data": b"\x00\xff",
        "shape": 1.5,
    },
    {
        "moment": datetime(9999, 12, 1, 23, 59, 59, 999999, tzinfo=UTC),
        "number": -(2**63),
        "colour": Colour.BLUE,
    },
    {"data": b"", "shape": False, "ratio": 0.1 + 0.2, "price": Decimal("1.50")},
]


@dataclass
class Shelf:
    server: Server
    http: httpx.AsyncClient
    clock: FakeClock


@pytest.fixture
async def shelf(database_url: str) -> AsyncIterator[Shelf]:
    server, clock = Server(path_prefix=""), FakeClock()
    server.register(Thing, Diffed)
    async with client(server, database=database_url, clock=clock) as http:
        yield Shelf(server, http, clock)


@pytest.mark.parametrize("model", [Thing, Diffed])
async def test_a_version_is_the_answer_of_then(shelf: Shelf, model: type[Thing]) -> None:
    table = model.__options__.table
    record = await shelf.server.db(model).create(STATES[0])
    answers = []
    for state in [*STATES[1:], *STATES]:
        answers.append(
            (text(shelf.clock.now()), (await shelf.http.get(f"/{table}/{record.id}")).json()["data"])
        )
        shelf.clock.advance(timedelta(seconds=1))
        await shelf.server.db(model).update(record.id, state)
    versions = await shelf.server.history(model).of(record.id)
    assert len(versions) > len(STATES)
    for moment, shown in answers:
        past = (await shelf.http.get(f"/{table}/{record.id}?as_of={moment}")).json()
        assert past["data"] == shown
        if model is Thing:
            [version] = [v for v in versions if v.version == past["meta"]["version"]]
            assert version.snapshot == shown


async def test_a_create_has_every_kind_as_the_answer_has_it(shelf: Shelf) -> None:
    for state in STATES:
        record = await shelf.server.db(Thing).create(state)
        shown = (await shelf.http.get(f"/hist_things/{record.id}")).json()["data"]
        [version] = await shelf.server.history(Thing).of(record.id)
        assert version.snapshot == shown
        told = {n: change["new"] for n, change in version.diff.items()}  # type: ignore[index,call-overload]
        assert told == {n: v for n, v in shown.items() if n in told}
        assert set(state) <= set(told)


async def test_a_write_of_any_kind_and_its_version_are_one_call_of_the_database(shelf: Shelf) -> None:
    """On PostgreSQL an update reads the row first."""
    on_postgres = ["write", "fetch_one", "write"]
    once = by_dialect(adapter_of(shelf.server).dialect, sqlite=["batch"] * 2, postgres=on_postgres)
    for before, after in itertools.pairwise(STATES):
        with calls_of(shelf.server) as calls:
            record = await shelf.server.db(Thing).create(before)
            await shelf.server.db(Thing).update(record.id, after)
        assert calls == once, (before, after)


async def test_a_row_that_the_database_changes_has_its_version_as_it_is_stored(postgres_url: str) -> None:
    """By a trigger of the application's own, which touches a field that no request has sent."""
    server = Server(path_prefix="")
    server.register(Thing)
    async with client(server, database=postgres_url) as http:
        await server.raw_exec(
            "CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN NEW.words := 'number ' || NEW.number; RETURN NEW; END $$"
        )
        await server.raw_exec(
            "CREATE TRIGGER shout BEFORE INSERT OR UPDATE ON hist_things"
            " FOR EACH ROW EXECUTE FUNCTION shout()"
        )
        for _ in range(2):  # the second time it is known
            record = (await http.post("/hist_things", json={"number": 1})).json()["data"]
            await http.patch(f"/hist_things/{record['id']}", json={"number": 2})
            versions: Any = await server.history(Thing).of(record["id"])
            assert [version.snapshot["words"] for version in versions] == ["number 2", "number 1"]
            assert versions[0].diff["words"] == {"old": "number 1", "new": "number 2"}
