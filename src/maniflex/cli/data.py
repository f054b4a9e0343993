"""Commands on records and files: `export`, `import`, `copy`, `files`, `sweep`."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import click

from maniflex.app.server import Server
from maniflex.app.transfer import (
    DataCopy,
    FileImport,
    PipelineTarget,
    UnscopedTarget,
    export_as,
    export_unscoped,
    model_of,
)
from maniflex.background.scheduled_fields.observers import Report
from maniflex.cli.output import Progress, json_option, print_json, print_table, target_argument
from maniflex.cli.process import check_file, load, load_sealed, run_once, stop_early
from maniflex.db.transfer.copier import BATCH, TableReport
from maniflex.errors import ManiflexError
from maniflex.features.export import Format, available_formats, harmless
from maniflex.files.cleaner import CleanReport
from maniflex.files.inventory import FileCheck
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


# `maniflex copy module:server --from URL --to URL`: move the data of an application to another
# database.


COLUMNS = ("table", "rows", "copied", "same")


async def _warn_of_processes(data: DataCopy) -> None:
    for process in await data.living():
        click.echo(
            f"warning: the application runs on {process.host} (process {process.pid}); what it writes"
            " from now on may be missing in the copy. Stop it, empty the target and copy again",
            err=True,
        )


@click.command(
    epilog="Example: maniflex copy app:server --from sqlite:///shop.db --to postgresql://localhost/shop"
)
@target_argument
@click.option("--from", "source", help="Address of the database to read; the application's own unless told.")
@click.option("--to", "destination", required=True, help="Address of the database to fill.")
@click.option(
    "--batch",
    type=click.IntRange(1, 100_000),
    default=BATCH,
    show_default=True,
    help="Rows in a transaction, if they are small.",
)
@click.option("--check", is_flag=True, help="Copy nothing; only compare the two.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def copy(target: str, source: str | None, destination: str, batch: int, check: bool, as_json: bool) -> None:
    """Copy all data of the application to another database, then compare the two.

    Stop the application first. A copy that was interrupted goes on where it was when it is started again.
    It ends with 1 when the two databases differ.
    """
    server = load(target)
    origin = source or server.config.database
    if not isinstance(origin, str):
        raise click.UsageError("the application has no address of a database; say --from")
    if origin == destination:
        raise click.UsageError("--from and --to are the same database")
    for option, address in (("--from", origin), ("--to", destination)):
        try:
            server.config.with_(database=address, read_database=None)
        except ManiflexError as error:
            raise click.UsageError(f"{option}: {error}") from None
    try:
        data = DataCopy(server, origin, destination)
        check_file(data.copier.source)
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    for name in data.left_out:
        click.echo(f"{name} is kept outside this database and stays where it is", err=True)

    async def work() -> tuple[int, list[TableReport]]:
        async with data.open(makes_tables=not check) as copier:
            total, count = await copier.count_rows(), 0
            if not check:
                await _warn_of_processes(data)
                positions = await copier.begin()
                before = sum(position.copied for position in positions.values())
                with Progress("copied", total) as progress:
                    progress.to(before)
                    count = await copier.copy(positions, progress.after(before), batch)
            with Progress("compared", 2 * total) as progress:
                reports = await copier.compare(progress.to)
            if not check and all(report.is_same for report in reports):
                await data.finish()
            return count, reports

    count, reports = run_once(server, work, within=nullcontext)
    _print_reports(reports, as_json)
    differing = [report for report in reports if not report.is_same]
    if not as_json:
        rows = sum(report.target_rows for report in reports)
        if not differing:
            did = "compared" if check else f"{count:,} rows copied"
            click.echo(f"{did}: {rows:,} rows in {len(reports)} tables, counts and checksums are equal")
    for report in differing:
        ids = ", ".join(report.differing_ids)
        click.echo(f"{report.name}: the two differ, first in {ids}", err=True)
    if differing and not check:
        click.echo("was the source written to? stop the application, empty the target, copy again", err=True)
    if differing:
        sys.exit(1)


def _print_reports(reports: Sequence[TableReport], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "table": report.name,
                    "source_rows": report.source_rows,
                    "target_rows": report.target_rows,
                    "is_same": report.is_same,
                    "differing_ids": list(report.differing_ids),
                }
                for report in reports
            ]
        )
        return
    rows = [
        (report.name, report.source_rows, report.target_rows, "yes" if report.is_same else "NO")
        for report in reports
        if report.source_rows or report.target_rows or not report.is_same
    ]
    print_table(COLUMNS, rows)


# `maniflex files check | sweep | adopt module:server`: look after stored files from a terminal.


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


@files.command("sweep", epilog="Example: maniflex files sweep app:server")
@_target
def sweep_files(target: str) -> None:
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


# `maniflex sweep module:server`: serve the scheduled fields that are due and remove files, once.


_PARTS = ("scheduled", "files", "retention")


def _read_parts(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...]:
    if text is None:
        return _PARTS
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in _PARTS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(_PARTS)}; separate several by commas")
    return names


@click.command(epilog="Example: maniflex sweep app:server")
@click.argument("target", metavar="MODULE:SERVER")
@click.option(
    "--only", callback=_read_parts, metavar="PARTS", help="Of scheduled,files,retention; all without it."
)
def sweep(target: str, only: tuple[str, ...]) -> None:
    """Serve scheduled fields that are due; remove files that were given up, and what is kept no longer.

    Ends with 1 when something went wrong.
    """
    server = load_sealed(target)
    one = _Sweep(server, only)
    run_once(server, one.run, ask_to_stop=one.stop)
    if one.stopping:
        stop_early(one.print_summary)
    one.print_summary()
    sys.exit(1 if one.has_failed else 0)


class _Sweep:
    """One sweep, which can be asked to stop between two batches."""

    def __init__(self, server: Server, parts: Sequence[str]) -> None:
        self._server = server
        self._parts = parts
        self._begun = False
        self.stopping = False
        self._records: Report | None = None
        self._files: CleanReport | None = None
        self._retention: Report | None = None

    def stop(self) -> bool:
        """Begin no other batch; False when there is none yet that could come to its end."""
        self.stopping = self._begun
        return self._begun

    async def run(self) -> None:
        self._begun = True
        if "scheduled" in self._parts:
            self._records = await self._sweep_records()
        if "retention" in self._parts and not self.stopping:
            self._retention = await self._remove_old()
        if "files" in self._parts and self._server.files.has_storage and not self.stopping:
            self._files = await self._server.files.sweep()

    @property
    def has_failed(self) -> bool:
        return any(
            report is not None and report.failed for report in (self._records, self._retention, self._files)
        )

    def print_summary(self) -> None:
        if self._records is not None:
            _print_summary(self._records)
        if self._retention is not None and (self._retention.per_model or self._parts == ("retention",)):
            _print_summary(self._retention, "retention: ")
        if self._files is not None:
            print_clean_report(self._files)

    async def _sweep_records(self) -> Report:
        with Progress("records") as progress:

            def count(*about: object) -> None:
                progress.one_more()

            hook = count if progress.shown else None
            runner = self._server.scheduled.runner(on_delete=hook, on_set_field=hook)
            return await runner.sweep(until=lambda: self.stopping)

    async def _remove_old(self) -> Report:
        with Progress("old records") as progress:

            def count(*about: object) -> None:
                progress.one_more()

            hook = count if progress.shown else None
            return await self._server.retention.sweep(until=lambda: self.stopping, on_delete=hook)


def _print_summary(report: Report, about: str = "") -> None:
    for name, part in sorted(report.per_model.items()):
        click.echo(f"{name}: {part.deleted} deleted, {part.updated} updated, {part.skipped} skipped")
    for failure in report.errors:
        where = f"{failure.model}.{failure.field}" + (f" {failure.id}" if failure.id else "")
        click.echo(f"{where}: {failure.message}", err=True)
    more = ", more is due" if report.truncated else ""
    click.echo(
        f"{about}{report.deleted} deleted, {report.updated} updated, {report.skipped} skipped,"
        f" {report.failed} failed{more}"
    )


# `maniflex drain module:server`: work on everything that is due now, once, and end.

# Counters of the outcomes, and how they are called in the summary.
RUNS = {
    "runs_succeeded_total": "succeeded",
    "runs_retried_total": "to be tried again",
    "runs_failed_total": "failed",
}
MESSAGES = {
    "outbox_delivered_total": "delivered",
    "outbox_failed_total": "to be tried again",
    "outbox_dead_total": "given up",
}
EVENTS = {
    "events_delivered_total": "delivered",
    "events_failed_total": "to be tried again",
    "events_dead_total": "given up",
}
JOBS = ("jobs_succeeded_total", "jobs_retried_total", "jobs_dead_total", "jobs_lease_losses_total")
_BAD = ("to be tried again", "failed", "given up")


@click.command(epilog="Example: maniflex drain app:server --only runs")
@click.argument("target", metavar="MODULE:SERVER")
@click.option(
    "--only",
    type=click.Choice(["runs", "outbox", "events", "webhooks", "jobs"]),
    help="Leave the others alone.",
)
def drain(target: str, only: str | None) -> None:
    """Work on due runs, messages, events, webhooks and jobs until none is left; ends with 1 if one failed."""
    server = load_sealed(target)
    if only == "jobs" and not server.jobs.has_external_handlers:
        raise click.ClickException("jobs have no queue of their own here: they are runs, see --only runs")
    run_once(
        server, lambda: _drain(server, only), so_far=lambda: _print_work_done(server, only, "not finished")
    )
    has_failures = _print_work_done(server, only, "paused")
    sys.exit(1 if has_failures else 0)


async def _drain(server: Server, only: str | None) -> None:
    """In turn, until none has anything: a message may submit a run, and a run may leave a message."""
    does_runs = only in (None, "runs") and len(server.work.handlers) > 0
    does_outbox = only in (None, "outbox") and server.outbox.is_used
    does_events = only in (None, "events") and server.events.is_used
    does_webhooks = only in (None, "webhooks") and server.webhooks.is_used
    worker = server.work.worker() if does_runs else None
    drainer = server.outbox.drainer() if does_outbox else None
    jobs = server.jobs.worker() if _does_jobs(server, only) else None
    total, count = await _waiting(server, only), 0
    with Progress("drained", total) as progress:
        while True:
            before = count
            if does_events:
                count += await server.events.drain()
            if does_webhooks:
                count += await server.webhooks.drain()
            if drainer is not None:
                count += await drainer.drain(progress.after(count))
            if worker is not None:
                count += await worker.drain(progress.after(count))
            if jobs is not None:
                count += await jobs.drain()
            if count == before:
                return


def _does_jobs(server: Server, only: str | None) -> bool:
    return only in (None, "jobs") and server.jobs.has_external_handlers


async def _waiting(server: Server, only: str | None) -> int:
    gauges = {"runs": "runs_due", "outbox": "outbox_pending"}
    gauge_names = [gauge for part, gauge in gauges.items() if only in (None, part)]
    return int(sum(sample.value for sample in await server.metrics.gauges() if sample.name in gauge_names))


def _print_work_done(server: Server, only: str | None, rest: str) -> bool:
    """Say what came of it, `rest` being the runs without an outcome; whether something failed."""
    counts_by_part = {"runs": _counts_by_word(server, RUNS), "outbox": _counts_by_word(server, MESSAGES)}
    if server.events.is_used:
        counts_by_part["events"] = _counts_by_word(server, EVENTS)
    if server.webhooks.is_used:
        counts_by_part["webhooks"] = _attempts_by_word(server)
    counts_by_part["runs"][rest] = _runs_begun(server) - sum(counts_by_part["runs"].values())
    for part in [part for part in counts_by_part if only not in (None, part)]:
        del counts_by_part[part]
    for part, counts in counts_by_part.items():
        click.echo(f"{part}: {', '.join(f'{n} {word}' for word, n in counts.items())}")
    if _does_jobs(server, only):
        click.echo(f"jobs: {sum(_count(server, name) for name in JOBS)} worked on")
    return any(counts.get(word) for counts in counts_by_part.values() for word in _BAD)


def _runs_begun(server: Server) -> int:
    """Runs that were begun here and did not become another worker's."""
    return _count(server, "runs_claimed_total") - _count(server, "runs_lease_losses_total")


def _counts_by_word(server: Server, names: Mapping[str, str]) -> dict[str, int]:
    return {word: _count(server, name) for name, word in names.items()}


def _attempts_by_word(server: Server) -> dict[str, int]:
    """The requests to endpoints by what came of them."""
    outcomes = {
        dict(sample.labels).get("outcome"): int(sample.value)
        for sample in server.metrics.counters()
        if sample.name == "webhooks_attempts_total"
    }
    delivered = outcomes.get("delivered", 0)
    return {"delivered": delivered, "to be tried again": sum(outcomes.values()) - delivered}


def _count(server: Server, name: str) -> int:
    return int(server.metrics.value(name))
