"""Once sealed, a server does not change; and it is sealed once, however many ask for it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from maniflex import Context, Model, Next, Server, field
from maniflex.errors import DeclarationError
from maniflex.testing import client


class Note(Model):
    text: str


class Late(Model):
    text: str


async def middleware(ctx: Context, next: Next) -> None:
    await next()


async def handler(ctx: Context) -> None: ...


LATE: dict[str, Callable[[Server], Any]] = {
    "model": lambda server: server.register(Late),
    "list of models": lambda server: server.register([Note, Late]),
    "action": lambda server: server.action("GET", "/late")(handler),
    "computed field": lambda server: server.computed(Note, "late")(lambda note: "late"),
    "middleware": lambda server: server.pipeline.auth.register(middleware),
    "decorated middleware": lambda server: server.pipeline.db.middleware(models=[Note])(middleware),
    "service": lambda server: server.add_service(lambda: None),
    "on_start": lambda server: server.on_start(lambda: None),
    "on_shutdown": lambda server: server.on_shutdown(lambda: None),
}


@pytest.mark.parametrize("what", LATE)
async def test_nothing_can_be_added_to_a_sealed_server_and_nothing_is_left_of_the_attempt(
    what: str, sqlite_url: str
) -> None:
    server = Server(sqlite_url)
    server.register(Note)
    server.seal()
    routes = server.routes

    with pytest.raises(DeclarationError, match=r"sealed|started"):
        LATE[what](server)

    assert server.routes == routes
    async with client(server, database=sqlite_url) as http:
        created = await http.post("/api/notes", json={"text": "as before"})
        assert created.status_code == 201
        assert "late" not in created.json()["data"]
        assert (await http.get("/api/lates")).status_code == 404
        assert (await http.get("/api/late")).status_code == 404
        with pytest.raises(DeclarationError, match="Late"):
            server.db(Late)


def test_many_threads_that_seal_at_once_get_one_application() -> None:
    server = Server(":memory:")
    server.register(Note)
    gate = threading.Barrier(8)

    def seal() -> int:
        gate.wait()
        return id(server._sealed())

    with ThreadPoolExecutor(8) as threads:
        built = {future.result() for future in [threads.submit(seal) for _ in range(8)]}

    assert len(built) == 1


def numbered_middleware(number: int) -> Any:
    async def count(ctx: Context, next: Next) -> None:
        ctx.state.setdefault("ran", []).append(number)
        await next()

    return count


def racing_middleware(server: Server, number: int) -> None:
    server.pipeline.auth.register(numbered_middleware(number))


def racing_computed(server: Server, number: int) -> None:
    server.computed(Note, f"c{number}")(lambda note: number)


def racing_action(server: Server, number: int) -> None:
    server.action("GET", f"/a{number}")(handler)


@pytest.mark.parametrize("register", [racing_middleware, racing_computed, racing_action])
async def test_a_registration_that_races_with_sealing_is_either_whole_or_refused(
    register: Callable[[Server, int], None],
) -> None:
    for _ in range(15):
        server = Server(":memory:")
        server.register(Note)

        @server.action("GET", "/ran")
        async def ran(ctx: Context) -> list[int]:
            return list(ctx.state.get("ran", []))

        gate = threading.Barrier(2)
        accepted: list[int] = []

        def add(server: Server, gate: threading.Barrier, accepted: list[int]) -> None:
            gate.wait()
            for number in range(100_000):
                try:
                    register(server, number)
                except DeclarationError:
                    return
                accepted.append(number)

        thread = threading.Thread(target=add, args=(server, gate, accepted))
        thread.start()
        gate.wait()
        server.seal()
        thread.join()

        async with client(server) as http:
            note = (await http.post("/api/notes", json={"text": "x"})).json()["data"]
            seen = {
                "racing_middleware": (await http.get("/api/ran")).json()["data"],
                "racing_computed": [int(name[1:]) for name in note if name[1:].isdigit()],
                "racing_action": [int(p[6:]) for _, p, _ in server.routes if p[6:].isdigit()],
            }
        assert seen[register.__name__] == accepted


async def test_an_invalid_app_migrates_nothing_and_creates_no_file(tmp_path: Path) -> None:
    server = Server(f"sqlite:///{tmp_path}/app.db")
    server.register(Note)
    server.pipeline.auth.register(middleware, models=["Nte"])

    with pytest.raises(DeclarationError, match="did you mean 'Note'"):
        await server.start()

    assert os.listdir(tmp_path) == []


async def test_an_invalid_app_leaves_an_existing_schema_alone(postgres_url: str) -> None:
    first = Server(postgres_url)
    first.register(Note)
    async with first.lifespan():
        pass

    class Extra(Model):
        text: str

    second = Server(postgres_url)
    second.register(Note, Extra)
    second.action("GET", "/notes")(handler)  # taken by the model
    with pytest.raises(DeclarationError, match="GET /api/notes: both Note and action handler"):
        await second.start()

    async with Server(postgres_url).lifespan() as reader:
        tables = await reader.raw_query("SELECT tablename AS t FROM pg_tables WHERE schemaname = 'public'")
    assert [row["t"] for row in tables] == ["notes"]


async def test_a_server_that_was_refused_is_refused_again_and_still_open() -> None:
    server = Server(":memory:")
    server.register(Note)

    @server.action("GET", "/notes", name="mine")
    async def mine(ctx: Context) -> None: ...

    for _ in range(2):
        with pytest.raises(DeclarationError, match="mine"):
            server.seal()
    server.pipeline.service.register(middleware)  # still open


def test_every_problem_of_an_app_is_in_one_message() -> None:
    class Bad(Model):
        age: int = field(min=9, max=1)
        ghost_id: str = field(relation="Ghost")

    class Worse(Model):
        text: str = field(min=3)

    server = Server("sqlite:///app.db")
    server.register(Bad, Worse)
    server.action("FETCH", "no-slash")(handler)

    with pytest.raises(DeclarationError) as refused:
        server.seal()

    text = str(refused.value)
    for part in ("Bad.age", "Worse.text", "FETCH", "/orders/{id}/cancel"):
        assert part in text


def test_a_model_whose_database_is_no_address_is_named() -> None:
    class Elsewhere(Model, database="mysql://root:hunter2@db/x"):
        text: str

    class Nowhere(Model, database=5):
        text: str

    server = Server(":memory:")
    server.register(Elsewhere, Nowhere)

    with pytest.raises(DeclarationError) as refused:
        server.seal()

    assert "Elsewhere: database: " in str(refused.value)
    assert "Nowhere: database: " in str(refused.value)
    assert "hunter2" not in str(refused.value)


async def test_the_database_cannot_be_swapped_under_a_running_server(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    server.register(Note)
    async with server.lifespan():
        with pytest.raises(Exception, match="cannot change its database"), server.on_database(":memory:"):
            raise AssertionError("it must not be lent out")
        with pytest.raises(AttributeError):
            server.config.database = ":memory:"  # type: ignore[misc]
        await server.db(Note).create(text="still here")
        assert await server.db(Note).count() == 1


async def test_sealing_says_nothing_about_an_app_that_is_right(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(":memory:")
    server.register(Note)
    server.seal()

    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
