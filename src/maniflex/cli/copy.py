"""`maniflex copy module:server --from URL --to URL`: move the data of an application to another database."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext

import click

from maniflex.app.transfer import DataCopy
from maniflex.cli.database import check_file
from maniflex.cli.output import Progress, print_json, print_table, target_argument
from maniflex.cli.process import load, run_once
from maniflex.db.transfer.copier import BATCH, TableReport
from maniflex.errors import ManiflexError

COLUMNS = ("table", "rows", "copied", "same")


@click.command(
    epilog="Example: maniflex copy app:server --from sqlite:///shop.db --to postgresql://localhost/shop"
)
@target_argument
@click.option("--from", "source", help="Address of the database to read; the application's own unless told.")
@click.option("--to", "destination", required=True, help="Address of the database to fill.")
@click.option(
    "--batch",
    type=click.IntRange(1, 100_000),
    default=BATCH,
    show_default=True,
    help="Rows in a transaction, if they are small.",
)
@click.option("--check", is_flag=True, help="Copy nothing; only compare the two.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def copy(target: str, source: str | None, destination: str, batch: int, check: bool, as_json: bool) -> None:
    """Copy all data of the application to another database, then compare the two.

    Stop the application first. A copy that was interrupted goes on where it was when it is started again.
    It ends with 1 when the two databases differ.
    """
    server = load(target)
    origin = source or server.config.database
    if not isinstance(origin, str):
        raise click.UsageError("the application has no address of a database; say --from")
    if origin == destination:
        raise click.UsageError("--from and --to are the same database")
    for option, address in (("--from", origin), ("--to", destination)):
        try:
            server.config.with_(database=address, read_database=None)
        except ManiflexError as error:
            raise click.UsageError(f"{option}: {error}") from None
    try:
        data = DataCopy(server, origin, destination)
        check_file(data.copier.source)
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    for name in data.left_out:
        click.echo(f"{name} is kept outside this database and stays where it is", err=True)

    async def work() -> tuple[int, list[TableReport]]:
        async with data.open(makes_tables=not check) as copier:
            total, count = await copier.count_rows(), 0
            if not check:
                positions = await copier.begin()
                before = sum(position.copied for position in positions.values())
                with Progress("copied", total) as progress:
                    progress.to(before)
                    count = await copier.copy(positions, progress.after(before), batch)
            with Progress("compared", 2 * total) as progress:
                reports = await copier.compare(progress.to)
            if not check and all(report.is_same for report in reports):
                await data.finish()
            return count, reports

    count, reports = run_once(server, work, within=nullcontext)
    _print_reports(reports, as_json)
    differing = [report for report in reports if not report.is_same]
    if not as_json:
        rows = sum(report.target_rows for report in reports)
        if not differing:
            did = "compared" if check else f"{count:,} rows copied"
            click.echo(f"{did}: {rows:,} rows in {len(reports)} tables, counts and checksums are equal")
    for report in differing:
        ids = ", ".join(report.differing_ids)
        click.echo(f"{report.name}: the two differ, first in {ids}", err=True)
    if differing and not check:
        click.echo("was the source written to? stop the application, empty the target, copy again", err=True)
    if differing:
        sys.exit(1)


def _print_reports(reports: Sequence[TableReport], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "table": report.name,
                    "source_rows": report.source_rows,
                    "target_rows": report.target_rows,
                    "is_same": report.is_same,
                    "differing_ids": list(report.differing_ids),
                }
                for report in reports
            ]
        )
        return
    rows = [
        (report.name, report.source_rows, report.target_rows, "yes" if report.is_same else "NO")
        for report in reports
        if report.source_rows or report.target_rows or not report.is_same
    ]
    print_table(COLUMNS, rows)
