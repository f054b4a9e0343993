"""`maniflex check module:server`: is it declared right? Touches no database."""

from __future__ import annotations

import click

from maniflex.cli.target import load
from maniflex.errors import ManiflexError


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
def check(target: str) -> None:
    """Validate the declaration without starting anything."""
    server = load(target)
    try:
        count = len(server.routes)
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"ok: {count} routes")
