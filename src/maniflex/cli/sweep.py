"""`maniflex sweep module:server`: serve the scheduled fields that are due and remove files, once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from maniflex.app.server import Server
from maniflex.background.scheduled_fields.observers import Report
from maniflex.cli.files import print_clean_report
from maniflex.cli.process import run_once, stop_early
from maniflex.cli.progress import Progress
from maniflex.cli.target import load_sealed
from maniflex.files.cleaner import CleanReport

_PARTS = ("scheduled", "files")


def _read_parts(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...]:
    if text is None:
        return _PARTS
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in _PARTS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(_PARTS)}; separate several by commas")
    return names


@click.command(epilog="Example: maniflex sweep app:server")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--only", callback=_read_parts, metavar="PARTS", help="Of scheduled,files; all without it.")
def sweep(target: str, only: tuple[str, ...]) -> None:
    """Change or delete the records whose scheduled fields are due, and remove files that were given up.

    Ends with 1 when something went wrong.
    """
    server = load_sealed(target)
    one = _Sweep(server, only)
    run_once(server, one.run, ask_to_stop=one.stop)
    if one.stopping:
        stop_early(one.print_summary)
    one.print_summary()
    sys.exit(1 if one.has_failed else 0)


class _Sweep:
    """One sweep, which can be asked to stop between two batches."""

    def __init__(self, server: Server, parts: Sequence[str]) -> None:
        self._server = server
        self._parts = parts
        self._begun = False
        self.stopping = False
        self._records: Report | None = None
        self._files: CleanReport | None = None

    def stop(self) -> bool:
        """Begin no other batch; False when there is none yet that could come to its end."""
        self.stopping = self._begun
        return self._begun

    async def run(self) -> None:
        self._begun = True
        if "scheduled" in self._parts:
            self._records = await self._sweep_records()
        if "files" in self._parts and self._server.files.has_storage and not self.stopping:
            self._files = await self._server.files.sweep()

    @property
    def has_failed(self) -> bool:
        return any(report is not None and report.failed for report in (self._records, self._files))

    def print_summary(self) -> None:
        if self._records is not None:
            _print_summary(self._records)
        if self._files is not None:
            print_clean_report(self._files)

    async def _sweep_records(self) -> Report:
        with Progress("records") as progress:

            def count(*about: object) -> None:
                progress.one_more()

            hook = count if progress.shown else None
            runner = self._server.scheduled.runner(on_delete=hook, on_set_field=hook)
            return await runner.sweep(until=lambda: self.stopping)


def _print_summary(report: Report) -> None:
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
