"""`maniflex routes module:server`: the routes, each with its owner or its guards."""

from __future__ import annotations

import click

from maniflex.cli.output import json_option, print_json, target_argument
from maniflex.cli.target import load
from maniflex.errors import ManiflexError


@click.command(epilog="Example: maniflex routes app:server --guards")
@target_argument
@json_option
@click.option("--guards", is_flag=True, help="Show who may use each route in the place of its owner.")
def routes(target: str, as_json: bool, guards: bool) -> None:
    """List every route."""
    server = load(target)
    try:
        routes_of_server = [(m, p, str(g)) for m, p, g in server.guards] if guards else server.routes
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        third = "guards" if guards else "owner"
        print_json(
            [{"method": m, "path": p, third: text} for m, p, text in sorted(routes_of_server, key=_by_path)]
        )
        return
    width = max((len(path) for _, path, _ in routes_of_server), default=0)
    for method, path, text in sorted(routes_of_server, key=_by_path):
        click.echo(f"{method:<8}{path:<{width + 2}}{text}")


def _by_path(route: tuple[str, str, str]) -> tuple[str, str]:
    return route[1], route[0]
