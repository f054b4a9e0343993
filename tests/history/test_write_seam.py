"""W1-W6: every stored change is told inside its transaction, with the rows before and after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, Run, Server, field, scheduled
from maniflex._caller import caller
from maniflex.db import write_seam
from maniflex.db.port import Tx
from maniflex.db.write_seam import Change
from maniflex.testing import FakeClock, client


class Shelf(Model, table="seam_shelves", soft_delete=True, restore=True):
    name: str = ""


class Book(Model, table="seam_books", soft_delete=True, restore=True):
    title: str = ""
    secret: str = field(default="", hidden=True)
    stars: int = 0
    price: Decimal = Decimal("1.50")
    shelf_id: str | None = field(default=None, relation="Shelf", on_delete="cascade")
    fan_id: str | None = field(default=None, relation="Fan", on_delete="set_null")
    publish_at: datetime | None = scheduled(default=None, set_field="title", to="published")
    expires_at: datetime | None = scheduled(default=None, hard_delete=True)


class Fan(Model, table="seam_fans"):
    name: str = ""


class Ring(Model, table="seam_rings", soft_delete=True, restore=True):
    next_id: str | None = field(default=None, relation="Ring", on_delete="cascade")


class Setting(Model, table="seam_settings", singleton=True):
    theme: str = "light"


@dataclass
class Told:
    """One change as the tests look at it."""

    model: str
    operation: str
    source: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    actor: str | None
    request: str | None
    reason: str | None

    @property
    def changed(self) -> dict[str, Any]:
        """What differs, but for the time of the change."""
        before, after = self.before or {}, self.after or {}
        names = (before | after).keys() - {"updated_at", "created_at", "id"}
        return {n: after.get(n) for n in names if before.get(n) != after.get(n)}


class Keeping:
    """A listener that keeps what it is told."""

    needs_rows = True

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.batches: list[int] = []
        self.fails = False

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        self.batches.append(len(changes))
        for change in changes:
            names = [f.name for f in change.meta.fields]
            before, after = (
                None if row is None else dict(zip(names, row, strict=True))
                for row in (change.before, change.after)
            )
            who = caller()
            told = Told(
                change.meta.name,
                str(change.operation),
                str(change.source),
                before,
                after,
                who.actor_id,
                who.request_id,
                who.reason,
            )
            self.told.append(told)
            for row in (before, after):
                assert row is None or row["id"] == change.id
        if self.fails:
            raise RuntimeError("no")

    def take(self) -> list[Told]:
        told, self.told = self.told, []
        return told

    def brief(self) -> list[tuple[str, str, str]]:
        return [(t.model, t.operation, t.source) for t in self.take()]


@dataclass
class World:
    server: Server
    http: httpx.AsyncClient
    seam: Keeping
    clock: FakeClock


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    server, clock = Server(path_prefix=""), FakeClock()
    server.register(Shelf, Book, Fan, Ring, Setting)

    @server.action("POST", "/books/{id}/rename")
    async def rename(ctx: Context) -> None:
        ctx.change_reason = "asked by phone"
        await ctx.db(Book).update(ctx.url_param("id"), title="renamed")

    @server.work.handler("rename.v1")
    async def write(run: Run) -> None:
        await server.db(Book).create(title="of a run")

    seam = Keeping()
    async with client(server, database=database_url, clock=clock) as http:
        for store in server._seal().runtime.stores.values():
            store.seam.listen(seam)
        yield World(server, http, seam, clock)


async def test_a_request_tells_the_rows_before_and_after(world: World) -> None:
    made = await world.http.post("/seam_books", json={"title": "a"}, headers={"x-request-id": "req-1"})
    book = made.json()["data"]["id"]
    [create] = world.seam.take()
    assert (create.operation, create.source, create.before, create.request) == (
        "create",
        "request",
        None,
        "req-1",
    )
    assert (create.after or {})["title"] == "a"
    await world.http.patch(f"/seam_books/{book}", json={"title": "b", "price": "2.25"})
    [update] = world.seam.take()
    assert update.before == create.after
    assert update.changed == {"title": "b", "price": Decimal("2.25")}
    await world.http.delete(f"/seam_books/{book}")
    [delete] = world.seam.take()
    assert (delete.operation, delete.before) == ("delete", update.after)
    assert delete.changed.keys() == {"deleted_at"}
    await world.http.post(f"/seam_books/{book}/restore")
    [restore] = world.seam.take()
    assert (restore.operation, restore.before) == ("restore", delete.after)
    assert restore.changed == {"deleted_at": None}


async def test_code_tells_who_and_why(world: World) -> None:
    book = await world.server.db(Book).create(title="a")
    with world.server.acting_as("ada", reason="clean-up"):
        await world.server.db(Book).increment(book.id, stars=2)
        await world.server.db(Book).increment(book.id, price=Decimal("0.25"))
    create, stars, price = world.seam.take()
    assert (create.source, create.actor, create.reason) == ("code", None, None)
    assert (stars.changed, stars.actor, stars.reason) == ({"stars": 2}, "ada", "clean-up")
    assert price.changed == {"price": Decimal("1.75")}
    await world.http.post(f"/books/{book.id}/rename")
    [rename] = world.seam.take()
    assert (rename.source, rename.reason, rename.changed) == (
        "action",
        "asked by phone",
        {"title": "renamed"},
    )


async def test_a_run_tells_for_whom_it_was_submitted(world: World) -> None:
    with world.server.acting_as("ada", reason="of the script"):
        run = await world.server.work.submit("rename.v1")
    await world.server.work.worker().drain()
    [create] = world.seam.take()
    who = (create.source, create.actor, create.request, create.reason)
    assert who == ("run", "ada", f"run:{run.id}", None)


async def test_a_cascade_tells_every_row_in_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_seam, "BATCH", 3)
    shelf, fan = await world.server.db(Shelf).create(), await world.server.db(Fan).create()
    kept = await world.server.db(Book).create(fan_id=fan.id)
    for _ in range(7):
        await world.server.db(Book).create(shelf_id=shelf.id, fan_id=fan.id)
    world.seam.take()
    world.seam.batches.clear()
    await world.server.db(Shelf).delete(shelf.id)
    assert sorted(world.seam.brief()) == [("Book", "delete", "cascade")] * 7 + [("Shelf", "delete", "code")]
    assert max(world.seam.batches) == 3
    await world.server.db(Fan).delete(fan.id)
    told = world.seam.take()
    assert (told[0].model, told[0].operation, told[0].after) == ("Fan", "delete", None)
    assert [(t.operation, t.source, t.changed) for t in told[1:]] == [
        ("update", "set_null", {"fan_id": None})
    ] * 8  # the deleted ones too: their reference leads nowhere
    row = await world.server.db(Book).read(kept.id)
    assert [t.after["updated_at"] for t in told[1:] if t.after and t.after["id"] == kept.id] == [
        row.updated_at
    ]


async def test_a_sweep_tells_what_it_sets_and_removes(world: World) -> None:
    soon = world.clock.now() + timedelta(minutes=1)
    await world.server.db(Book).create(title="a", publish_at=soon)
    gone = await world.server.db(Book).create(title="b", expires_at=soon)
    world.seam.take()
    world.clock.advance(timedelta(minutes=2))
    with world.server.acting_as("ada"):
        await world.server.scheduled.runner().sweep()
    told = {t.operation: t for t in world.seam.take()}
    assert {(t.source, t.actor) for t in told.values()} == {("sweep", None)}
    assert told["update"].changed == {"title": "published"}
    assert (told["delete"].before or {})["id"] == gone.id
    assert told["delete"].after is None


async def test_a_singletons_first_row_is_told_once(world: World) -> None:
    await world.http.get("/seam_settings")
    await world.http.get("/seam_settings")
    assert world.seam.brief() == [("Setting", "create", "provision")]
    await world.http.patch("/seam_settings", json={"theme": "dark"})
    assert world.seam.brief() == [("Setting", "update", "request")]


async def test_a_circle_that_comes_back_is_told_row_by_row(world: World) -> None:
    one = await world.server.db(Ring).create()
    other = await world.server.db(Ring).create(next_id=one.id)
    await world.server.db(Ring).update(one.id, next_id=other.id)
    await world.server.db(Ring).delete(one.id)
    world.seam.take()
    await world.server.db(Ring).restore(one.id)
    told = world.seam.take()
    assert [(t.operation, t.source, t.changed) for t in told] == [
        ("restore", "cascade", {"deleted_at": None}),
        ("restore", "code", {"deleted_at": None}),
    ]


async def test_what_a_listener_raises_leaves_nothing_written(world: World) -> None:
    shelf = await world.server.db(Shelf).create(name="s")
    book = await world.server.db(Book).create(title="a", shelf_id=shelf.id)
    world.seam.fails = True
    refused = [
        await world.http.post("/seam_books", json={}),
        await world.http.patch(f"/seam_books/{book.id}", json={"title": "b"}),
        await world.http.delete(f"/seam_books/{book.id}"),
        await world.http.delete(f"/seam_shelves/{shelf.id}"),
    ]
    world.seam.fails = False
    assert {answer.status_code for answer in refused} == {500}
    assert [b.title for b in await world.server.db(Book).list()] == ["a"]
    assert await world.server.db(Shelf).count() == 1


async def test_each_of_many_writers_tells_the_row_it_found(world: World) -> None:
    """Under the row's lock: the next writer's `before` is what the one before it left."""
    book = await world.server.db(Book).create(title="0")
    world.seam.take()
    work = [world.http.patch(f"/seam_books/{book.id}", json={"title": str(n)}) for n in range(1, 21)]
    assert {answer.status_code for answer in await asyncio.gather(*work)} == {200}
    titles = [(t.before or {})["title"] for t in world.seam.told] + [
        (world.seam.told[-1].after or {})["title"]
    ]
    for told, following in zip(world.seam.told, world.seam.told[1:], strict=False):
        assert told.after == following.before
    assert titles[0] == "0"
    assert len(set(titles)) == 21


async def test_a_refused_write_tells_nothing(world: World) -> None:
    assert (await world.http.post("/seam_books", json={"stars": "x"})).status_code == 422
    assert (await world.http.patch("/seam_books/none", json={"title": "x"})).status_code == 404
    assert (await world.http.delete("/seam_books/none")).status_code == 404
    assert world.seam.take() == []
