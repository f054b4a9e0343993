"""`server.db(Model)`: records from code, under the same rules as a client's."""

from __future__ import annotations

import asyncio
from contextvars import Context
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import pytest

from maniflex import (
    ConstraintViolation,
    DeclarationError,
    InvalidQuery,
    Model,
    NotFound,
    Server,
    ValidationFailed,
    field,
)
from maniflex.db.port import Tx
from maniflex.testing import FakeClock, client
from tests.kit.http import data_of


class Tag(Model):
    name: str = field(unique=True, min_length=2, max_length=10)
    uses: int = field(default=0, min=0, max=1000)
    score: float = 0.0
    price: Decimal = field(default=Decimal(0), min=0)
    kind: Literal["a", "b"] = "a"
    limit: int | None = None
    rate: Decimal | None = None
    born: datetime = field(default=datetime(2026, 1, 1, tzinfo=UTC))
    owner: str = field(default="", readonly=True)
    extra: dict[str, Any] = field(default_factory=dict)


def tags(**settings: Any) -> Server:
    server = Server(**settings)
    server.register(Tag)
    return server


async def test_records_are_made_found_changed_and_removed(database_url: str) -> None:
    server = tags()
    async with client(server, database=database_url) as http:
        db = server.db(Tag)
        tag = await db.create(name="one", price=Decimal("1.50"), owner="ada", extra={"a": [1]})
        assert isinstance(tag, Tag)
        assert (tag.name, tag.price, tag.owner, tag.extra) == ("one", Decimal("1.50"), "ada", {"a": [1]})
        assert await db.read(tag.id) == tag
        two = await db.create(Tag(name="two", uses=5))
        three = await db.create({"name": "three"}, uses=5)
        changed = await db.update(tag.id, name="uno", uses=7)
        assert (changed.name, changed.uses, changed.price) == ("uno", 7, Decimal("1.50"))
        assert (await db.update(tag.id, {"owner": "bob"})).owner == "bob"
        assert [t.name for t in await db.list()] == ["uno", "two", "three"]
        assert [t.name for t in await db.list({"uses": 5}, "name:asc")] == ["three", "two"]
        assert [t.name for t in await db.list([("uses", "eq", 5)], [("name", "desc")])] == ["two", "three"]
        assert [t.name for t in await db.list(sorts=["uses", "name"], limit=1, page=2)] == ["two"]
        assert [t.name for t in await db.list({"limit": None, "uses": 7})] == ["uno"]
        assert (await db.count(), await db.count({"uses": 5})) == (3, 2)
        assert await db.exists({"name": "two", "uses": 5})
        assert not await db.exists({"name": "uno", "uses": 5})
        assert await db.exists(two.id)
        assert await db.exists({"uses": 5}, name="two")
        assert not await db.exists({"uses": 5}, name="uno")
        await db.delete(three.id)
        assert [row["id"] for row in data_of(await http.get("/api/tags"))] == [tag.id, two.id]
        assert await server.db("Tag").count() == 2


async def test_what_is_not_there_is_not_found(database_url: str) -> None:
    server = tags()
    async with client(server, database=database_url):
        db = server.db(Tag)
        for call in (db.read("x"), db.update("x", uses=1), db.delete("x"), db.increment("x", uses=1)):
            with pytest.raises(NotFound):
                await call
        with pytest.raises(DeclarationError, match="Tga"):
            server.db("Tga")


BAD: list[dict[str, Any]] = [
    {"name": "x"},
    {"name": "x" * 11},
    {"name": None},
    {"name": 5},
    {"name": "nul\x00"},
    {"name": "\ud800"},
    {"uses": -1},
    {"uses": 1001},
    {"uses": "5"},
    {"price": Decimal(-1)},
    {"price": Decimal("NaN")},
    {"score": float("inf")},
    {"kind": "c"},
    {"extra": {"a": object()}},
    {"extra": {"a": float("nan")}},
    {"extra": {"a": 2**70}},
    {"extra": {5: 1}},
    {"nmae": "typo"},
]


@pytest.mark.parametrize("wrong", BAD)
async def test_the_rules_of_the_model_bind_code_too(database_url: str, wrong: dict[str, Any]) -> None:
    server = tags()
    async with client(server, database=database_url):
        db = server.db(Tag)
        tag = await db.create(name="one")
        with pytest.raises(ValidationFailed) as on_create:
            await db.create({"name": "two", **wrong})
        with pytest.raises(ValidationFailed) as on_update:
            await db.update(tag.id, wrong)
        for error in (on_create.value, on_update.value):
            assert isinstance(error.details, list)
            assert {d["field"].partition(".")[0] for d in error.details} == set(wrong)
        assert await db.list() == [tag]


async def test_an_assigned_attribute_is_checked_when_the_record_is_stored(database_url: str) -> None:
    server = tags()
    async with client(server, database=database_url):
        tag = Tag(name="one")
        tag.uses = -5
        with pytest.raises(ValidationFailed):
            await server.db(Tag).create(tag)
        assert await server.db(Tag).count() == 0


async def test_duplicates_name_the_column(database_url: str) -> None:
    server = tags()
    async with client(server, database=database_url):
        await server.db(Tag).create(name="one")
        with pytest.raises(ConstraintViolation) as caught:
            await server.db(Tag).create(name="one")
        assert (caught.value.table, caught.value.columns) == ("tags", ("name",))


async def test_a_filter_or_sort_on_a_field_that_does_not_exist_is_refused(sqlite_url: str) -> None:
    server = tags()
    async with client(server, database=sqlite_url):
        db = server.db(Tag)
        for ask in (db.list, db.count, db.exists):
            with pytest.raises(InvalidQuery, match="nmae"):
                await ask({"nmae": "x"})
        with pytest.raises(InvalidQuery, match="nmae"):
            await db.list(sorts="nmae")
        with pytest.raises(InvalidQuery, match="sideways"):
            await db.list(sorts="name:sideways")
        with pytest.raises(InvalidQuery, match="resembles"):
            await db.list([("name", "resembles", "x")])


async def test_times_come_from_the_servers_clock(database_url: str) -> None:
    clock = FakeClock(datetime(2026, 5, 1, 12, tzinfo=UTC))
    server = tags(clock=clock)
    async with client(server, database=database_url):
        tag = await server.db(Tag).create(name="one")
        clock.advance(timedelta(hours=1))
        changed = await server.db(Tag).update(tag.id, uses=1)
        clock.advance(timedelta(hours=1))
        again = await server.db(Tag).increment(tag.id, uses=1)
        noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
        assert (tag.created_at, tag.updated_at) == (noon, noon)
        assert (changed.created_at, changed.updated_at) == (noon, noon + timedelta(hours=1))
        assert (again.created_at, again.updated_at) == (noon, noon + timedelta(hours=2))


async def test_fifty_increments_at_once_all_land(database_url: str) -> None:
    server = tags()
    async with client(server, database=database_url):
        db = server.db(Tag)
        tag = await db.create(name="one", price=Decimal("0.10"))
        await asyncio.gather(*(db.increment(tag.id, uses=2, score=0.5) for _ in range(50)))
        await asyncio.gather(*(db.increment(tag.id, price=Decimal("0.10"), uses=1) for _ in range(20)))
        found = await db.read(tag.id)
        assert (found.uses, found.score, found.price) == (120, 25.0, Decimal("2.10"))


async def test_an_increment_out_of_bounds_writes_nothing_and_says_which_field(database_url: str) -> None:
    server = tags()
    async with client(server, database=database_url):
        db = server.db(Tag)
        tag = await db.create(name="one", uses=10)
        for deltas in ({"uses": -11}, {"uses": 991}, {"uses": 2**63 - 1}, {"price": Decimal("-0.01")}):
            with pytest.raises(ValidationFailed) as caught:
                await db.increment(tag.id, **deltas)
            assert isinstance(caught.value.details, list)
            assert [d["field"] for d in caught.value.details] == list(deltas)
        for many in ({"uses": -11, "score": 1.0}, {"uses": -11, "price": 1}):
            with pytest.raises(ValidationFailed):
                await db.increment(tag.id, **many)
        assert await db.read(tag.id) == tag
        assert (await db.increment(tag.id, uses=-10)).uses == 0


async def test_of_many_decrements_only_as_many_as_there_are_succeed(database_url: str) -> None:
    server = tags()
    async with client(server, database=database_url):
        db = server.db(Tag)
        tag = await db.create(name="one", uses=5)
        takers = (db.increment(tag.id, uses=-1) for _ in range(12))
        outcomes = await asyncio.gather(*takers, return_exceptions=True)
        assert sum(isinstance(outcome, Tag) for outcome in outcomes) == 5
        assert sum(isinstance(outcome, ValidationFailed) for outcome in outcomes) == 7
        assert (await db.read(tag.id)).uses == 0


@pytest.mark.parametrize(
    "deltas",
    [
        {"name": 1},
        {"nothing": 1},
        {"uses": 1.5},
        {"uses": "1"},
        {"uses": True},
        {"uses": 2**70},
        {"score": float("nan")},
        {"score": float("inf")},
        {"score": 10**400},
        {"score": 1e308},
        {"price": float("inf")},
        {"limit": 1},
        {"rate": Decimal(1)},
    ],
)
async def test_an_increment_that_makes_no_number_is_refused(
    database_url: str, deltas: dict[str, Any]
) -> None:
    server = tags()
    async with client(server, database=database_url):
        tag = await server.db(Tag).create(name="one", score=1e308)
        with pytest.raises(ValidationFailed):
            await server.db(Tag).increment(tag.id, **deltas)
        assert await server.db(Tag).read(tag.id) == tag


async def test_a_decimal_is_added_in_the_transaction_handed_over(database_url: str) -> None:
    server = tags()
    async with client(server, database=database_url):
        tag = await server.db(Tag).create(name="one")

        async def add(tx: Tx) -> None:
            await server.db(Tag, tx).increment(tag.id, price=Decimal("1.5"))

        async def add_and_fail() -> None:
            async with server.transaction() as tx:
                # A task with a context of its own finds no transaction but the one it is given.
                await asyncio.get_running_loop().create_task(add(tx), context=Context())
                raise KeyError("changed my mind")

        with pytest.raises(KeyError):
            await add_and_fail()
        assert (await server.db(Tag).read(tag.id)).price == 0
