"""`maniflex routes module:server`: the routes, each with its owner or its guards."""

from __future__ import annotations

import click

from maniflex.cli.target import load
from maniflex.errors import ManiflexError


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--guards", is_flag=True, help="Show who may use each route in the place of its owner.")
def routes(target: str, guards: bool) -> None:
    """List every route."""
    server = load(target)
    try:
        routes_of_server = [(m, p, str(g)) for m, p, g in server.guards] if guards else server.routes
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    width = max((len(path) for _, path, _ in routes_of_server), default=0)
    for method, path, text in sorted(routes_of_server, key=lambda route: (route[1], route[0])):
        click.echo(f"{method:<8}{path:<{width + 2}}{text}")
