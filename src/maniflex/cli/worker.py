"""`maniflex worker module:server`: work on runs and deliver outbox messages, without serving."""

from __future__ import annotations

from collections.abc import Sequence

import click

from maniflex._service import Service
from maniflex.cli.process import load_sealed, run_services


def prefixes(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """`a.,b.` → its parts."""
    parts = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    if text is not None and not parts:
        raise click.BadParameter("it names no prefix; write billing.,email.")
    return parts


@click.command(epilog="Example: maniflex worker app:server --types billing.,email. --concurrency 4")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--types", callback=prefixes, help="Prefixes of the types to work on, such as billing.,email.")
@click.option("--concurrency", type=click.IntRange(1), help="How many runs at once.")
@click.option("--probe-port", type=click.IntRange(0, 65535), help="Answer /live, /ready and /metrics here.")
def worker(target: str, types: tuple[str, ...], concurrency: int | None, probe_port: int | None) -> None:
    """Work on runs and deliver messages until it is interrupted."""
    server = load_sealed(target)

    def services() -> Sequence[Service]:
        runs = server.work.services(types, concurrency)
        parts = [*runs, *server.outbox.services(), *server.jobs.services()]
        if not parts:
            raise click.ClickException("there is nothing to work on: no handler of runs, none of messages")
        return parts

    run_services(server, services, "worker", probe_port)


# `maniflex scheduler module:server`: fire schedules and sweep scheduled fields, without serving.


@click.command(epilog="Example: maniflex scheduler app:server --probe-port 9001")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--probe-port", type=click.IntRange(0, 65535), help="Answer /live, /ready and /metrics here.")
def scheduler(target: str, probe_port: int | None) -> None:
    """Fire schedules and sweep scheduled fields until it is interrupted."""
    server = load_sealed(target)

    def services() -> Sequence[Service]:
        parts = [*server.schedules.services(), *server.scheduled.services()]
        if not parts:
            raise click.ClickException("there is nothing to wait for: no schedule, no scheduled field")
        return parts

    run_services(server, services, "scheduler", probe_port)
