"""Handlers with `scoped=True` are bound by the caller of their run (C22, D6)."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, Run, Server
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.model import OutboxMessage
from maniflex.errors import NotFound
from maniflex.middleware import auth, db
from tests.catalogue.scopes.world import A, B, Currency, Project, bind_all, make_server, serving
from tests.kit.http import data_of


def with_runs(server: Server) -> list[Any]:
    """A scoped and a free handler that count projects and look for one of the other org."""
    seen: list[Any] = []

    async def look(run: Run) -> None:
        seen.append(await server.db(Project).count())
        try:
            await server.db(Project).read("p-b1")
        except NotFound:
            seen.append("absent")
        else:
            seen.append("there")

    server.work.handler("look.scoped", scoped=True)(look)
    server.work.handler("look.free")(look)

    @server.action("POST", "/look/{how}")
    async def submit(ctx: Context) -> Any:
        return (await server.work.submit(f"look.{ctx.url_param('how')}")).id

    return seen


async def drain(server: Server) -> None:
    await server.work.worker().drain()


async def test_a_scoped_handler_sees_the_rows_of_its_caller(database_url: str) -> None:
    """C22: the one that submitted the run, whoever works on it."""
    server = make_server(bind_all)
    seen = with_runs(server)
    async with serving(server, database_url) as http:
        for who, how, expected in (
            (A, "scoped", [3, "absent"]),
            (B, "scoped", [3, "there"]),
            (A, "free", [6, "there"]),
        ):
            seen.clear()
            id = data_of(await http.post(f"/api/look/{how}", headers=who))
            await drain(server)
            assert seen == expected
            assert (await server.work.get(id)).status == "succeeded"
        assert await server.db(Project).count() == 6  # nothing is left of the scope


async def test_a_run_without_an_org_fails_at_once(database_url: str) -> None:
    """C22: not tried again, although it has attempts left."""
    server = make_server(bind_all)
    seen = with_runs(server)
    async with serving(server, database_url):
        run = await server.work.submit("look.scoped", max_attempts=5)
        await drain(server)
        after = await server.work.get(run.id)
        assert (after.status, after.attempt, seen) == ("failed", 1, [])
        assert "scope rule" in (after.last_error or "")


async def test_writes_steps_and_plain_functions_are_bound(database_url: str) -> None:
    """D6: creates are stamped; raw SQL has no rule in it, so it is refused."""
    server = make_server(bind_all)
    seen: list[Any] = []

    @server.work.handler("write.v1", scoped=True)
    async def write(run: Run) -> None:
        made = await run.step("make", lambda: _create(server))
        seen.append(made)
        seen.append(await server.db(Currency).count())

    @server.work.handler("raw.v1", scoped=True)
    async def raw(run: Run) -> None:
        await server.raw_query("SELECT 1")

    async with serving(server, database_url):
        await server.work.submit("write.v1", actor_id="ann", tenant_id="org-a")
        failing = await server.work.submit("raw.v1", actor_id="ann", tenant_id="org-a")
        await drain(server)
        assert seen == ["org-a", 2]
        assert ((await server.work.get(failing.id)).status, (await server.work.get(failing.id)).attempt) == (
            "failed",
            1,
        )


async def _create(server: Server) -> str:
    return (await server.db(Project).create(name="made by a run")).org_id


async def test_a_part_of_a_handler_can_be_bound(database_url: str) -> None:
    server = make_server(bind_all)
    seen: list[Any] = []

    @server.work.handler("part.v1")
    async def part(run: Run) -> None:
        with run.scope():
            seen.append(await server.db(Project).count())
        seen.append(await server.db(Project).count())

    async with serving(server, database_url):
        await server.work.submit("part.v1", tenant_id="org-a")
        await drain(server)
        assert seen == [3, 6]


async def test_owners_are_the_actors_of_runs(database_url: str) -> None:
    server = make_server(
        lambda s: s.pipeline.auth.register(auth.require_owner("owner_id"), models=[Project]),
        lambda s: s.pipeline.auth.register(db.force_filter("code", db.ALL), models=[Currency]),
    )
    seen: list[Any] = []

    @server.work.handler("own.v1", scoped=True)
    async def own(run: Run) -> None:
        seen.append((await server.db(Project).count(), await server.db(Currency).count()))

    async with serving(server, database_url):
        await server.work.submit("own.v1", actor_id="ann")
        await drain(server)
        assert seen == [(2, 2)]


@pytest.mark.parametrize("value", ["yes", 1])
def test_scoped_is_a_switch(value: Any) -> None:
    server = Server()
    server.work.handler("x.v1", scoped=value)(drain)
    with pytest.raises(Exception, match="scoped is True or False"):
        server.seal()


async def test_a_scoped_message_handler_sees_the_rows_of_its_producer(database_url: str) -> None:
    """D6: a message without an org is dead at once."""
    server = make_server(bind_all)
    seen: list[Any] = []

    @server.outbox.handler("note", scoped=True)
    async def note(message: Message) -> None:
        seen.append((message.tenant_id, await server.db(Project).count()))

    @server.action("POST", "/tell")
    async def tell(ctx: Context) -> None:
        async with ctx.transaction():
            await server.outbox.enqueue("note")

    async with serving(server, database_url) as http:
        assert (await http.post("/api/tell", headers=A)).status_code == 204
        await server.outbox.drainer().drain()
        assert seen == [("org-a", 3)]
        assert (await http.post("/api/tell")).status_code == 204
        await server.outbox.drainer().drain()
        [dead] = await server.db(OutboxMessage).list({"status": "dead"})
        assert (len(seen), dead.attempts) == (1, 1)
        assert await server.db(Project).count() == 6
