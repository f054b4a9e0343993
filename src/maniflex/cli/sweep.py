"""`maniflex sweep module:server`: serve the scheduled fields that are due, once."""

from __future__ import annotations

import click

from maniflex.app.server import Server
from maniflex.background.scheduled_fields.report import Report
from maniflex.cli.process import end_process, run_once, stop_early
from maniflex.cli.progress import Progress
from maniflex.cli.target import load_sealed


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
def sweep(target: str) -> None:
    """Change or delete the records whose scheduled fields are due; ends with 1 when something went wrong."""
    server = load_sealed(target)
    one = _Sweep(server)
    report = run_once(server, one.run, ask_to_stop=one.stop)
    if one.stopping:
        stop_early(lambda: _print_summary(report))
    _print_summary(report)
    end_process(1 if report.failed else 0)


class _Sweep:
    """One sweep, which can be asked to stop between two batches."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begun = False
        self.stopping = False

    def stop(self) -> bool:
        """Begin no other batch; False when there is none yet that could come to its end."""
        self.stopping = self._begun
        return self._begun

    async def run(self) -> Report:
        self._begun = True
        with Progress("records") as progress:
            hooks = ("on_delete", "on_set_field") if progress.shown else ()
            runner = self._server.scheduled.runner(**dict.fromkeys(hooks, lambda *about: progress.one_more()))
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
