"""`maniflex outbox list | show | redrive module:server`: look after messages from a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from maniflex.app.server import Server
from maniflex.background.outbox.model import MessageStatus, OutboxMessage
from maniflex.cli.database import on_database
from maniflex.cli.output import (
    Progress,
    json_option,
    limit_option,
    plain_values,
    print_json,
    print_table,
    print_values,
    shorten,
    target_argument,
)
from maniflex.cli.process import load_sealed

TABLE = "outbox_event"
COLUMNS = ("id", "kind", "key", "status", "attempts", "created_at", "retry_at", "last_error")
AT_ONCE = 500


@click.group()
def outbox() -> None:
    """Look at messages, and deliver dead ones after all."""


@outbox.command("list", epilog="Example: maniflex outbox list app:server --status dead --kind order.placed")
@target_argument
@click.option("--status", type=click.Choice([one.value for one in MessageStatus]), help="In this state.")
@click.option("--kind", help="Of this kind.")
@click.option("--key", help="Of this key.")
@click.option("--about", help="About this record, such as order/7.")
@limit_option()
@json_option
def list_messages(
    target: str,
    status: str | None,
    kind: str | None,
    key: str | None,
    about: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """The newest messages first."""
    server = load_sealed(target)
    filters = {"status": status, "kind": kind, "key": key, "about": about}
    messages = on_database(server, lambda: _list(server, filters, limit), TABLE)
    if as_json:
        print_json([_plain(message) for message in messages])
        return
    rows = [
        (
            one.id,
            shorten(one.kind),
            shorten(one.key),
            one.status,
            one.attempts,
            one.created_at,
            one.retry_at if one.status is MessageStatus.PENDING else None,
            shorten(one.last_error),
        )
        for one in messages
    ]
    print_table(COLUMNS, rows)


@outbox.command(epilog="Example: maniflex outbox show app:server 019aa2f0-6a2e-7d1c-b8a5-000000000000")
@target_argument
@click.argument("id")
@json_option
def show(target: str, id: str, as_json: bool) -> None:
    """One message with its payload."""
    server = load_sealed(target)
    values = _plain(on_database(server, lambda: server.db(OutboxMessage).read(id), TABLE))
    if as_json:
        print_json(values)
    else:
        print_values(values)


@outbox.command(epilog="Example: maniflex outbox redrive app:server --all --kind order.placed")
@target_argument
@click.argument("ids", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All dead messages, or with --kind all of that kind.")
@click.option("--kind", help="With --all: of this kind.")
def redrive(target: str, ids: tuple[str, ...], every: bool, kind: str | None) -> None:
    """Put dead messages back, with all their attempts; ends with 1 when one was not dead."""
    if every == bool(ids):
        raise click.UsageError("name the messages, or say --all")
    if kind is not None and not every:
        raise click.UsageError("--kind goes with --all")
    server = load_sealed(target)
    if every:
        count = on_database(server, lambda: _redrive_all(server, kind), TABLE)
        click.echo(f"{count} messages wait for delivery again")
        return
    refusals = on_database(server, lambda: _redrive(server, ids), TABLE)
    for id in refusals:
        click.echo(f"{id}: there is no such dead message", err=True)
    click.echo(f"{len(ids) - len(refusals)} messages wait for delivery again")
    if refusals:
        sys.exit(1)


async def _list(server: Server, filters: dict[str, str | None], limit: int) -> list[OutboxMessage]:
    conditions: list[Any] = [(name, "eq", value) for name, value in filters.items() if value is not None]
    return await server.db(OutboxMessage).list(conditions, sorts="seq:desc", limit=limit)


async def _redrive(server: Server, ids: Sequence[str]) -> list[str]:
    return [id for id in dict.fromkeys(ids) if not await server.outbox.redrive(id)]


async def _redrive_all(server: Server, kind: str | None) -> int:
    """Put back those that are dead by now, in the order they were enqueued."""
    conditions: list[Any] = [("status", "eq", "dead"), *([("kind", "eq", kind)] if kind else [])]
    count, after = 0, 0
    with Progress("messages") as progress:
        while page := await server.db(OutboxMessage).list(
            [*conditions, ("seq", "gt", after)], sorts="seq", limit=AT_ONCE
        ):
            after = page[-1].seq
            for message in page:
                count += await server.outbox.redrive(message.id)
                progress.to(count)
    return count


def _plain(message: OutboxMessage) -> dict[str, Any]:
    values = plain_values(message)
    values.pop("claimed_with", None)
    return values
