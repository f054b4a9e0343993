"""`maniflex events`, and the commands that route and deliver: the feed from a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from maniflex import Server
from maniflex.background.feed.model import EventGroup
from maniflex.errors import CursorGone
from tests.kit.commands import Commands
from tests.kit.processes import MANIFLEX, free_port, start_process
from tests.kit.waiting import until

T = TypeVar("T")

APP = """
from pathlib import Path
from maniflex import Config, Model, Server

class Part(Model, events=True):
    name: str

server = Server(Config.from_env())
server.register(Part)
server.events.enable()

@server.events.subscribe("order.*", group="billing", max_retry=0)
async def bill(event):
    with (Path(__file__).parent / "seen").open("a") as file:
        print(event.type, file=file)
    if event.type == "order.bad":
        raise ValueError("no luck")
"""


@pytest.fixture
def commands(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Commands:
    (tmp_path / "app.py").write_text(APP)
    return Commands(tmp_path, database_url, monkeypatch)


def asked(url: str, question: Callable[[Server], Awaitable[T]], *groups: str) -> T:
    """What another process of the application would find out, or do."""

    async def ask() -> T:
        server = Server(url, background=False)
        server.events.enable()
        for name in groups:
            server.events.subscribe("*", group=name)(print)
        async with server.lifespan():
            return await question(server)

    return asyncio.run(ask())


def publish(url: str, *types: str) -> None:
    async def publish_all(server: Server) -> None:
        for n, type in enumerate(types):
            await server.events.publish(type, {"n": n}, subject=f"order/{n}", outside_transaction=True)

    asked(url, publish_all)


def seen(commands: Commands) -> list[str]:
    path = commands.here / "seen"
    return path.read_text().split() if path.exists() else []


def test_what_is_due_is_routed_and_delivered_once(commands: Commands) -> None:
    assert "events: 0 delivered" in commands("drain", "app:server")
    publish(commands.url, "order.placed", "other", "order.paid")

    printed = commands("drain", "app:server", "--only", "events")

    assert printed.splitlines()[-1] == "events: 2 delivered, 0 to be tried again, 0 given up"
    assert seen(commands) == ["order.placed", "order.paid"]
    publish(commands.url, "order.bad")
    commands("drain", "app:server", "--only", "runs")
    assert seen(commands) == ["order.placed", "order.paid"]
    assert "0 delivered, 0 to be tried again, 1 given up" in commands("drain", "app:server", code=1)


def test_the_feed_and_its_groups_are_shown(commands: Commands) -> None:
    commands("drain", "app:server")
    publish(commands.url, "order.placed", "other", "order.paid")
    asked(commands.url, lambda server: server.events.drain())

    [group] = commands.json("events", "groups", "app:server")
    assert (group["name"], group["kind"], group["patterns"]) == ("billing", "handler", ["order.*"])
    assert (group["position"], group["behind"], group["waiting"]) == (3, 0, 2)
    assert group["since"]
    assert "billing" in commands("events", "groups", "app:server")

    events = commands.json("events", "tail", "app:server", "order.*")
    assert [(one["type"], one["data"]) for one in events] == [
        ("order.placed", {"n": 0}),
        ("order.paid", {"n": 2}),
    ]
    [last] = commands.json("events", "tail", "app:server", "--limit", "1")
    assert (last["type"], last["sequence"]) == ("order.paid", f"{3:020d}")
    lines = commands("events", "tail", "app:server").splitlines()
    assert [line.split()[0] for line in lines] == ["position", "1", "2", "3"]
    assert "has an empty segment" in commands("events", "tail", "app:server", "a..b", code=1)


def test_a_group_is_paused_resumed_and_replayed(commands: Commands) -> None:
    commands("drain", "app:server")
    assert commands("events", "pause", "app:server", "billing") == "billing: paused\n"
    publish(commands.url, "order.placed")
    commands("drain", "app:server")
    assert seen(commands) == []

    assert commands("events", "resume", "app:server", "billing") == "billing: resumed\n"
    commands("drain", "app:server")
    assert seen(commands) == ["order.placed"]

    said = commands("events", "replay", "app:server", "billing", "--since", "2020-01-01T00:00:00Z")
    assert said == "billing: 1 events wait for it again\n"
    commands("drain", "app:server")
    assert seen(commands) == ["order.placed"] * 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("pause", "app:server", "nobody"), 1, "nobody: there is no such group"),
        (("forget", "app:server", "nobody"), 1, "there is no group 'nobody'"),
        (("replay", "app:server", "billing"), 2, "say either --after"),
        (("replay", "app:server", "billing", "--since", "now"), 2, "is a moment"),
        (("replay", "app:server", "billing", "--since", "2020-01-01T00:00:00"), 2, "time zone"),
        (("replay", "app:server", "billing", "--after", "x:1"), 1, "cannot be continued"),
        (("replay", "app:server", "nobody", "--after", "x:1"), 1, "there is no group nobody"),
    ],
)
def test_what_cannot_be_done_is_said(
    commands: Commands, arguments: tuple[str, ...], code: int, words: str
) -> None:
    commands("drain", "app:server")

    assert words in commands("events", *arguments, code=code)


def test_a_group_is_forgotten_with_what_waits_for_it(commands: Commands) -> None:
    commands("drain", "app:server")
    asked(commands.url, lambda server: server.events.route_all(), "gone")
    publish(commands.url, "order.placed")
    asked(commands.url, lambda server: server.events.route_all())
    waiting = {one["name"]: one["waiting"] for one in commands.json("events", "groups", "app:server")}

    assert commands("events", "forget", "app:server", "gone") == "gone: forgotten\n"
    refused = commands("events", "forget", "app:server", "billing", code=1)

    assert waiting == {"billing": 1, "gone": 1}
    assert "app:server has the code of billing; take that out first, and deploy" in refused
    assert [one["name"] for one in commands.json("events", "groups", "app:server")] == ["billing"]
    commands("drain", "app:server")
    assert seen(commands) == ["order.placed"]


def test_a_new_epoch_ends_the_cursors_of_before(commands: Commands) -> None:
    commands("drain", "app:server")
    cursor = asked(commands.url, lambda server: server.events.position())

    assert "all cursors of before are refused" in commands("events", "renew", "app:server")

    with pytest.raises(CursorGone):
        asked(commands.url, lambda server: server.events.read(after=cursor))


def test_a_worker_routes_and_delivers(commands: Commands) -> None:
    """A process that only works begins the groups, gives positions and hands events on."""
    port = free_port()
    command: list[str | Path] = [MANIFLEX, "worker", "app:server"]
    with start_process(command, port, cwd=commands.here, DB_WRITE_URL=commands.url):

        async def groups(server: Server) -> list[Any]:
            return await server.db(EventGroup).list()

        until(lambda: asked(commands.url, groups), "the group begins")
        publish(commands.url, "order.placed", "order.paid")
        until(lambda: len(seen(commands)) == 2, "both events are handled")


def test_an_import_makes_events(commands: Commands) -> None:
    commands("drain", "app:server")
    (commands.here / "parts.csv").write_text("name\nbolt\nnut\n")

    commands("import", "app:server", "Part", "parts.csv", "--unscoped")

    commands("drain", "app:server")
    events = commands.json("events", "tail", "app:server", "part.*")
    assert sorted(one["data"]["name"] for one in events) == ["bolt", "nut"]
    assert {one["type"] for one in events} == {"part.created"}


def test_the_feed_goes_on_in_another_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sqlite_url: str, postgres_url: str
) -> None:
    """Positions, epoch and groups are copied; what had no position gets one in the order of writing."""
    (tmp_path / "app.py").write_text(APP)
    commands = Commands(tmp_path, sqlite_url, monkeypatch)

    commands("drain", "app:server")
    publish(sqlite_url, "order.placed", "order.paid")
    commands("drain", "app:server")
    cursor = asked(sqlite_url, lambda server: server.events.position())
    publish(sqlite_url, "order.a", "order.b", "order.c")

    commands("copy", "app:server", "--from", sqlite_url, "--to", postgres_url)

    monkeypatch.setenv("DB_WRITE_URL", postgres_url)
    publish(postgres_url, "order.d")
    commands("drain", "app:server")
    assert seen(commands) == ["order.placed", "order.paid", "order.a", "order.b", "order.c", "order.d"]
    events = asked(postgres_url, lambda server: server.events.read(after=cursor))
    assert [(one.position, one.type) for one in events] == [
        (3, "order.a"),
        (4, "order.b"),
        (5, "order.c"),
        (6, "order.d"),
    ]
