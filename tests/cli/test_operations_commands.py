"""`maniflex schedules`, `outbox`, `processes` and `top`: durable work from a terminal, as processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click
import pytest

from maniflex import Server
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.schedules.cron import describe
from maniflex.cli import main
from tests.kit.commands import Commands
from tests.kit.processes import MANIFLEX, free_port, start_process
from tests.kit.waiting import until

T = TypeVar("T")

APP = """
from maniflex import Config, Server

server = Server(Config.from_env())
server.schedules.add("nightly", cron="0 2 * * *", timezone="Europe/Berlin", run="default.note")
server.schedules.add("rare", cron="5 4 1 * *", run="default.note", active=False)

@server.work.handler("default.note")
async def note(run):
    return run.payload

@server.outbox.handler("order.placed")
async def placed(message):
    raise ValueError("no luck")
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def commands(here: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(here, database_url, monkeypatch)


def asked(url: str, question: Callable[[Server], Awaitable[T]]) -> T:
    """What another process of the application would find out, or do."""

    async def ask() -> T:
        server = Server(url)
        server.work.enable()
        server.outbox.enable()
        server.schedules.enable()
        async with server.lifespan(role="client"):
            return await question(server)

    return asyncio.run(ask())


def start_once(commands: Commands) -> None:
    """Let the tables be made and the schedules be stored by a scheduler that stops again."""
    port = free_port()
    command: list[str | Path] = [MANIFLEX, "scheduler", "app:server", "--probe-port", str(port)]
    with start_process(command, port, cwd=commands.here, DB_WRITE_URL=commands.url) as process:
        process.until_up()
        until(lambda: len(commands.json("schedules", "list", "app:server")) == 2, "the schedules")


def test_schedules_are_listed_fired_paused_and_resumed(commands: Commands) -> None:
    start_once(commands)

    table = commands("schedules", "list", "app:server")
    assert "every day at 02:00 Europe/Berlin" in table
    assert [
        one["name"] for one in commands.json("schedules", "list", "app:server", "--status", "inactive")
    ] == ["rare"]
    assert commands("schedules", "pause", "app:server", "nightly") == "nightly: inactive\n"
    assert commands("schedules", "resume", "app:server", "nightly").startswith("nightly: active, next at 20")
    answer = commands("schedules", "run", "app:server", "nightly")
    shown = commands.json("schedules", "show", "app:server", "nightly")
    assert len(shown["next_times"]) == 10
    assert all("T02:00:00" in time for time in shown["next_times"])
    [firing] = shown["firings"]
    assert (firing["manual"], firing["run_id"] in answer) == (True, True)
    assert "fired by hand" in commands("schedules", "show", "app:server", "nightly")

    refusal = commands("schedules", "pause", "app:server", "nightly", "nihgtly", code=1)
    assert "nihgtly: schedule not found" in refusal
    assert "nightly: inactive" in refusal


def test_dead_messages_are_listed_and_redriven(commands: Commands) -> None:
    async def two_dead_and_one_waiting(server: Server) -> list[str]:
        ids = [
            (await server.outbox.enqueue(kind, {"n": n}, about="order/7", outside_transaction=True)).id
            for n, kind in enumerate(("order.placed", "order.paid", "order.placed"))
        ]
        for id in ids[:2]:
            await server.raw_exec(
                "UPDATE outbox_event SET status = 'dead', last_error = 'away' WHERE id = ?", id
            )
        return ids

    first, second, third = asked(commands.url, two_dead_and_one_waiting)
    dead = commands.json("outbox", "list", "app:server", "--status", "dead")
    assert {one["id"] for one in dead} == {first, second}
    assert "away" in commands("outbox", "list", "app:server", "--kind", "order.paid")
    shown = commands.json("outbox", "show", "app:server", first)
    assert (shown["payload"], shown["about"]) == ({"n": 0}, "order/7")
    assert "lease" not in shown

    refusal = commands("outbox", "redrive", "app:server", first, third, code=1)
    assert f"{third}: there is no such dead message" in refusal
    assert "1 messages wait for delivery again" in refusal
    assert commands("outbox", "redrive", "app:server", "--all", "--kind", "order.placed").startswith("0 ")
    assert commands("outbox", "redrive", "app:server", "--all").startswith("1 messages")
    assert {m.status for m in asked(commands.url, lambda s: s.db(OutboxMessage).list())} == {"pending"}
    commands("outbox", "redrive", "app:server", code=2)
    commands("outbox", "redrive", "app:server", first, "--kind", "x", code=2)


def test_a_worker_is_alive_and_then_gone(commands: Commands) -> None:
    port = free_port()
    command: list[str | Path] = [MANIFLEX, "worker", "app:server", "--probe-port", str(port)]
    with start_process(command, port, cwd=commands.here, DB_WRITE_URL=commands.url) as process:
        process.until_up()
        [row] = until(lambda: commands.json("processes", "app:server"), "its row")
        assert (row["role"], row["pid"], row["state"]) == ("worker", process.process.pid, "alive")
        assert "default.note" in row["types"]
        assert row["kinds"] == ["order.placed"]
        assert "alive" in commands("processes", "app:server")
        overview = commands.json("top", "app:server")
        assert (overview["light"], overview["sentence"]) == ("green", "all work is on time")
        process.process.terminate()
        assert process.ended() == 0
    [row] = commands.json("processes", "app:server")
    assert (row["state"], row["stopped_at"] is not None) == ("gone", True)

    run = asked(commands.url, lambda server: server.work.submit("default.note"))
    page = commands("top", "app:server")  # there is no terminal, so it looks once
    assert page.startswith(
        "red: 1 run of default.note due, and no living process takes default.note (the last"
    )
    assert "why             no living process takes default.note" in commands(
        "runs", "show", "app:server", run.id
    )


def test_where_there_is_no_database_the_commands_say_so(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(here, f"sqlite:///{here}/none.db", monkeypatch)
    for words in (["schedules", "list"], ["outbox", "list"], ["processes"], ["top"]):
        assert "it is made when the server starts" in commands(*words, "app:server", code=1)
    assert not (here / "none.db").exists()


WORDS = {
    ("*/5 * * * *", "UTC"): "every 5 minutes UTC",
    ("* * * * *", "UTC"): "every minute UTC",
    ("15 * * * *", "UTC"): "every hour at minute 15 UTC",
    ("@hourly", "UTC"): "every hour at minute 0 UTC",
    ("0 2 * * *", "Europe/Berlin"): "every day at 02:00 Europe/Berlin",
    ("30 9 * * 1-5", "UTC"): "every working day at 09:30 UTC",
    ("0 8 * * MON,thu", "UTC"): "every Monday and Thursday at 08:00 UTC",
    ("0 0 * * 7", "UTC"): "every Sunday at 00:00 UTC",
    ("0 */6 * * *", "UTC"): "every 6 hours at minute 0 UTC",
    ("5 4 1 * *", "UTC"): "on day 1 of every month at 04:05 UTC",
    ("*/7 * * * *", "UTC"): "*/7 * * * * UTC",  # not every 7 minutes: it begins anew every hour
    ("0 2 1 1 *", "UTC"): "0 2 1 1 * UTC",
    ("0 0 * * 1#2", "UTC"): "0 0 * * 1#2 UTC",
}


@pytest.mark.parametrize(("cron", "timezone"), WORDS)
def test_times_are_said_in_words_where_there_are_any(cron: str, timezone: str) -> None:
    assert describe(cron, timezone) == WORDS[cron, timezone]


def all_commands(group: click.Group, *path: str) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += all_commands(command, *path, name)
        else:
            found.append((" ".join((*path, name)), command))
    return found


@pytest.mark.parametrize(("name", "command"), all_commands(main))
def test_every_command_shows_an_example_in_its_help(name: str, command: click.Command) -> None:
    text = command.get_help(click.Context(command, info_name=f"maniflex {name}"))
    assert f"Example: maniflex {name}" in " ".join(text.split())
