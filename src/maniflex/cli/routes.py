"""`maniflex routes module:server`: what is mounted where."""

from __future__ import annotations

import click

from maniflex.cli.target import load
from maniflex.errors import ManiflexError


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
def routes(target: str) -> None:
    """List every route."""
    try:
        found = load(target).routes
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    width = max((len(path) for _, path, _ in found), default=0)
    for method, path, owner in sorted(found, key=lambda route: (route[1], route[0])):
        click.echo(f"{method:<8}{path:<{width + 2}}{owner}")
