"""`maniflex routes module:server`: the routes, each with its owner."""

from __future__ import annotations

import click

from maniflex.cli.target import load
from maniflex.errors import ManiflexError


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
def routes(target: str) -> None:
    """List every route."""
    try:
        routes_of_server = load(target).routes
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    width = max((len(path) for _, path, _ in routes_of_server), default=0)
    for method, path, owner in sorted(routes_of_server, key=lambda route: (route[1], route[0])):
        click.echo(f"{method:<8}{path:<{width + 2}}{owner}")
