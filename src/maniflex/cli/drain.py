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
_GOOD = ("succeeded", "delivered")


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--only", type=click.Choice(["runs", "outbox", "jobs"]), help="Leave the others alone.")
def drain(target: str, only: str | None) -> None:
    """Work on due runs, messages and jobs until none is left; ends with 1 when a run or message failed."""
    server = sealed(target)
    if only == "jobs" and not server.jobs.apart:
        raise click.ClickException("jobs have no queue of their own here: they are runs, see --only runs")
    jobs = once(server, lambda: _drained(server, only))
    asked = {"runs": RUNS, "outbox": MESSAGES}
    shown = {part: _counted(server, names) for part, names in asked.items() if only in (None, part)}
    for part, counts in shown.items():
        click.echo(f"{part}: {', '.join(f'{n} {word}' for word, n in counts.items())}")
    if jobs is not None:
        click.echo(f"jobs: {jobs} worked on")
    failed = any(n for counts in shown.values() for word, n in counts.items() if word not in _GOOD)
    end(1 if failed else 0)


async def _drained(server: Server, only: str | None) -> int | None:
    """In turn, until none has anything: a message may submit a run, and a run may leave a message.

    How many jobs that were of a queue apart from runs, if there is one.
    """
    does_runs = only in (None, "runs") and len(server.work.handlers) > 0
    does_outbox = only in (None, "outbox") and server.outbox.used
    does_jobs = only in (None, "jobs") and server.jobs.apart
    worker = server.work.worker() if does_runs else None
    drainer = server.outbox.drainer() if does_outbox else None
    jobs = server.jobs.worker() if does_jobs else None
    total, done, of_jobs = await _waiting(server, only), 0, 0
    with Progress("drained", total) as progress:
        while True:
            before = done
            if drainer is not None:
                done += await drainer.drain(progress.after(done))
            if worker is not None:
                done += await worker.drain(progress.after(done))
            if jobs is not None:
                of_jobs += (fresh := await jobs.drain())
                done += fresh
            if done == before:
                return of_jobs if does_jobs else None


async def _waiting(server: Server, only: str | None) -> int:
    gauges = {"runs": "runs_due", "outbox": "outbox_pending"}
    asked = [gauge for part, gauge in gauges.items() if only in (None, part)]
    return int(sum(sample.value for sample in await server.metrics.gauges() if sample.name in asked))


def _counted(server: Server, names: Mapping[str, str]) -> dict[str, int]:
    return {word: int(server.metrics.value(name)) for name, word in names.items()}
