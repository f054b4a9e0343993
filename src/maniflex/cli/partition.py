"""`maniflex partition module:server runs|messages|all`: cut the tables of durable work into partitions."""

from __future__ import annotations

from datetime import timedelta

import click

from maniflex.app.server import Server
from maniflex.background.partitions.layout import PartitionedTable, Period
from maniflex.background.partitions.mover import TABLES, partition_tables
from maniflex.cli.process import load_sealed, run_once
from maniflex.db.short_locks import LockLimits

_ALL = "all"


@click.command(epilog="Example: maniflex partition app:server all --by day")
@click.argument("target", metavar="MODULE:SERVER")
@click.argument("what", type=click.Choice([*TABLES, _ALL]))
@click.option(
    "--by",
    "period",
    type=click.Choice([period.name.lower() for period in Period]),
    default="day",
    show_default=True,
    help="How much time one partition holds.",
)
@click.option("--tries", type=click.IntRange(1), default=100, show_default=True, help="Waits for a lock.")
def partition(target: str, what: str, period: str, tries: int) -> None:
    """Partition the tables of runs (with events and steps) or messages, on PostgreSQL, while others work.

    Retention then drops whole partitions. Run again, it finishes what was interrupted. It ends with 1 when a
    partition could not be made.
    """
    server = load_sealed(target)
    tables = _tables(server, what)
    patience = LockLimits(timedelta(milliseconds=200), tries)

    async def work() -> list[str]:
        adapter = server.work.environment.adapter
        return await partition_tables(
            adapter, tables, Period.of_name(period), patience=patience, tell=click.echo
        )

    if run_once(server, work):
        raise click.exceptions.Exit(1)


def _tables(server: Server, what: str) -> list[PartitionedTable]:
    """The tables that the application has."""
    parts = {"runs": server.work.is_used, "messages": server.outbox.is_used}
    names = [name for name in TABLES if what in (name, _ALL) and parts[name]]
    if not names:
        raise click.ClickException(
            f"the application has no {what if what != _ALL else 'runs and no messages'}"
        )
    return [table for name in names for table in TABLES[name]]
