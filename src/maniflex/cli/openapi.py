"""`maniflex openapi module:server`: the API description, as a client would get it. Touches no database."""

from __future__ import annotations

import asyncio
import json

import click

from maniflex.cli.target import load
from maniflex.errors import ManiflexError


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
def openapi(target: str) -> None:
    """Print the OpenAPI 3.1 document."""
    try:
        spec = asyncio.run(load(target).openapi())
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    click.echo(json.dumps(spec, indent=2, ensure_ascii=False))
