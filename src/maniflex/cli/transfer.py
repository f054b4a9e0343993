"""`maniflex export | import module:server Model`: records to and from files, as an identity or unscoped."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from maniflex.app.server import Server
from maniflex.app.transfer import (
    FileImport,
    PipelineTarget,
    UnscopedTarget,
    export_as,
    export_unscoped,
    model_of,
)
from maniflex.cli.output import Progress, print_json, target_argument
from maniflex.cli.process import load_sealed, run_once
from maniflex.errors import ManiflexError
from maniflex.features.export import Format, available_formats
from maniflex.features.tabular import harmless
from maniflex.pipeline.context import AuthInfo
from maniflex.transfer.batches import RowOutcome, RowResult
from maniflex.transfer.importer import TryLater
from maniflex.transfer.source import ENCODINGS, SEPARATORS, UnreadableFile, format_of

F = TypeVar("F", bound=Callable[..., Any])
_MOST_SHOWN = 20


def identity_options(fn: F) -> F:
    """`--as`, `--role`, `--tenant` and `--unscoped`."""
    for option in (
        click.option(
            "--unscoped", is_flag=True, help="Bound by no identity: all records, no rule but those of fields."
        ),
        click.option("--tenant", default="", help="With --as: the tenant of that user."),
        click.option(
            "--role", "roles", multiple=True, help="With --as: a role of that user; may be repeated."
        ),
        click.option("--as", "user", default="", help="The user whose permissions bind the command."),
    ):
        fn = option(fn)
    return fn


def identity_of(user: str, roles: Sequence[str], tenant: str, unscoped: bool) -> AuthInfo | None:
    """Who acts; None when that is said to be nobody in particular."""
    if unscoped and (user or roles or tenant):
        raise click.UsageError("--unscoped is bound by no identity; leave out --as, --role and --tenant")
    if not unscoped and not user:
        raise click.UsageError(
            "say who acts, with --as (--role, --tenant), or that nobody does, with --unscoped"
        )
    return None if unscoped else AuthInfo(user_id=user, roles=tuple(roles), tenant_id=tenant)


@click.command(
    "export", epilog="Example: maniflex export app:server Post --as ada --role admin --out posts.csv"
)
@target_argument
@click.argument("model")
@click.option("--filter", "filters", multiple=True, help="A filter as in the query string; may be repeated.")
@click.option("--sort", default="", help="The order, such as title:desc.")
@click.option("--select", default="", help="Only these fields, separated by commas.")
@click.option(
    "--format",
    "kind",
    type=click.Choice([str(one) for one in Format]),
    help="Default: by the name of --out, else csv.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False), help="The file to write; without it, standard output."
)
@identity_options
def export_(
    target: str,
    model: str,
    filters: tuple[str, ...],
    sort: str,
    select: str,
    kind: str | None,
    out: str | None,
    user: str,
    roles: tuple[str, ...],
    tenant: str,
    unscoped: bool,
) -> None:
    """Write the records of a model into a file.

    With --as it is the export of the API for that user. With --unscoped all records are written, without
    their secrets.
    """
    auth = identity_of(user, roles, tenant, unscoped)
    format_ = Format(kind) if kind else _format_of(out)
    if format_ not in available_formats():
        raise click.ClickException('for xlsx files: pip install "maniflex[export]"')
    server = load_sealed(target)
    meta = _model(server, model)
    query = [("filter", one) for one in filters]
    query += [(name, value) for name, value in (("sort", sort), ("select", select)) if value]

    async def work() -> int:
        chunks = (
            export_unscoped(server._seal().runtime, meta, query, format_)
            if auth is None
            else await export_as(server, meta, auth, [*query, ("format", str(format_))])
        )
        size = 0
        async for chunk in chunks:
            size += file.write(chunk)
        return size

    with click.open_file(out or "-", "wb") as file:
        size = run_once(server, work)
    if out:
        click.echo(f"{size:,} bytes written to {out}", err=True)


def _format_of(out: str | None) -> Format:
    ending = (out or "").rpartition(".")[2].lower()
    return Format(ending) if ending in set(Format) else Format.CSV


def _model(server: Server, name: str) -> Any:
    try:
        return model_of(server, name)
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None


@click.command(
    "import", epilog="Example: maniflex import app:server Post posts.csv --as ada --role admin --upsert slug"
)
@target_argument
@click.argument("model")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--check", is_flag=True, help="Write nothing; say what would happen.")
@click.option("--upsert", default="", help="Update the record with the same value of this unique field.")
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="COLUMN=FIELD",
    help="The field of a column, empty to leave it out; may be repeated.",
)
@click.option(
    "--encoding", type=click.Choice(ENCODINGS), help="How the text is written; found out unless told."
)
@click.option(
    "--separator", type=click.Choice(list(SEPARATORS)), help="What separates cells; found out unless told."
)
@click.option(
    "--refused",
    "refusals",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the numbers of refused lines and the reasons into this csv file.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@identity_options
def import_(
    target: str,
    model: str,
    file: Path,
    check: bool,
    upsert: str,
    maps: tuple[str, ...],
    encoding: str | None,
    separator: str | None,
    refusals: Path | None,
    as_json: bool,
    user: str,
    roles: tuple[str, ...],
    tenant: str,
    unscoped: bool,
) -> None:
    """Create or update a record for each line of a csv, jsonl or xlsx file.

    It ends with 1 when lines were refused. A command that was interrupted is typed again; with --upsert,
    lines that are stored already change nothing.
    """
    auth = identity_of(user, roles, tenant, unscoped)
    names = dict(_pair(one) for one in maps)
    server = load_sealed(target)
    meta = _model(server, model)
    report = ImportReport()

    async def work() -> None:
        place = UnscopedTarget(server, meta) if auth is None else PipelineTarget(server, meta, auth)
        run = FileImport(server, meta, place, file, format_of(file.name))
        await run.look(encoding, SEPARATORS.get(separator or ""))
        report.columns = run.columns
        unknown = [name for name in names if name not in run.columns]
        if unknown:
            raise UnreadableFile(f"--map: the file has no column {unknown[0]!r}")
        with Progress("checked" if check else "imported") as progress:
            async for outcomes in run.run(names, upsert, is_check=check):
                report.add(outcomes, progress)

    try:
        run_once(server, work, so_far=lambda: report.show(as_json, check))
    except TryLater as error:
        raise click.ClickException(f"{error}; type the command again") from None
    report.show(as_json, check)
    if refusals is not None and report.problems:
        report.write(refusals)
    if report.problems:
        sys.exit(1)


def _pair(text: str) -> tuple[str, str]:
    column, sign, name = text.rpartition("=")
    if not sign:
        raise click.UsageError(f"--map {text}: write it as column=field")
    return column, name


class ImportReport:
    """What became of the lines."""

    def __init__(self) -> None:
        self.columns: Sequence[str] = ()
        self.problems: list[tuple[int, str, str]] = []
        self._counts: Counter[RowResult] = Counter()

    def add(self, outcomes: Sequence[RowOutcome], progress: Progress) -> None:
        """Count some lines."""
        for outcome in outcomes:
            self._counts[outcome.result] += 1
            self.problems += [(outcome.line, name, text) for name, text in outcome.problems]
        progress.to(self._counts.total())

    def show(self, as_json: bool, is_check: bool) -> None:
        """Print the counts and the first refusals."""
        counts = {str(result): self._counts[result] for result in RowResult}
        if as_json:
            refusals = [{"line": line, "field": name, "message": text} for line, name, text in self.problems]
            print_json({**counts, "refusals": refusals})
            return
        for line, name, text in self.problems[:_MOST_SHOWN]:
            click.echo(f"line {line}: {f'{name}: ' if name else ''}{text}", err=True)
        if len(self.problems) > _MOST_SHOWN:
            click.echo(f"… and {len(self.problems) - _MOST_SHOWN} more", err=True)
        would = "would be " if is_check else ""
        click.echo(" · ".join(f"{would}{name} {count:,}" for name, count in counts.items()))

    def write(self, path: Path) -> None:
        """Write line numbers, fields and reasons into a csv file."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["line", "field", "message"])
            writer.writerows((line, name, harmless(text)) for line, name, text in self.problems)
        click.echo(f"refused lines and reasons: {path}", err=True)
