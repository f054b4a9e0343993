"""`maniflex files check | sweep | adopt module:server`: look after stored files from a terminal."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from maniflex.app.server import Server
from maniflex.cli.output import Progress, json_option, print_json
from maniflex.cli.process import load_sealed, run_once
from maniflex.files.cleaner import CleanReport
from maniflex.files.inventory import FileCheck

T = TypeVar("T")
_target = click.argument("target", metavar="MODULE:SERVER")


@click.group()
def files() -> None:
    """Compare stored files with records, remove those nobody needs, take in others."""


@files.command(epilog="Example: maniflex files check app:server")
@_target
@json_option
def check(target: str, as_json: bool) -> None:
    """Compare storage, tables and records both ways; ends with 1 if they differ."""
    server = _load(target)
    report = _with_progress(server, server.files.check)
    if as_json:
        print_json(
            {name: list(getattr(report, name)) for name in ("orphans", "missing", "dangling", "unlinked")}
        )
    else:
        _print_check(report)
    sys.exit(0 if report.is_clean else 1)


@files.command(epilog="Example: maniflex files sweep app:server")
@_target
def sweep(target: str) -> None:
    """Remove files that were given up, or that no record named in time; ends with 1 if one could not be."""
    server = _load(target)
    report = run_once(server, server.files.sweep)
    print_clean_report(report)
    sys.exit(1 if report.failed else 0)


def print_clean_report(report: CleanReport) -> None:
    """Say what one sweep of files removed."""
    click.echo(
        f"{report.removed} files removed, {report.failed} failed,"
        f" {report.temporaries} remains of killed uploads removed"
    )


@files.command(epilog="Example: maniflex files adopt app:server --prefix uploads/")
@_target
@click.option("--prefix", default="", help="Only objects whose key begins like this.")
def adopt(target: str, prefix: str) -> None:
    """Take in objects that were stored before, and link the records that name them."""
    server = _load(target)
    adoption = _with_progress(server, lambda on_each: server.files.adopt(prefix, on_each))
    click.echo(f"{adoption.files} files taken in, {adoption.links} links made")


def _load(target: str) -> Server:
    server = load_sealed(target)
    if not server.files.has_storage:
        raise click.ClickException("the server has no storage of files")
    return server


def _with_progress(server: Server, work: Callable[[Callable[[], None]], Awaitable[T]]) -> T:
    async def run() -> T:
        with Progress("files") as progress:
            return await work(progress.one_more)

    return run_once(server, run)


def _print_check(report: FileCheck) -> None:
    for title, lines in (
        ("object without a row", report.orphans),
        ("file without an object", report.missing),
        ("dangling link", report.dangling),
        ("record without a link", report.unlinked),
    ):
        for line in lines:
            click.echo(f"{title}: {line}")
    if not report.lists_objects:
        click.echo("the storage cannot tell which objects it has; orphans were not looked for", err=True)
    click.echo(
        f"{len(report.orphans)} orphans, {len(report.missing)} missing, {len(report.dangling)} dangling,"
        f" {len(report.unlinked)} unlinked"
    )
