"""`maniflex routes module:server`: the routes, each with its owner or its guards."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from maniflex._callables import label_of
from maniflex.app.server import Server
from maniflex.cli.output import (
    MASK,
    json_option,
    mask_address,
    print_json,
    print_table,
    shorten,
    target_argument,
)
from maniflex.cli.process import load
from maniflex.config import CODE, DEFAULT, SETTINGS, Config
from maniflex.errors import ManiflexError
from maniflex.openapi.breaking import breaking_changes


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


# `maniflex check module:server`: is it declared right? Touches no database.


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


# `maniflex openapi module:server`: the API description, as a client would get it. Touches no database.


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


# `maniflex config module:server`: every setting, its value and where it came from. Touches no database.


WIDEST = 60
_SECRET = re.compile(r"secret|password|signing_key|token|api_key|credential")


@click.command(epilog="Example: maniflex config app:server --changed")
@target_argument
@click.option("--changed", is_flag=True, help="Only settings that are not at their default.")
@json_option
def config(target: str, changed: bool, as_json: bool) -> None:
    """Print every setting, its value with secrets masked, and where it came from."""
    settings = load(target).config
    defaults = {row["setting"]: row["value"] for row in setting_rows(Config())}
    rows = [row for row in setting_rows(settings) if not changed or row["value"] != defaults[row["setting"]]]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("setting", "value", "source", "variable"),
        [
            (row["setting"], shorten(str(row["value"]), WIDEST), row["source"], row["variable"])
            for row in rows
        ],
    )


def setting_rows(settings: Config) -> list[dict[str, Any]]:
    """Each setting with its value, its source (`default`, `variable` or `code`) and its variable."""
    rows = []
    for name, setting in SETTINGS.items():
        origin = settings.origin(name)
        is_variable = origin not in (CODE, DEFAULT)
        rows.append(
            {
                "setting": name,
                "value": show_value(name, getattr(settings, name)),
                "source": "variable" if is_variable else origin,
                "variable": origin if is_variable else setting.variable or "",
            }
        )
    return rows


def show_value(name: str, value: Any) -> str | int | float | bool | None:
    """The value as text, or as it is where JSON has it; passwords and keys are masked."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if _SECRET.search(name) and value:
        return MASK
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, str):
        return mask_address(value)
    if isinstance(value, Mapping) or is_dataclass(value):
        return _show_parts(value)
    if isinstance(value, Sequence):
        return ", ".join(str(show_value(name, one)) for one in value)
    if isinstance(value, Callable):  # type: ignore[arg-type]  # as an abstract class
        return label_of(value)
    return type(value).__name__


def _show_parts(value: Any) -> str:
    parts = value if isinstance(value, Mapping) else {f.name: getattr(value, f.name) for f in fields(value)}
    return ", ".join(f"{name}={show_value(name, part)}" for name, part in parts.items())


# `maniflex version`: which versions are at work, for bug reports.


LIBRARIES = (
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "pydantic",
    "pydantic-core",
    "msgspec",
    "sqlalchemy",
    "alembic",
    "cronsim",
    "click",
    "jinja2",
    "python-multipart",
    "asyncpg",
    "redis",
    "obstore",
    "pyjwt",
    "cryptography",
    "prometheus-client",
)


@click.command(epilog="Example: maniflex version --all")
@click.option("--all", "every", is_flag=True, help="Also of Python, SQLite, drivers and libraries.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of lines.")
def version(every: bool, as_json: bool) -> None:
    """Print the version of maniflex, and with --all of what it stands on."""
    versions = {"maniflex": installed_version("maniflex")}
    if every:
        versions |= {
            "python": sys.version.split()[0],
            "platform": platform.platform(),
            "sqlite": sqlite3.sqlite_version,
            **{name: _version_of(name) for name in LIBRARIES},
        }
    if as_json:
        print_json(versions)
        return
    for name, text in versions.items():
        click.echo(f"{name:<20}{text}")


def _version_of(library: str) -> str:
    try:
        return installed_version(library)
    except PackageNotFoundError:
        return "not installed"


# `maniflex completion bash|zsh|fish`: what makes a shell complete the commands.


WHERE = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/completions/maniflex.fish"}


@click.command(epilog="Example: maniflex completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(sorted(WHERE)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options; append it to the settings of your shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, "maniflex", "_MANIFLEX_COMPLETE")
    variables = script.source_vars()
    click.echo(script.source_template % variables)
