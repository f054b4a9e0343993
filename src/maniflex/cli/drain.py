"""`maniflex drain module:server`: work on everything that is due now, once, and end."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import click

from maniflex.app.server import Server
from maniflex.cli.process import run_once
from maniflex.cli.progress import Progress
from maniflex.cli.target import load_sealed

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
        server, lambda: _drain(server, only), so_far=lambda: _print_summary(server, only, "not finished")
    )
    has_failures = _print_summary(server, only, "paused")
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


def _print_summary(server: Server, only: str | None, rest: str) -> bool:
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
