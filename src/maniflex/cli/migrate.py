"""`maniflex migrate …`: write, apply, undo and check the files that change the schema."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from maniflex._settings import read_duration
from maniflex.cli.output import Progress
from maniflex.cli.process import load, run_loop

if TYPE_CHECKING:
    from maniflex.db.short_locks import LockLimits
    from maniflex.schema.files import MigrationFile
    from maniflex.schema.steps import MigrationListener
    from maniflex.schema.target import MigrationTarget

T = TypeVar("T")
Work = Callable[["list[MigrationTarget]"], Awaitable[T]]
_application = click.argument("application", metavar="MODULE:SERVER")
_database = click.option("--database", metavar="NAME", help="Only this database, where there are several.")


@click.group()
def migrate() -> None:
    """Change the schema by reviewed files, such as `maniflex migrate up app:server`."""


def on_targets(
    application: str, work: Work[T], *, database: str | None = None, lock_limits: LockLimits | None = None
) -> T:
    """Open the databases of an application and hand them to `work`."""
    server = load(application)

    async def main() -> T:
        async with server.migration_targets(application, lock_limits) as targets:
            own_targets = [target for target in targets if database in (None, target.name)]
            if not own_targets:
                names = ", ".join(target.name for target in targets)
                raise click.UsageError(f"there is no database {database!r}; there are: {names}")
            return await work(own_targets)

    return run_loop(main())


class _Duration(click.ParamType[timedelta]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            duration: timedelta = read_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return duration


@migrate.command(epilog='Example: maniflex migrate make app:server -m "add price to books"')
@_application
@click.option("-m", "--message", default="", help="What the file does; its name and title.")
@click.option("--drop", is_flag=True, help="Also write a file that drops what no model has any more.")
@click.option("--empty", is_flag=True, help="Write a file without operations, for steps of your own.")
@click.option("--baseline", is_flag=True, help="Write the first file for a database that the start has made.")
@click.option("--allow-rewrite", is_flag=True, help="Let another type rewrite a whole table.")
@_database
def make(application: str, database: str | None, **options: Any) -> None:
    """Write a file of how the models differ from the database, or say that there is nothing to do."""
    from maniflex.schema.make import MakeOptions, Maker

    async def work(targets: list[MigrationTarget]) -> None:
        for target in targets:
            maker = Maker(target, MakeOptions(**options), datetime.now(UTC))
            files = await maker.make()
            for path in files.paths:
                click.echo(f"wrote {_short_path(path)}")
            for note in (*files.notes, *files.hints):
                click.echo(f"note: {note}")
            if not files.paths:
                click.echo(f"{_prefix(targets, target)}nothing to do")

    on_targets(application, work, database=database)


@migrate.command(epilog="Example: maniflex migrate up app:server --dry-run")
@_application
@click.argument("revision", default="head")
@click.option("--sql", is_flag=True, help="Print the statements instead of running them.")
@click.option("--dry-run", is_flag=True, help="Name the files and their operations, and change nothing.")
@click.option(
    "--lock-timeout", type=_Duration(), default="500ms", show_default=True, help="One wait for a lock."
)
@click.option("--tries", type=click.IntRange(1), default=30, show_default=True, help="How often to wait.")
@click.option("--allow-rewrite", is_flag=True, help="Let search rewrite a large table of PostgreSQL.")
@_database
def up(
    application: str,
    revision: str,
    sql: bool,
    dry_run: bool,
    lock_timeout: timedelta,
    tries: int,
    allow_rewrite: bool,
    database: str | None,
) -> None:
    """Apply the files that are pending, all of them or up to REVISION."""
    from maniflex.db.short_locks import LockLimits
    from maniflex.schema.apply import Migrator
    from maniflex.schema.check import pending_warnings, preview_sql, preview_steps

    async def work(targets: list[MigrationTarget]) -> None:
        for target in targets:
            if sql or dry_run:
                async for line in (preview_sql if sql else preview_steps)(target, revision):
                    click.echo(line)
                continue
            for warning in await pending_warnings(target, revision):
                click.echo(f"warning: {warning}", err=True)
            files: list[MigrationFile] = []
            with Progress("rows") as progress:
                count = await Migrator(target, _listener(progress, files), allow_rewrite).up(revision)
            nothing = "nothing more to do" if files else "nothing to do"
            if not target.files.exist:
                nothing += f": there are no files; write the first with {target.command('make @')}"
            click.echo(f"{_prefix(targets, target)}{_count_of_files(count, 'applied') if count else nothing}")

    lock_limits = LockLimits(lock_timeout=lock_timeout, tries=tries)
    on_targets(application, work, database=database, lock_limits=lock_limits)


@migrate.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: maniflex migrate down app:server --yes",
)
@_application
@click.argument("revision", default="-1")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_database
def down(application: str, revision: str, yes: bool, database: str | None) -> None:
    """Undo the last file, or all files behind REVISION (`base`: all of them)."""
    from maniflex.schema.apply import Migrator
    from maniflex.schema.check import files_to_undo

    async def work(targets: list[MigrationTarget]) -> None:
        for target in targets:
            files = await files_to_undo(target, revision)
            if not files:
                click.echo(f"{_prefix(targets, target)}nothing to do")
                continue
            names = "".join(f"\n  {file.title}" for file in files)
            click.echo(
                f"{target.adapter.label}: this undoes, with the data that only these columns hold:{names}"
            )
            if not yes and not await asyncio.to_thread(click.confirm, "Go on?"):
                raise click.exceptions.Exit(1)
            with Progress("rows") as progress:
                count = await Migrator(target, _listener(progress)).down(revision)
            click.echo(f"{_prefix(targets, target)}{_count_of_files(count, 'undone')}")

    on_targets(application, work, database=database)


@migrate.command(epilog="Example: maniflex migrate status app:server --json")
@_application
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_database
def status(application: str, as_json: bool, database: str | None) -> None:
    """List the files: applied, pending, changed, missing; drops ahead and several ends."""
    from maniflex.schema.check import advise_first_file, read_status

    async def work(targets: list[MigrationTarget]) -> None:
        reports = [await read_status(target) for target in targets]
        if as_json:
            click.echo(json.dumps([report.as_json() for report in reports], indent=2))
            return
        for report in reports:
            at = ", ".join(report.heads) if report.heads else "no revision"
            click.echo(f"{report.target.name} ({report.target.adapter.label}): at {at}")
            for state in report.files:
                marks = [state.state]
                if state.is_changed:
                    marks.append("CHANGED since")
                if state.file.drops and state.state != "applied":
                    marks.append("drops data")
                click.echo(f"  {state.file.revision}  {', '.join(marks):<12}  {state.file.title}")
            for problem in report.problems():
                click.echo(f"  {problem}")
            if not report.files and report.heads is None:
                differences = await report.target.differences()
                click.echo(f"  {advise_first_file(report.target, differences)}")

    on_targets(application, work, database=database)


@migrate.command(epilog="Example: maniflex migrate check app:server --replay")
@_application
@click.option("--replay", is_flag=True, help="Also apply all files to an empty database and compare.")
@_database
def check(application: str, replay: bool, database: str | None) -> None:
    """End with 1 when something is pending, drifts, or the models differ from the files."""
    from maniflex.schema.check import check_database, replay_problems

    async def work(targets: list[MigrationTarget]) -> tuple[bool, bool]:
        has_problems = False
        for target in targets:
            report = await check_database(target)
            problems = list(report.problems)
            if replay:
                problems += await replay_problems(target, report)
            for warning in report.warnings:
                click.echo(f"{_prefix(targets, target)}warning: {warning}")
            for problem in problems:
                click.echo(f"{_prefix(targets, target)}{problem}", err=True)
            has_problems = has_problems or bool(problems)
        return has_problems, any(target.files.exist for target in targets)

    has_problems, has_files = on_targets(application, work, database=database)
    if has_problems:
        sys.exit(1)
    if has_files:
        click.echo("ok: the database, the files and the models agree")
    else:
        click.echo("ok: the database and the models agree; there are no files")


@migrate.command(epilog="Example: maniflex migrate stamp app:server head")
@_application
@click.argument("revision", default="head")
@_database
def stamp(application: str, revision: str, database: str | None) -> None:
    """Note that the database is at REVISION, without applying anything."""
    from maniflex.schema.apply import stamp as note_revision

    async def work(targets: list[MigrationTarget]) -> None:
        for target in targets:
            await note_revision(target, revision)
            click.echo(f"{_prefix(targets, target)}stamped {revision}")

    on_targets(application, work, database=database)


@migrate.command(epilog="Example: maniflex migrate merge app:server")
@_application
@click.option("-m", "--message", default="merge", help="The title of the file.")
@_database
def merge(application: str, message: str, database: str | None) -> None:
    """Join the ends of the chain, which several people wrote at the same time."""
    from maniflex.schema.make import write_merge

    async def work(targets: list[MigrationTarget]) -> None:
        for target in targets:
            path = write_merge(target, message, datetime.now(UTC))
            click.echo("nothing to do" if path is None else f"wrote {_short_path(path)}")

    on_targets(application, work, database=database)


@migrate.command(epilog="Example: maniflex migrate show app:server head")
@_application
@click.argument("revision")
@_database
def show(application: str, revision: str, database: str | None) -> None:
    """Print a file and the operations it comes to on this database."""
    from maniflex.schema.check import describe_file

    async def work(targets: list[MigrationTarget]) -> None:
        for target in targets:
            for line in describe_file(target, revision):
                click.echo(line)

    on_targets(application, work, database=database)


@migrate.command(epilog="Example: maniflex migrate init app:server --alembic")
@_application
@click.option("--alembic", is_flag=True, help="Write alembic.ini and env.py for Alembic's own command.")
@_database
def init(application: str, alembic: bool, database: str | None) -> None:
    """Make the directory of the files."""
    from maniflex.migrations.alembic_command import write_alembic_files

    async def work(targets: list[MigrationTarget]) -> None:
        for target in targets:
            target.files.versions.mkdir(parents=True, exist_ok=True)
            click.echo(f"files go to {_short_path(target.files.versions)}")
            for path in write_alembic_files(target) if alembic else ():
                click.echo(f"wrote {_short_path(path)}")

    on_targets(application, work, database=database)


def _listener(progress: Progress, noted: list[MigrationFile] | None = None) -> MigrationListener:
    from maniflex.schema.steps import MigrationListener

    def on_file(file: MigrationFile, seconds: float) -> None:
        click.echo(f"{file.title}  {seconds:.1f} s")

    def on_step(text: str) -> None:
        if progress.shown or text.startswith(("waiting", "another", "the index")):
            click.echo(f"  {text}", err=True)

    def on_noted(file: MigrationFile) -> None:
        click.echo(f"{file.title}  noted as applied: the start has made what it makes")
        if noted is not None:
            noted.append(file)

    return MigrationListener(on_file, on_step, lambda table, count: progress.to(count), on_noted)


def _count_of_files(count: int, verb: str) -> str:
    return f"{verb} {count} {'file' if count == 1 else 'files'}"


def _prefix(targets: list[MigrationTarget], target: MigrationTarget) -> str:
    return f"{target.name}: " if len(targets) > 1 else ""


def _short_path(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
