"""`maniflex sweep module:server`: serve the scheduled fields that are due, once."""

from __future__ import annotations

import click

from maniflex.background.scheduled.report import Report
from maniflex.cli.living import end, once
from maniflex.cli.progress import Progress
from maniflex.cli.target import sealed


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
def sweep(target: str) -> None:
    """Delete and change what is due by a scheduled field; ends with 1 when something went wrong."""
    server = sealed(target)

    async def swept() -> Report:
        with Progress("records") as progress:
            if not progress.shown:
                return await server.scheduled.sweep()
            counted = server.scheduled.runner(
                on_delete=lambda *about: progress.one_more(), on_set_field=lambda *about: progress.one_more()
            )
            return await counted.sweep()

    report = once(server, swept)
    for name, part in sorted(report.per_model.items()):
        click.echo(f"{name}: {part.deleted} deleted, {part.updated} updated, {part.skipped} skipped")
    for failure in report.errors:
        where = f"{failure.model}.{failure.field}" + (f" {failure.id}" if failure.id else "")
        click.echo(f"{where}: {failure.message}", err=True)
    more = ", more is due" if report.truncated else ""
    click.echo(
        f"{report.deleted} deleted, {report.updated} updated, {report.skipped} skipped,"
        f" {report.failed} failed{more}"
    )
    end(1 if report.failed else 0)
