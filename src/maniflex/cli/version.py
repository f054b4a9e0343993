"""`maniflex version`: which versions are at work, for bug reports."""

from __future__ import annotations

import platform
import sqlite3
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

import click

from maniflex.cli.output import print_json

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
