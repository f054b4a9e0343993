"""A server that was sealed, served and closed is let go: no registry, cache, timer or thread keeps it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from maniflex import Context, Model, Response, Server, field, file
from maniflex.background.runs.run import Run
from maniflex.testing import client
from tests.kit.waiting import eventually
from tests.kit.whole_office import make_server

Kept = list["weakref.ReferenceType[Any]"]


async def plain(database: str) -> Kept:
    class Note(Model, export=True, soft_delete=True, versioned=True):
        title: str = field(filterable=True, sortable=True, searchable=True)

    server = Server()
    server.register(Note)
    async with client(server, database=database) as http_client:
        created = (await http_client.post("/api/notes", json={"title": "x"})).json()["data"]
        for path in ("", "?filter=title:eq:x", "?q=x", "/export", f"/{created['id']}", "/aggregate?count=id"):
            assert (await http_client.get(f"/api/notes{path}")).status_code < 500
        assert (await http_client.get("/api/openapi.json")).status_code < 500
        assert (await http_client.delete(f"/api/notes/{created['id']}")).status_code == 204
    return [weakref.ref(server), weakref.ref(Note)]


async def with_work(database: str) -> Kept:
    class Order(Model):
        number: int
        poster: str | None = file()

    server = Server(storage="memory:", metrics_enabled=True)
    server.register(Order)

    @server.work.handler("order.pay")
    async def pay(run: Run) -> None: ...

    @server.outbox.handler("order.made")
    async def made(message: Any) -> None: ...

    server.schedules.add("nightly", cron="0 3 * * *", run="order.pay")

    async def nothing() -> None: ...

    @server.observe
    def observe(seen: Any) -> None: ...

    @server.action("POST", "/pay")
    async def start(ctx: Context) -> Any:
        ctx.background(nothing)
        await server.work.submit("order.pay", {})
        return Response(202)

    async with client(server, database=database) as http_client:
        assert (await http_client.post("/api/pay")).status_code == 202
    return [weakref.ref(server), weakref.ref(Order)]


async def with_catalogue(database: str) -> Kept:
    server = make_server(database)
    async with client(server, database=None) as http:
        for path in ("teams", "tasks?include=team", "search?q=x", "tasks/aggregate?count=id"):
            assert (await http.get(f"/api/{path}", headers={"x-who": "ada"})).status_code < 500
    return [weakref.ref(server)]


async def with_panel(database: str) -> Kept:
    class Page(Model):
        title: str

    server = Server()
    server.register(Page)
    server.admin(allow_unauthenticated=True)
    async with client(server, database=database) as http_client:
        assert (await http_client.get("/admin/")).status_code < 500
        assert (await http_client.get("/admin/pages")).status_code < 500
    return [weakref.ref(server), weakref.ref(Page)]


async def with_uploads(database: str) -> Kept:
    class Film(Model):
        poster: str | None = file(default=None)

    server = Server(storage="memory:")
    server.register(Film)
    async with client(server, database=database):
        await server.files.store(b"x", filename="a.txt")
    return [weakref.ref(server), weakref.ref(Film)]


async def that_failed(database: str) -> Kept:
    class Broken(Model):
        title: str

    server = Server(database, on_start=_fail)
    server.register(Broken)
    with pytest.raises(ZeroDivisionError):
        await server.start()
    return [weakref.ref(server), weakref.ref(Broken)]


def _fail() -> None:
    raise ZeroDivisionError


async def that_was_never_started(database: str) -> Kept:
    class Idle(Model):
        title: str

    server = Server(database)
    server.register(Idle)
    server.seal()
    return [weakref.ref(server), weakref.ref(Idle)]


@pytest.mark.parametrize(
    "use", [plain, with_work, with_catalogue, with_panel, with_uploads, that_failed, that_was_never_started]
)
async def test_a_closed_server_is_collected(database_url: str, use: Callable[[str], Awaitable[Kept]]) -> None:
    kept = await use(database_url)

    def all_gone() -> bool:
        gc.collect()
        return all(one() is None for one in kept)

    await eventually(all_gone, "neither the server nor its model is alive")
