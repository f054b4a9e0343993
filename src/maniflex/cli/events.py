"""`maniflex events`: look at the feed and its groups, and operate them.

The subcommands that change a group are rows of `background/commands.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

import click
from pydantic_core import to_jsonable_python

from maniflex.app.server import Server
from maniflex.background.commands import GROUP, REPLAY, Command, commands_of
from maniflex.background.feed.store import GroupStanding
from maniflex.background.parameters import span
from maniflex.background.processes.overview import count_text
from maniflex.cli.output import (
    json_option,
    limit_option,
    print_json,
    print_table,
    read_moment,
    shorten,
    target_argument,
)
from maniflex.cli.process import load_sealed, on_database
from maniflex.events.cloudevents import write_structured
from maniflex.events.event import Event

TABLES = ("event_log", "event_position", "event_group", "outbox_event")
EVENT_COLUMNS = ("position", "time", "type", "subject", "actor", "tenant")
GROUP_COLUMNS = (
    "name",
    "kind",
    "patterns",
    "position",
    "behind",
    "waiting",
    "dead",
    "lag",
    "paused",
    "served_at",
)
WIDEST_SUBJECT = 64  # room for the noun and the id of a record
group_argument = click.argument("group")


@click.group()
def events() -> None:
    """Look at the feed of events, and operate the groups that take them."""


@events.command("tail", epilog="Example: maniflex events tail app:server 'order.*' --limit 10")
@target_argument
@click.argument("patterns", nargs=-1)
@limit_option(1000)
@json_option
def tail(target: str, patterns: tuple[str, ...], limit: int, as_json: bool) -> None:
    """The latest events of these patterns, or of all, in their order; with their data in JSON alone."""
    server = load_sealed(target)
    latest = on_database(server, lambda: server.events.latest(patterns or ("*",), limit), *TABLES)
    if as_json:
        print_json([write_structured(event) for event in latest])
    else:
        print_table(EVENT_COLUMNS, [_event_row(event) for event in latest])


def _event_row(event: Event) -> tuple[Any, ...]:
    subject = shorten(event.subject, WIDEST_SUBJECT)
    return (event.position, event.time, shorten(event.type), subject, event.actor_id, event.tenant_id)


@events.command("groups", epilog="Example: maniflex events groups app:server --json")
@target_argument
@json_option
def groups(target: str, as_json: bool) -> None:
    """All groups and bridges: how far they are, and what waits for them."""
    server = load_sealed(target)

    async def read() -> tuple[list[GroupStanding], datetime]:
        return await server.events.standings(), server.events.now()

    standings, now = on_database(server, read, *TABLES)
    if as_json:
        print_json([to_jsonable_python(one._asdict()) for one in standings])
        return
    rows = [
        (
            one.name,
            one.kind,
            shorten(", ".join(one.patterns)),
            one.position,
            one.behind,
            count_text(one.waiting),
            one.dead,
            "" if one.since is None else span(now - one.since),
            "paused" if one.paused else "",
            one.served_at,
        )
        for one in standings
    ]
    print_table(GROUP_COLUMNS, rows)


@events.command("renew", epilog="Example: maniflex events renew app:server")
@target_argument
def renew(target: str) -> None:
    """Begin a new epoch after a restored backup: cursors of before are refused, not continued elsewhere."""
    server = load_sealed(target)
    epoch = on_database(server, server.events.renew, *TABLES)
    click.echo(f"epoch {epoch}: all cursors of before are refused")


@events.command("forget", epilog="Example: maniflex events forget app:server billing")
@target_argument
@group_argument
def forget(target: str, group: str) -> None:
    """End a group whose code is gone, and what waits for it."""
    server = load_sealed(target)
    if server.events.has_group(group):  # processes that run its code would not make it again
        raise click.ClickException(f"{target} has the code of {group}; take that out first, and deploy")
    _end_unless(on_database(server, lambda: server.events.forget(group), *TABLES), group)
    click.echo(f"{group}: forgotten")


@events.command(REPLAY.name, help=REPLAY.help, epilog=f"Example: {REPLAY.example}")
@target_argument
@group_argument
@click.option("--after", help="Behind this cursor.")
@click.option("--since", help="Of this moment and later, such as 2026-01-31T08:00:00Z.")
@click.option("--until", help="Up to this cursor.")
def replay(target: str, group: str, after: str | None, since: str | None, until: str | None) -> None:
    if (after is None) == (since is None):
        raise click.UsageError("say either --after, a cursor, or --since, a moment")
    moment = None if since is None else read_moment(since)
    server = load_sealed(target)
    call = partial(REPLAY.call, server.events, group, after, moment, until)
    count = on_database(server, call, *TABLES)
    click.echo(f"{group}: {count} events wait for it again")


def _add_command(command: Command) -> None:
    @events.command(command.name, help=command.help, epilog=f"Example: {command.example}")
    @target_argument
    @click.argument("groups", nargs=-1, required=True)
    def change(target: str, groups: tuple[str, ...]) -> None:
        server = load_sealed(target)
        missing = on_database(server, lambda: _change_groups(server, command, groups), *TABLES)
        for name in groups:
            click.echo(
                f"{name}: there is no such group" if name in missing else f"{name}: {command.name}d",
                err=name in missing,
            )
        if missing:
            sys.exit(1)


async def _change_groups(server: Server, command: Command, names: Sequence[str]) -> list[str]:
    """Do it with each; the names that no group has."""
    return [name for name in names if not await command.call(server.events, name)]


def _end_unless(is_there: bool, group: str) -> None:
    if not is_there:
        raise click.ClickException(f"there is no group {group!r}")


for command in commands_of(GROUP):
    if command is not REPLAY:
        _add_command(command)
