"""`maniflex scheduler module:server`: fire schedules and sweep scheduled fields, without serving."""

from __future__ import annotations

from collections.abc import Sequence

import click

from maniflex._service import Service
from maniflex.cli.process import run_services
from maniflex.cli.target import load_sealed


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
