"""`maniflex sweep module:server`: serve scheduled fields, remove files and what is kept no longer, once."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import click

from maniflex.app.server import Server
from maniflex.background.scheduled_fields.observers import Report
from maniflex.cli.data import print_clean_report
from maniflex.cli.output import Progress
from maniflex.cli.process import load_sealed, run_once, stop_early
from maniflex.files.cleaner import CleanReport

_PARTS = ("scheduled", "files", "retention")


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
@click.option(
    "--only", callback=_read_parts, metavar="PARTS", help="Of scheduled,files,retention; all without it."
)
def sweep(target: str, only: tuple[str, ...]) -> None:
    """Serve scheduled fields that are due; remove files that were given up, and what is kept no longer.

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
        self._retention: Report | None = None

    def stop(self) -> bool:
        """Begin no other batch; False when there is none yet that could come to its end."""
        self.stopping = self._begun
        return self._begun

    async def run(self) -> None:
        self._begun = True
        if "scheduled" in self._parts:
            self._records = await self._sweep_records()
        if "retention" in self._parts and not self.stopping:
            self._retention = await self._remove_old()
        if "files" in self._parts and self._server.files.has_storage and not self.stopping:
            self._files = await self._server.files.sweep()

    @property
    def has_failed(self) -> bool:
        return any(
            report is not None and report.failed for report in (self._records, self._retention, self._files)
        )

    def print_summary(self) -> None:
        if self._records is not None:
            _print_summary(self._records)
        if self._retention is not None and (self._retention.per_model or self._parts == ("retention",)):
            _print_summary(self._retention, "retention: ")
        if self._files is not None:
            print_clean_report(self._files)

    async def _sweep_records(self) -> Report:
        with Progress("records") as progress:

            def count(*about: object) -> None:
                progress.one_more()

            hook = count if progress.shown else None
            runner = self._server.scheduled.runner(on_delete=hook, on_set_field=hook)
            return await runner.sweep(until=lambda: self.stopping)

    async def _remove_old(self) -> Report:
        with Progress("old records") as progress:

            def count(*about: object) -> None:
                progress.one_more()

            hook = count if progress.shown else None
            return await self._server.retention.sweep(until=lambda: self.stopping, on_delete=hook)


def _print_summary(report: Report, about: str = "") -> None:
    for name, part in sorted(report.per_model.items()):
        click.echo(f"{name}: {part.deleted} deleted, {part.updated} updated, {part.skipped} skipped")
    for failure in report.errors:
        where = f"{failure.model}.{failure.field}" + (f" {failure.id}" if failure.id else "")
        click.echo(f"{where}: {failure.message}", err=True)
    more = ", more is due" if report.truncated else ""
    click.echo(
        f"{about}{report.deleted} deleted, {report.updated} updated, {report.skipped} skipped,"
        f" {report.failed} failed{more}"
    )


# `maniflex drain module:server`: work on everything that is due now, once, and end.

# Counters of the outcomes, and how they are called in the summary.
RUNS = {
    "runs_succeeded_total": "succeeded",
    "runs_retried_total": "to be tried again",
    "runs_failed_total": "failed",
}
MESSAGES = {
    "outbox_delivered_total": "delivered",
    "outbox_failed_total": "to be tried again",
    "outbox_dead_total": "given up",
}
JOBS = ("jobs_succeeded_total", "jobs_retried_total", "jobs_dead_total", "jobs_lease_losses_total")
_BAD = ("to be tried again", "failed", "given up")


@click.command(epilog="Example: maniflex drain app:server --only runs")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--only", type=click.Choice(["runs", "outbox", "jobs"]), help="Leave the others alone.")
def drain(target: str, only: str | None) -> None:
    """Work on due runs, messages and jobs until none is left; ends with 1 when a run or message failed."""
    server = load_sealed(target)
    if only == "jobs" and not server.jobs.has_external_handlers:
        raise click.ClickException("jobs have no queue of their own here: they are runs, see --only runs")
    run_once(
        server, lambda: _drain(server, only), so_far=lambda: _print_work_done(server, only, "not finished")
    )
    has_failures = _print_work_done(server, only, "paused")
    sys.exit(1 if has_failures else 0)


async def _drain(server: Server, only: str | None) -> None:
    """In turn, until none has anything: a message may submit a run, and a run may leave a message."""
    does_runs = only in (None, "runs") and len(server.work.handlers) > 0
    does_outbox = only in (None, "outbox") and server.outbox.is_used
    worker = server.work.worker() if does_runs else None
    drainer = server.outbox.drainer() if does_outbox else None
    jobs = server.jobs.worker() if _does_jobs(server, only) else None
    total, count = await _waiting(server, only), 0
    with Progress("drained", total) as progress:
        while True:
            before = count
            if drainer is not None:
                count += await drainer.drain(progress.after(count))
            if worker is not None:
                count += await worker.drain(progress.after(count))
            if jobs is not None:
                count += await jobs.drain()
            if count == before:
                return


def _does_jobs(server: Server, only: str | None) -> bool:
    return only in (None, "jobs") and server.jobs.has_external_handlers


async def _waiting(server: Server, only: str | None) -> int:
    gauges = {"runs": "runs_due", "outbox": "outbox_pending"}
    gauge_names = [gauge for part, gauge in gauges.items() if only in (None, part)]
    return int(sum(sample.value for sample in await server.metrics.gauges() if sample.name in gauge_names))


def _print_work_done(server: Server, only: str | None, rest: str) -> bool:
    """Say what came of it, `rest` being the runs without an outcome; whether something failed."""
    counts_by_part = {"runs": _counts_by_word(server, RUNS), "outbox": _counts_by_word(server, MESSAGES)}
    counts_by_part["runs"][rest] = _runs_begun(server) - sum(counts_by_part["runs"].values())
    for part in [part for part in counts_by_part if only not in (None, part)]:
        del counts_by_part[part]
    for part, counts in counts_by_part.items():
        click.echo(f"{part}: {', '.join(f'{n} {word}' for word, n in counts.items())}")
    if _does_jobs(server, only):
        click.echo(f"jobs: {sum(_count(server, name) for name in JOBS)} worked on")
    return any(counts.get(word) for counts in counts_by_part.values() for word in _BAD)


def _runs_begun(server: Server) -> int:
    """Runs that were begun here and did not become another worker's."""
    return _count(server, "runs_claimed_total") - _count(server, "runs_lease_losses_total")


def _counts_by_word(server: Server, names: Mapping[str, str]) -> dict[str, int]:
    return {word: _count(server, name) for name, word in names.items()}


def _count(server: Server, name: str) -> int:
    return int(server.metrics.value(name))
