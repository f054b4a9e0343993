"""Every way a row changes makes its events, in one transaction with it; what is rolled back makes none."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, Server, WithDeletedAt, field, has_many, many_to_many, scheduled
from maniflex.encryption import MemoryKeyProvider
from maniflex.middleware import idempotency
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.http import data_of


class Team(Model, events=True):
    name: str = field(default="", unique=True, filterable=True)
    people: list[Person] = has_many()
    notes: list[Note] = has_many()
    labels: list[Label] = many_to_many(through="TeamLabel")


class Person(Model, events=True):
    team_id: str | None = field(default=None, on_delete="set_null", relation=Team)
    name: str = field(default="")


class Note(Model, WithDeletedAt, events=True):
    team_id: str | None = field(default=None, on_delete="cascade", relation=Team)
    text: str = field(default="")
    count: int = field(default=0)
    publish_at: datetime | None = scheduled(default=None, set_field="text", from_="draft", to="public")


class Label(Model, events=True):
    name: str = field(default="")
    teams: list[Team] = many_to_many(through="TeamLabel")


class TeamLabel(Model, events=True):
    team_id: str = field(relation=Team, on_delete="cascade")
    label_id: str = field(relation=Label, on_delete="cascade")


class Old(Model, events=True, retention="1d"):
    text: str = field(default="")


class Shop(Model, singleton=True, table="shop", events=True):
    title: str = field(default="new")


MODELS = (Team, Person, Note, Label, TeamLabel, Old, Shop)


@dataclass
class Site:
    """A server, its client and its clock."""

    server: Server
    http: httpx.AsyncClient
    clock: FakeClock

    async def types(self) -> list[str]:
        await self.server.events.drain()
        return [event.type for event in await self.server.events.read(limit=1000)]


@asynccontextmanager
async def a_site(url: str, **settings: Any) -> AsyncIterator[Site]:
    clock = FakeClock()
    server = Server(background=False, clock=clock, **settings)
    server.register(*MODELS)
    server.pipeline.deserialize.register(idempotency.keys(), models=[Team], operations=["create"], at="after")

    @server.action("POST", "/make_team")
    async def make_team(ctx: Context) -> None:
        await ctx.db(Team).create(name="by an action")

    @server.action("POST", "/fail")
    async def fail(ctx: Context) -> None:
        async with ctx.transaction():
            await ctx.db(Team).create(name="of nobody")
            ctx.abort(409, "NO", "not this time")

    async with client(server, database=url) as http:
        yield Site(server, http, clock)


async def by_rest(site: Site) -> None:
    team = data_of(await site.http.post("/api/teams", json={"name": "a"}), 201)
    data_of(await site.http.patch(f"/api/teams/{team['id']}", json={"name": "b"}))
    data_of(await site.http.patch(f"/api/teams/{team['id']}", json={"name": "b"}))
    assert (await site.http.delete(f"/api/teams/{team['id']}")).status_code == 204


async def by_code(site: Site) -> None:
    notes = site.server.db(Note)
    first = await notes.create(text="a")
    async with site.server.transaction():
        await notes.create(text="b")
    await notes.increment(first.id, count=2)
    await notes.delete(first.id)
    await notes.restore(first.id)


async def by_an_action(site: Site) -> None:
    assert (await site.http.post("/api/make_team")).status_code == 204


async def by_cascades(site: Site) -> None:
    db = site.server.db
    team = await db(Team).create(name="a")
    label = await db(Label).create(name="l")
    await db(TeamLabel).create(team_id=team.id, label_id=label.id)
    await db(Person).create(team_id=team.id)
    await db(Note).create(team_id=team.id)
    await db(Team).delete(team.id)


async def by_the_clock(site: Site) -> None:
    await site.server.db(Note).create(text="draft", publish_at=site.clock.now() + timedelta(hours=1))
    site.clock.advance(timedelta(hours=2))
    await site.server.scheduled.sweep()


async def by_retention(site: Site) -> None:
    await site.server.db(Old).create(text="x")
    site.clock.advance(timedelta(days=2))
    await site.server.retention.sweep()


async def by_provisioning(site: Site) -> None:
    assert data_of(await site.http.get("/api/shop"))["title"] == "new"
    data_of(await site.http.patch("/api/shop", json={"title": "open"}))


async def by_a_repeated_request(site: Site) -> None:
    for _ in range(3):
        headers = {"Idempotency-Key": "one-key-for-all"}
        data_of(await site.http.post("/api/teams", json={"name": "once"}, headers=headers), 201)


async def by_what_is_refused(site: Site) -> None:
    await site.server.db(Team).create(name="taken")
    assert (await site.http.post("/api/teams", json={"name": "taken"})).status_code == 409
    assert (await site.http.post("/api/teams", json={"name": 7})).status_code == 422
    assert (await site.http.post("/api/fail")).status_code == 409
    assert (await site.http.delete("/api/teams/nobody")).status_code == 404


WAYS: dict[Callable[[Site], Awaitable[None]], list[str]] = {
    by_rest: ["team.created", "team.updated", "team.deleted"],
    by_code: ["note.created", "note.created", "note.updated", "note.deleted", "note.restored"],
    by_an_action: ["team.created"],
    by_cascades: [
        *("team.created", "label.created", "team_label.created", "person.created", "note.created"),
        *("note.deleted", "person.updated", "team.deleted", "team_label.deleted"),
    ],
    by_the_clock: ["note.created", "note.updated"],
    by_retention: ["old.created", "old.deleted"],
    by_provisioning: ["shop.created", "shop.updated"],
    by_a_repeated_request: ["team.created"],
    by_what_is_refused: ["team.created"],
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_every_write_makes_its_events(
    database_url: str, way: Callable[[Site], Awaitable[None]]
) -> None:
    async with a_site(database_url) as site:
        await way(site)

        types = await site.types()

    expected_types = WAYS[way]
    if way is by_cascades:  # one transaction; its rows have no order among each other
        assert types[:5] == expected_types[:5]
        assert sorted(types[5:]) == expected_types[5:]
    else:
        assert types == expected_types


class Secretive(Model, events=True, table="secretives"):
    """Has a field of every kind that leaves no trace."""

    name: str = field(default="")
    hidden_one: str | None = field(default=None, hidden=True)
    written_one: str | None = field(default=None, writeonly=True)
    encrypted_one: str | None = field(default=None, encrypted=True)


async def test_no_secret_is_in_the_feed_the_outbox_or_the_log(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Create, update each, delete, with a function that fails over every event."""
    names = ("hidden_one", "written_one", "encrypted_one")
    server = Server(database_url, background=False, key_provider=MemoryKeyProvider())
    server.register(Secretive)

    @server.events.subscribe("*", group="g", max_retry=0)
    async def fail(event: Any) -> None:
        raise ValueError(repr(event))

    async with server.lifespan():
        with caplog.at_level(logging.DEBUG):
            records = server.db(Secretive)
            record = await records.create(name="n", **{name: f"secret-{name}-0" for name in names})
            for name in names:
                await records.update(record.id, **{name: f"secret-{name}-1"})
            await records.update(record.id, name="m", **{name: f"secret-{name}-2" for name in names})
            await records.delete(record.id)
            await server.events.publish("mine", record, outside_transaction=True)
            await server.events.drain()

        events = await server.events.read()
        tables = ("event_log", "outbox_event")
        rows = [await server.raw_query(f"SELECT * FROM {table}") for table in tables]
        text = json.dumps(rows, default=str) + caplog.text + repr(events)
        assert [event.type.partition(".")[2] for event in events] == ["created", "updated", "deleted", ""]
        assert events[1].changed == ("name",)
        assert "secret-" not in text
        assert not [name for name in names if name in text]
