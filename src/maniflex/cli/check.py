"""`maniflex check module:server`: is it declared right? Touches no database."""

from __future__ import annotations

import click

from maniflex.app.server import Server
from maniflex.cli.target import load
from maniflex.errors import ManiflexError


@click.command(epilog="Example: maniflex check app:server --production")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--production", is_flag=True, help="Also name what should not be served to the world.")
def check(target: str, production: bool) -> None:
    """Validate the declaration without starting anything.

    Where there are migration files, they have to make what the models have.
    """
    server = load(target)
    try:
        count = len(server.routes)
        problems = server.migration_file_problems(target)
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    if problems:
        raise click.ClickException("".join(f"\n  {problem}" for problem in problems).strip())
    if production:
        _check_production(server)
    click.echo(f"ok: {count} routes")


def _check_production(server: Server) -> None:
    problems, notes = server.production_report()
    for note in notes:
        click.echo(f"note: {note}")
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise click.ClickException(f"this should not be served to the world:{lines}")
