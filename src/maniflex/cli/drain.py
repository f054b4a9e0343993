"""`maniflex drain module:server`: work on everything that is due now, once, and end."""

from __future__ import annotations

from collections.abc import Mapping

import click

from maniflex.cli.living import end, once
from maniflex.cli.progress import Progress
from maniflex.cli.target import sealed
from maniflex.server import Server

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


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--only", type=click.Choice(["runs", "outbox", "jobs"]), help="Leave the others alone.")
def drain(target: str, only: str | None) -> None:
    """Work on due runs, messages and jobs until none is left; ends with 1 when a run or message failed."""
    server = sealed(target)
    if only == "jobs" and not server.jobs.apart:
        raise click.ClickException("jobs have no queue of their own here: they are runs, see --only runs")
    once(server, lambda: _drained(server, only), so_far=lambda: _print_summary(server, only, "not finished"))
    failed = _print_summary(server, only, "paused")
    end(1 if failed else 0)


async def _drained(server: Server, only: str | None) -> None:
    """In turn, until none has anything: a message may submit a run, and a run may leave a message."""
    does_runs = only in (None, "runs") and len(server.work.handlers) > 0
    does_outbox = only in (None, "outbox") and server.outbox.used
    worker = server.work.worker() if does_runs else None
    drainer = server.outbox.drainer() if does_outbox else None
    jobs = server.jobs.worker() if _does_jobs(server, only) else None
    total, done = await _waiting(server, only), 0
    with Progress("drained", total) as progress:
        while True:
            before = done
            if drainer is not None:
                done += await drainer.drain(progress.after(done))
            if worker is not None:
                done += await worker.drain(progress.after(done))
            if jobs is not None:
                done += await jobs.drain()
            if done == before:
                return


def _does_jobs(server: Server, only: str | None) -> bool:
    return only in (None, "jobs") and server.jobs.apart


async def _waiting(server: Server, only: str | None) -> int:
    gauges = {"runs": "runs_due", "outbox": "outbox_pending"}
    asked = [gauge for part, gauge in gauges.items() if only in (None, part)]
    return int(sum(sample.value for sample in await server.metrics.gauges() if sample.name in asked))


def _print_summary(server: Server, only: str | None, rest: str) -> bool:
    """Say what came of it, `rest` being the runs without an outcome; whether something failed."""
    shown = {"runs": _counted(server, RUNS), "outbox": _counted(server, MESSAGES)}
    shown["runs"][rest] = _begun(server) - sum(shown["runs"].values())
    for part in [part for part in shown if only not in (None, part)]:
        del shown[part]
    for part, counts in shown.items():
        click.echo(f"{part}: {', '.join(f'{n} {word}' for word, n in counts.items())}")
    if _does_jobs(server, only):
        click.echo(f"jobs: {sum(_count(server, name) for name in JOBS)} worked on")
    return any(counts.get(word) for counts in shown.values() for word in _BAD)


def _begun(server: Server) -> int:
    """Runs that were begun here and did not become another worker's."""
    return _count(server, "runs_claimed_total") - _count(server, "runs_lease_losses_total")


def _counted(server: Server, names: Mapping[str, str]) -> dict[str, int]:
    return {word: _count(server, name) for name, word in names.items()}


def _count(server: Server, name: str) -> int:
    return int(server.metrics.value(name))
