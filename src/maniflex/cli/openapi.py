"""`maniflex openapi module:server`: the API description, as a client would get it. Touches no database."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import click

from maniflex.cli.target import load
from maniflex.errors import ManiflexError
from maniflex.openapi.breaking import breaking_changes


@click.command(epilog="Example: maniflex openapi app:server --check openapi.json")
@click.argument("target", metavar="MODULE:SERVER")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the document to this file."
)
@click.option(
    "--check",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="List what breaks clients of this kept document; exit 1 if anything does.",
)
def openapi(target: str, out: Path | None, check: Path | None) -> None:
    """Print the OpenAPI 3.1 document, or compare it with one that was kept."""
    try:
        spec = asyncio.run(load(target).openapi())
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    if check is not None:
        _compare(check, spec)
    text = json.dumps(spec, indent=2, ensure_ascii=False)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    elif check is None:
        click.echo(text)


def _compare(kept: Path, spec: dict[str, Any]) -> None:
    try:
        old = json.loads(kept.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.BadParameter(f"{kept} is no JSON: {error}", param_hint="--check") from None
    if not isinstance(old, dict) or not isinstance(old.get("paths"), dict):
        raise click.BadParameter(f"{kept} is no OpenAPI document", param_hint="--check")
    changes = breaking_changes(old, spec)
    for change in changes:
        click.echo(change)
    if changes:
        raise click.ClickException(f"{len(changes)} changes break clients of {kept}")
    click.echo(f"nothing breaks clients of {kept}")
