"""`maniflex erase` and `maniflex subject map`: erase what is kept of a person, and show where it is kept."""

from __future__ import annotations

import json as json_module
import sys
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click

from maniflex.app.server import Server
from maniflex.cli.process import load_sealed, run_once
from maniflex.erasure.api import ErasedSubject, ErasureReport
from maniflex.erasure.inventory import ModelInventory, inventory
from maniflex.errors import ManiflexError

_LOG = "log"


@click.command(epilog="Example: maniflex erase app:server customer-7 --reason 'asked for it' --dry-run")
@click.argument("words", nargs=-1, metavar="MODULE:SERVER [SUBJECT] | log MODULE:SERVER [FILE]")
@click.option("--user-id", default=None, help="What the person signs in as; the subject unless told.")
@click.option("--reason", default=None, help="Why; kept with the erasure.")
@click.option("--by", default=None, help="Who erases; kept with the erasure.")
@click.option("--dry-run", is_flag=True, help="Count what would be erased, and change nothing.")
@click.option("--keep-running", is_flag=True, help="Leave what waits in queues to its end.")
@click.option("--rewrite", is_flag=True, help="Write tables anew that are larger than 100 MB, too.")
@click.option("--no-vacuum", is_flag=True, help="Write no table anew.")
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Erase again what a log has and the database does not know, as after a restored backup.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def erase(
    words: tuple[str, ...],
    user_id: str | None,
    reason: str | None,
    by: str | None,
    dry_run: bool,
    keep_running: bool,
    rewrite: bool,
    no_vacuum: bool,
    replay: Path | None,
    as_json: bool,
) -> None:
    """Erase what is kept of a person; `erase log` writes down which erasures have been finished.

    Ends with 1 when records are held and will be erased later.
    """
    if words[:1] == (_LOG,) and len(words) in (2, 3):
        _write_log(load_sealed(words[1]), words[2] if len(words) == 3 else None)
    elif replay is not None and len(words) == 1:
        _replay(load_sealed(words[0]), replay, vacuum=not no_vacuum)
    elif replay is None and len(words) == 2:
        options: dict[str, Any] = {"user_id": user_id, "reason": reason, "by": by, "rewrite": rewrite}
        options |= {"dry_run": dry_run, "keep_running": keep_running, "vacuum": not no_vacuum}
        report = _run(load_sealed(words[0]), words[1], options)
        if as_json:
            click.echo(json_module.dumps(report.as_json(), indent=2))
        else:
            print_report(report, dry_run=dry_run)
        sys.exit(1 if report.held else 0)
    else:
        raise click.UsageError("say MODULE:SERVER SUBJECT, MODULE:SERVER --replay FILE, or log MODULE:SERVER")


def _run(server: Server, subject: str, options: dict[str, Any]) -> ErasureReport:
    try:
        return run_once(server, lambda: server.erasure.erase(subject, **options))
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None


def print_report(report: ErasureReport, *, dry_run: bool = False) -> None:
    """The report for people to read."""
    for table, number in report.counts.items():
        click.echo(f"{table}: {number}")
    for model, record_id in report.held:
        click.echo(f"held, erased when the hold ends: {model} {record_id}")
    for model, record_id in report.restricted:
        click.echo(f"anonymised, because others need it: {model} {record_id}")
    for model, reason in report.kept.items():
        click.echo(f"kept: {model}: {reason}")
    for sentence in report.left:
        click.echo(f"not reached: {sentence}")
    total = sum(report.counts.values())
    click.echo(f"{total} rows {'would be' if dry_run else 'were'} erased of {report.subject}")


def _write_log(server: Server, file: str | None) -> None:
    entries = run_once(server, server.erasure.log)
    text = "".join(f"{json_module.dumps(entry.as_json())}\n" for entry in entries)
    if file is None:
        click.echo(text, nl=False)
    else:
        Path(file).write_text(text)
        click.echo(f"{len(entries)} erasures in {file}")


def _replay(server: Server, file: Path, *, vacuum: bool) -> None:
    try:
        log = [ErasedSubject(**json_module.loads(line)) for line in file.read_text().splitlines() if line]
    except (ValueError, TypeError):
        raise click.ClickException(f"{file} is no log of `maniflex erase log`") from None
    reports = run_once(server, lambda: server.erasure.replay(log, vacuum=vacuum))
    for report in reports:
        click.echo(f"{report.subject}: {sum(report.counts.values())} rows were erased")
    click.echo(f"{len(reports)} of {len(log)} erasures were repeated")


# `maniflex subject map module:server`: what the application keeps of persons.


@click.group()
def subject() -> None:
    """Look at what the application keeps of persons."""


@subject.command("map", epilog="Example: maniflex subject map app:server")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def map_(target: str, as_json: bool) -> None:
    """Print every model and field: whose data it is, what is personal, and what becomes of it."""
    server = load_sealed(target)
    entries = inventory(server.doctor_subject().own_models)
    if as_json:
        click.echo(json_module.dumps([entry.as_json() for entry in entries], indent=2))
        return
    for entry in entries:
        _print_entry(entry)


@subject.command("export", epilog="Example: maniflex subject export app:server customer-7 --out 7.zip")
@click.argument("target", metavar="MODULE:SERVER")
@click.argument("person", metavar="SUBJECT")
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The archive.")
@click.option("--history", is_flag=True, help="With the versions of the records.")
@click.option("--user-id", default=None, help="What the person signs in as; the subject unless told.")
@click.option("--reason", default=None, help="Why; kept by audit trails.")
def export_(
    target: str, person: str, out: Path, history: bool, user_id: str | None, reason: str | None
) -> None:
    """Write what is kept of a person into a ZIP archive."""
    server = load_sealed(target)

    async def write() -> int:
        parts = server.erasure.export(person, user_id=user_id, history=history, reason=reason)
        with zipfile.ZipFile(out, "x", zipfile.ZIP_DEFLATED) as archive:
            return await _write_parts(archive, parts)

    try:
        number = run_once(server, write)
    except FileExistsError:
        raise click.ClickException(f"{out} exists; a file that exists is never overwritten") from None
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{number} files in {out}")


async def _write_parts(archive: zipfile.ZipFile, parts: AsyncIterator[tuple[str, bytes]]) -> int:
    """Write the parts into files of the archive, one after the other; how many files."""
    current, file, number = "", None, 0
    async for name, content in parts:
        if name != current:
            if file is not None:
                file.close()
            current, file, number = name, archive.open(name, "w", force_zip64=True), number + 1
        assert file is not None
        file.write(content)
    if file is not None:
        file.close()
    return number


def _print_entry(entry: ModelInventory) -> None:
    reason = f" ({entry.reason})" if entry.reason else ""
    what = "no subject" if entry.subject is None else f"subject {entry.subject}, {entry.treatment}{reason}"
    click.echo(f"{entry.model}: {what}")
    for title, names in (
        ("personal", entry.personal),
        ("not personal", entry.texts),
        ("other", entry.others),
    ):
        if names:
            click.echo(f"  {title}: {', '.join(names)}")
