"""`maniflex keys`: the keys of encrypted fields, what is stored under which, and writing it anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click

from maniflex.app.encryption import encrypted_fields
from maniflex.app.server import Server
from maniflex.cli.output import Progress, json_option, print_json, print_table, target_argument
from maniflex.cli.process import load_sealed, run_once
from maniflex.encryption.local import NAMES, EnvKeyProvider, generate_key, is_key_id
from maniflex.encryption.rotation import KeyCount, RotationReport

_MOST_SHOWN = 20
MOST_OF_A_KEY = 1 << 31  # values under one key whose nonces are random


@click.group(short_help="Keys of encrypted fields.")
def keys() -> None:
    """Keys of encrypted fields."""


@keys.command(epilog="Example: maniflex keys generate patient-pii >> .env")
@click.argument("key_id", default="default")
def generate(key_id: str) -> None:
    """Print a new key as the line of an environment file, for the key id KEY_ID."""
    if not is_key_id(key_id):
        raise click.BadParameter(f"{key_id!r}: {NAMES}", param_hint="KEY_ID")
    click.echo(f"{EnvKeyProvider().variable_of(key_id)}={generate_key()}")


@keys.command(epilog="Example: maniflex keys status app:server")
@target_argument
@click.option("--model", "models", multiple=True, help="Only this model; may be repeated.")
@click.option("--work", is_flag=True, help="What runs and messages hold encrypted, too.")
@json_option
def status(target: str, models: tuple[str, ...], work: bool, as_json: bool) -> None:
    """Say how many values each encrypted field has under each key."""
    server = load_sealed(target)
    counts: Sequence[KeyCount] = run_once(server, lambda: server.keys.status(*models, work=work))
    if as_json:
        print_json([asdict(count) for count in counts])
        return
    rows = [
        (
            one.model,
            one.field,
            one.key_id or ("plain text" if not one.place else f"plain text in {one.place}"),
            str(one.version or ""),
            str(one.count),
            "current" if one.is_current else "old",
        )
        for one in counts
    ]
    if not rows:
        click.echo("nothing is stored in encrypted fields")
        return
    print_table(("model", "field", "key", "version", "values", "state"), rows)
    for one in counts:
        if one.count >= MOST_OF_A_KEY:
            click.echo(f"{one.model}.{one.field}: too many values under {one.key_id!r}; rotate it", err=True)
    click.echo(f"{sum(one.count for one in counts if not one.is_current)} values are not under a current key")
    if any(not one.key_id for one in counts):
        click.echo(
            "`maniflex keys rotate --plaintext` encrypts plain texts and takes them out of other tables"
        )


@keys.command(epilog="Example: maniflex keys check app:server")
@target_argument
@click.option("--model", "models", multiple=True, help="Only this model; may be repeated.")
@json_option
def check(target: str, models: tuple[str, ...], as_json: bool) -> None:
    """Open every encrypted value and compare every digest; nothing is written.

    Ends with 1 if one does not open.
    """
    server = load_sealed(target)
    _show(run_once(server, lambda: server.keys.check(*models)), as_json, verb="to rotate")


@keys.command(epilog="Example: maniflex keys rotate app:server --model Patient")
@target_argument
@click.option("--model", "models", multiple=True, help="Only this model; may be repeated.")
@click.option("--old", help="Only values under this key.")
@click.option("--new", help="The key to write under, instead of the current one.")
@click.option("--page-size", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--dry-run", is_flag=True, help="Open everything and write nothing.")
@click.option(
    "--plaintext",
    is_flag=True,
    help="Encrypt texts from before too, and take them out of history, audit and kept answers.",
)
@click.option("--work", is_flag=True, help="What runs and messages hold encrypted, too.")
@json_option
def rotate(
    target: str,
    models: tuple[str, ...],
    old: str | None,
    new: str | None,
    page_size: int,
    dry_run: bool,
    plaintext: bool,
    work: bool,
    as_json: bool,
) -> None:
    """Write encrypted values under the current key of their field.

    Every value is opened before the first is written. A command that was ended goes on where it was.
    Ends with 1 if something is left.
    """
    server = load_sealed(target)
    names = models or tuple(dict.fromkeys(meta.name for meta, _ in encrypted_fields(_metas(server))))

    async def rotate_all() -> list[RotationReport]:
        reports = []
        with Progress("rows") as progress:
            for name in names:
                report = await server.keys.rotate(
                    name,
                    old,
                    new,
                    page_size=page_size,
                    dry_run=dry_run,
                    plaintext=plaintext,
                    on_rows=_counter(progress),
                )
                reports.append(report)
            if work:
                count = _counter(progress)
                reports += await server.keys.rotate_work(old, new, dry_run=dry_run, on_rows=count)
        return reports

    _show(run_once(server, rotate_all), as_json, verb="to rotate" if dry_run else "rotated")


@keys.command(epilog="Example: maniflex keys decrypt app:server --model Patient --field note")
@target_argument
@click.option("--model", required=True)
@click.option("--field", required=True, help="It is declared without encrypted=.")
@click.option("--label", help="What its values are bound to, where that is not its table.column.")
@json_option
def decrypt(target: str, model: str, field: str, label: str | None, as_json: bool) -> None:
    """Make plain text of the values of a field that is encrypted no longer."""
    server = load_sealed(target)

    async def work() -> list[RotationReport]:
        with Progress("rows") as progress:
            return [await server.keys.decrypt(model, field, label=label, on_rows=_counter(progress))]

    with server.on_database(None, keys_required=False):
        _show(run_once(server, work), as_json, verb="decrypted")


def _metas(server: Server) -> Sequence[Any]:
    return [*server._seal().runtime.models.values()]


def _counter(progress: Progress) -> Callable[[int], None]:
    def count(rows: int) -> None:
        for _ in range(rows):
            progress.one_more()

    return count


def _show(reports: Sequence[RotationReport], as_json: bool, *, verb: str) -> None:
    """Print what became of the rows, and end with 1 if something is left."""
    if as_json:
        print_json([asdict(report) for report in reports])
    for report in () if as_json else reports:
        done = report.total - report.skipped if verb == "to rotate" else report.rotated
        click.echo(f"{report.model}: {report.total} rows, {done} {verb}, {len(report.failures)} failures")
        for note in report.notes:
            click.echo(f"{report.model}: {note}")
        for failure in report.failures[:_MOST_SHOWN]:
            where = f"{report.model}.{failure.field} {failure.id}"
            click.echo(f"{where}: {failure.stage}: {failure.reason}", err=True)
    is_whole = verb == "to rotate" or all(report.complete for report in reports)
    sys.exit(0 if is_whole and not any(report.failures for report in reports) else 1)
