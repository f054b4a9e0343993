"""D23, and the write seam behind it: every committed write is told, wherever it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from maniflex import Model, Server, field, scheduled
from maniflex.db.port import Tx
from maniflex.db.write_seam import Change
from maniflex.middleware import db
from maniflex.testing import FakeClock, client
from tests.catalogue.caches.world import Org, Owner, Project, asking, cached


class Post(Model, table="posts", soft_delete=True):
    status: str = "draft"
    publish_at: datetime | None = scheduled(default=None, set_field="status", to="published")
    expires_at: datetime | None = scheduled(default=None, soft_delete=True)


class Setting(Model, table="settings", singleton=True):
    theme: str = "light"


class Ring(Model, table="rings", soft_delete=True, restore=True):
    next_id: str | None = field(default=None, relation="Ring", on_delete="cascade")


@pytest.mark.parametrize("name", ["publish_at", "expires_at"])
async def test_a_sweep_of_scheduled_fields_is_noticed(database_url: str, name: str) -> None:
    server = Server(path_prefix="")
    server.register(Post)
    server.pipeline.db.register(db.cache_query(ttl=86400))
    async with asking(server, database_url) as world:
        due = (world.clock.now() + timedelta(minutes=1)).isoformat()
        await world.make("/posts", **{name: due})
        await world.get("/posts")
        world.clock.advance(timedelta(minutes=2))
        assert await world.hits("/posts")
        await server.scheduled.runner().sweep()
        assert not await world.hits("/posts")


async def test_a_singleton_is_cached_and_its_change_noticed(database_url: str) -> None:
    server = Server(path_prefix="")
    server.register(Setting)
    server.pipeline.db.register(db.cache_query())
    async with asking(server, database_url) as world:
        await world.get("/settings")
        first, _ = await world.get("/settings")
        assert await world.hits("/settings")
        await world.http.patch("/settings", json={"theme": "dark"})
        answer, _ = await world.get("/settings")
        assert (first.json()["data"]["theme"], answer.json()["data"]["theme"]) == ("light", "dark")


async def test_a_write_by_another_process_is_noticed(database_url: str) -> None:
    """The tokens are in the shared store, so it does not matter who wrote."""
    clock = FakeClock()
    async with (
        asking(cached(), database_url) as world,
        client(cached(), database=database_url, clock=clock) as other,
    ):
        await world.get("/projects")
        assert await world.hits("/projects")
        assert (await other.post("/projects", json={"name": "p"})).status_code == 201
        answer, _ = await world.get("/projects")
        assert answer.json()["meta"]["total"] == 1


class Noting:
    """A listener that keeps what it is told."""

    needs_rows = False

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.fails = False

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        self.told += [(change.meta.name, str(change.operation)) for change in changes]
        if self.fails:
            raise RuntimeError("no")


def told(server: Server) -> Noting:
    noting = Noting()
    for store in server._seal().runtime.stores.values():
        store.seam.listen(noting)
    return noting


async def test_each_write_is_told_with_what_was_done(database_url: str) -> None:
    server = Server(path_prefix="")
    server.register(Org, Project, Owner)
    async with client(server, database=database_url) as http:
        noting = told(server)
        owner = await server.db(Owner).create(name="Ada")
        org = await server.db(Org).create(name="o")
        project = await server.db(Project).create(name="p", owner_id=owner.id, org_id=org.id)
        noting.told.clear()
        steps: list[tuple[Any, list[tuple[str, str]]]] = [
            (server.db(Project).update(project.id, name="q"), [("Project", "update")]),
            (server.db(Project).increment(project.id, stars=1), [("Project", "update")]),
            (server.db(Project).delete(project.id), [("Project", "delete")]),
            (http.post(f"/projects/{project.id}/restore"), [("Project", "restore")]),
            (server.db(Owner).delete(owner.id), [("Owner", "delete"), ("Project", "update")]),
            (server.db(Org).delete(org.id), [("Org", "delete"), ("Project", "delete")]),
        ]
        for work, expected in steps:
            await work
            assert noting.told == expected
            noting.told.clear()


async def test_what_a_listener_raises_rolls_the_write_back(database_url: str) -> None:
    server = Server(path_prefix="")
    server.register(Owner)
    async with client(server, database=database_url):
        noting = told(server)
        noting.fails = True
        with pytest.raises(RuntimeError):
            await server.db(Owner).create(name="Ada")
        assert await server.db(Owner).count() == 0


async def test_a_circle_that_comes_back_is_told(database_url: str) -> None:
    server = Server(path_prefix="")
    server.register(Ring)
    async with client(server, database=database_url):
        one = await server.db(Ring).create()
        other = await server.db(Ring).create(next_id=one.id)
        await server.db(Ring).update(one.id, next_id=other.id)
        await server.db(Ring).delete(one.id)
        noting = told(server)
        await server.db(Ring).restore(one.id)
        assert ("Ring", "restore") in noting.told
        assert await server.db(Ring).count() == 2
