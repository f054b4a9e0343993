"""`maniflex backup module:server FILE`: a copy of a SQLite database while it is in use."""

from __future__ import annotations

import hashlib
import os
import shlex
import sqlite3
from pathlib import Path

import click

from maniflex.cli.address import address_for_programs
from maniflex.cli.database import check_file
from maniflex.cli.output import target_argument
from maniflex.cli.progress import Progress
from maniflex.cli.target import load_sealed
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.db.sqlite.connect import compare_decimals
from maniflex.errors import ManiflexError

PAGES = 1000  # copied before other writers get a turn
CHUNK = 1 << 20


@click.command(epilog="Example: maniflex backup app:server backups/shop-2026-11-17.db")
@target_argument
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def backup(target: str, file: Path) -> None:
    """Copy the SQLite database to FILE while it is in use, and check the copy.

    On PostgreSQL nothing is copied; the pg_dump command that does it is printed instead.
    """
    server = load_sealed(target)
    adapter = server.adapters[0]
    if not isinstance(adapter, SqliteAdapter):
        click.echo("PostgreSQL has a command of its own for this; nothing was copied. Type:", err=True)
        address = address_for_programs(str(server.config.database))
        click.echo(shlex.join(["pg_dump", "--format=custom", f"--file={file}", address]))
        return
    try:
        check_file(adapter)
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    if file.exists():
        raise click.ClickException(f"{file} is there already; name another file")
    if not file.absolute().parent.is_dir():
        raise click.ClickException(f"there is no directory {file.absolute().parent}")
    partial_file = file.with_name(f"{file.name}.partial-{os.getpid()}")
    try:
        _copy(adapter._path, partial_file)
        _check(partial_file)
        digest = _digest(partial_file)
        partial_file.rename(file)
    except (sqlite3.Error, OSError) as error:
        raise click.ClickException(f"the database could not be copied: {error}") from None
    finally:
        partial_file.unlink(missing_ok=True)
    click.echo(f"{file}: {file.stat().st_size:,} bytes, integrity ok, sha256 {digest}")


def _copy(path: str, file: Path) -> None:
    source, target = (
        sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True),
        sqlite3.connect(file),
    )
    try:
        with Progress("pages") as progress:
            source.backup(target, pages=PAGES, progress=lambda status, left, total: progress.to(total - left))
        target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    finally:
        target.close()
        source.close()


def _check(file: Path) -> None:
    connection = sqlite3.connect(file)
    try:
        connection.create_collation("decimal", compare_decimals)
        problems = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    finally:
        connection.close()
    if problems != ["ok"]:
        raise click.ClickException(f"the database is damaged: {'; '.join(problems[:5])}")


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
