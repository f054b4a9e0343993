"""Fields made for the answer: one that fails loses only itself."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

import pytest

from maniflex import Context, DeclarationError, Model, Server, field
from maniflex.pipeline import threads
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of
from tests.kit.waiting import PATIENCE


class Person(Model):
    first: str
    last: str = ""
    secret: str = field(default="s3cret", hidden=True)


def people() -> Server:
    server = Server()
    server.register(Person)
    return server


async def everywhere(server: Server, database: str, name: str) -> list[Any]:
    """The field as it appears on create, read, update and in a list of three."""
    async with client(server, database=database) as http:
        first = await http.post("/api/people", json={"first": "Ada", "last": "L"})
        for other in ("Bob", "Cy"):
            await created(http, "/api/people", first=other)
        one = f"/api/people/{data_of(first, 201)['id']}"
        read, changed = await http.get(one), await http.patch(one, json={"last": "L"})
        rows = [r.json()["data"] for r in (first, read, changed)]
        listed = (await http.get("/api/people")).json()
        assert listed["meta"]["total"] == 3
        assert all({"id", "first", "last", "created_at"} <= row.keys() for row in rows + listed["data"])
        assert "s3cret" not in first.text + read.text
        return [row.get(name, "missing") for row in rows + listed["data"]]


async def test_a_field_is_computed_for_every_row_of_every_answer(database_url: str) -> None:
    server = people()

    @server.computed(Person, "name")
    async def name(person: Person) -> str:
        return f"{person.first} {person.last}".strip()

    assert await everywhere(server, database_url, "name") == ["Ada L"] * 4 + ["Bob", "Cy"]


async def test_a_plain_function_runs_in_a_thread_and_may_take_the_context(database_url: str) -> None:
    server = people()

    @server.computed(Person, "seen")
    def seen(ctx: Context, person: Person) -> list[Any]:
        return [str(ctx.operation), person.first, threading.current_thread() is threading.main_thread()]

    values = await everywhere(server, database_url, "seen")
    assert values[:3] == [["create", "Ada", False], ["read", "Ada", False], ["update", "Ada", False]]
    assert values[3:] == [["list", name, False] for name in ("Ada", "Bob", "Cy")]


async def test_a_batch_field_is_asked_once_for_a_whole_page(database_url: str) -> None:
    server = people()
    calls: list[int] = []

    @server.computed(Person, "place", batch=True)
    async def place(ctx: Context, persons: list[Person]) -> list[str]:
        calls.append(len(persons))
        return [f"{ctx.model.name} {n} {p.first}" for n, p in enumerate(persons)]

    values = await everywhere(server, database_url, "place")
    assert values[3:] == ["Person 0 Ada", "Person 1 Bob", "Person 2 Cy"]
    assert calls[-1] == 3


async def test_a_failing_field_loses_only_itself_on_its_row(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = people()

    @server.computed(Person, "fragile")
    async def fragile(person: Person) -> str:
        if person.first == "Bob":
            raise RuntimeError("not Bob")
        return person.first

    @server.computed(Person, "sturdy")
    def sturdy(person: Person) -> str:
        return person.first

    values = await everywhere(server, database_url, "fragile")
    assert values == ["Ada"] * 4 + ["missing", "Cy"]
    assert "not Bob" in caplog.text
    assert "Person.fragile" in caplog.text


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_failing_batch_field_is_left_out_of_every_row(database_url: str, asynchronous: bool) -> None:
    server = people()

    async def fails(persons: list[Person]) -> list[str]:
        raise RuntimeError("no")

    def fails_too(persons: list[Person]) -> list[str]:
        raise RuntimeError("no")

    server.computed(Person, "broken", batch=True)(fails if asynchronous else fails_too)
    assert await everywhere(server, database_url, "broken") == ["missing"] * 6


@pytest.mark.parametrize("answer", [[], ["a"], ["a", "b", "c", "d"], None, 5])
async def test_a_batch_field_of_the_wrong_count_is_left_out_rather_than_misaligned(
    sqlite_url: str, answer: Any
) -> None:
    server = people()
    server.computed(Person, "odd", batch=True)(lambda persons: answer if len(persons) == 3 else ["x"])
    assert (await everywhere(server, sqlite_url, "odd"))[3:] == ["missing"] * 3


async def test_a_value_that_cannot_be_sent_loses_only_itself(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = people()
    server.computed(Person, "odd")(lambda person: object() if person.first == "Bob" else "fine")
    assert await everywhere(server, database_url, "odd") == ["fine"] * 4 + ["missing", "fine"]
    assert "Person.odd" in caplog.text


async def test_values_of_every_kind_are_written_as_json(sqlite_url: str) -> None:
    server = people()
    value = {"price": Decimal("1.50"), "tags": {"a"}, "none": None, "self": None}

    @server.computed(Person, "rich")
    async def rich(person: Person) -> Any:
        return {**value, "self": person}

    async with client(server, database=sqlite_url) as http:
        record = await created(http, "/api/people", first="Ada")
    shown = record.pop("rich")
    assert shown == {"price": "1.50", "tags": ["a"], "none": None, "self": record}


async def test_many_rows_do_not_deadlock(database_url: str) -> None:
    server = people()

    @server.computed(Person, "others")
    async def others(ctx: Context, person: Person) -> int:
        return await ctx.db(Person).count()

    @server.computed(Person, "blocking")
    def blocking(person: Person) -> int:
        return 1

    async with client(server, database=database_url) as http:
        for number in range(60):
            await server.db(Person).create(first=str(number))
        rows = data_of(await http.get("/api/people?limit=60"))
        assert [row["others"] for row in rows] == [60] * 60


async def page_of(server: Server, database: str, count: int) -> list[Any]:
    async with client(server, database=database) as http:
        for number in range(count):
            await server.db(Person).create(first=str(number))
        rows: list[Any] = data_of(await http.get(f"/api/people?limit={count}"))
        assert len(rows) == count
        return rows


async def test_a_plain_function_goes_to_a_thread_once_for_a_whole_page(sqlite_url: str) -> None:
    server = people()
    visit: ContextVar[object | None] = ContextVar("visit", default=None)
    visits: list[object] = []

    @server.computed(Person, "name")
    def name(person: Person) -> str:
        if visit.get() is None:
            visits.append(object())
            visit.set(visits[-1])
        if person.first == "7":
            raise RuntimeError("not this one")
        return person.first

    rows = await page_of(server, sqlite_url, 40)
    assert [row.get("name", "7") for row in rows] == [row["first"] for row in rows]
    assert len(visits) == 1


async def test_a_plain_function_that_hands_out_coroutines_is_awaited(sqlite_url: str) -> None:
    server = people()

    async def later(person: Person) -> str:
        await asyncio.sleep(0)
        return person.first

    server.computed(Person, "name")(lambda person: later(person) if person.last == "" else person.last)
    rows = await page_of(server, sqlite_url, 40)
    assert [row["name"] for row in rows] == [row["first"] for row in rows]


async def test_rows_that_wait_for_nothing_need_no_task_each(sqlite_url: str) -> None:
    server = people()
    tasks: set[object] = set()

    @server.computed(Person, "name")
    async def name(person: Person) -> str:
        tasks.add(asyncio.current_task())
        return person.first

    rows = await page_of(server, sqlite_url, 40)
    assert [row["name"] for row in rows] == [row["first"] for row in rows]
    assert len(tasks) == 1


async def test_rows_that_wait_do_so_together_but_not_all_at_once(sqlite_url: str) -> None:
    server = people()
    waiting = most = 0

    @server.computed(Person, "name")
    async def name(person: Person) -> str:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        for _ in range(10):
            await asyncio.sleep(0)
        waiting -= 1
        return person.first

    rows = await page_of(server, sqlite_url, 40)
    assert [row["name"] for row in rows] == [row["first"] for row in rows]
    assert 1 < most < 20


async def test_the_rest_of_a_page_is_left_when_its_request_has_ended(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "AT_ONCE", 1)
    server = Server(query_timeout=0.3)
    server.register(Person)
    release = threading.Event()
    reached: list[str] = []

    @server.computed(Person, "slow")
    def slow(person: Person) -> None:
        reached.append(person.first)
        release.wait(30)

    @server.action("GET", "/free")
    def free(ctx: Context) -> bool:
        return True

    async with client(server, database=sqlite_url) as http:
        for number in range(3):
            await server.db(Person).create(first=str(number))
        error_of(await http.get("/api/people"), 504, "TIMEOUT")
        release.set()
        async with asyncio.timeout(PATIENCE):
            while (await http.get("/api/free")).status_code == 504:
                pass  # the only thread is not back yet
    assert len(reached) == 1


@pytest.mark.parametrize("name", ["first", "id", "secret"])
def test_a_computed_field_cannot_hide_a_stored_one(name: str) -> None:
    server = people()
    server.computed(Person, name)(len)
    with pytest.raises(DeclarationError, match=name):
        server.seal()


def test_a_computed_field_of_a_model_that_is_not_registered_stops_the_start() -> None:
    class Stranger(Model):
        name: str

    server = people()
    server.computed(Stranger, "x")(len)
    with pytest.raises(DeclarationError, match="Stranger"):
        server.seal()
