"""`maniflex scheduler module:server`: fire schedules and sweep scheduled fields, without serving."""

from __future__ import annotations

from collections.abc import Sequence

import click

from maniflex._service import Service
from maniflex.cli.living import live
from maniflex.cli.target import sealed


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--probe-port", type=click.IntRange(0, 65535), help="Answer /live, /ready and /metrics here.")
def scheduler(target: str, probe_port: int | None) -> None:
    """Fire schedules and sweep scheduled fields until it is interrupted."""
    server = sealed(target)

    def services() -> Sequence[Service]:
        found = [*server.schedules.services(), *server.scheduled.services()]
        if not found:
            raise click.ClickException("there is nothing to wait for: no schedule, no scheduled field")
        return found

    live(server, services, "scheduler", probe_port)
