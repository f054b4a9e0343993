"""`maniflex shell module:server`: Python with the models at hand, and `await` at the prompt."""

from __future__ import annotations

import ast
import asyncio
import code
import hashlib
import inspect
import os
import shlex
import sqlite3
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import click

from maniflex.app.server import Server
from maniflex.cli.output import Progress, address_for_programs, target_argument
from maniflex.cli.process import check_file, load_sealed, opened_adapters
from maniflex.db.port import ReadOnlyDatabase
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.db.sqlite.connect import compare_decimals
from maniflex.errors import ManiflexError
from maniflex.pipeline.context import AuthInfo

AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@click.command(epilog='Example: maniflex shell app:server --read-only -c "await db(Post).count()"')
@target_argument
@click.option(
    "-c", "code_text", metavar="CODE", help="Run this and end; the value of a last expression is printed."
)
@click.option("--read-only", is_flag=True, help="Let no statement write, and leave the tables as they are.")
@click.option("--as", "user", help="Have the scope rules bind `db`, as they bind this user.")
@click.option("--role", "roles", multiple=True, help="With --as: a role of that user; may be repeated.")
@click.option("--tenant", help="With --as: the tenant of that user.")
def shell(
    target: str,
    code_text: str | None,
    read_only: bool,
    user: str | None,
    roles: tuple[str, ...],
    tenant: str | None,
) -> None:
    """Python with the server, its models and `db` at hand; `await` works at the prompt."""
    if user is None and (roles or tenant):
        raise click.UsageError("--role and --tenant go with --as")
    server = load_sealed(target)
    auth = None if user is None else AuthInfo(user_id=user, roles=list(roles), tenant_id=tenant or "")
    with _running(server, read_only) as run, nullcontext() if auth is None else server.speaking_as(auth):
        names = _names(server)
        if code_text is not None:
            sys.exit(_run_code(code_text, names, run))
        _interact(names, run, read_only)


def _names(server: Server) -> dict[str, Any]:
    models = {model.__name__: model for model in server.models}
    return {
        **models,
        "server": server,
        "db": server.db,
        "__name__": "__console__",
        "__builtins__": __builtins__,
    }


Run = Callable[[Any], Any]  # runs a coroutine to its end


@contextmanager
def _running(server: Server, read_only: bool) -> Iterator[Run]:
    """An event loop on a thread of its own, with the databases open; the prompt keeps the main thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="maniflex-shell", daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except KeyboardInterrupt:  # Ctrl-C ends what runs, not the shell
            future.cancel()
            raise

    life = _looking(server) if read_only else server.lifespan(role="client")
    try:
        run(life.__aenter__())
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    try:
        yield run
    finally:
        run(life.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@asynccontextmanager
async def _looking(server: Server) -> AsyncIterator[None]:
    """The databases open as they are: nothing is made or migrated, no hook is called."""
    for adapter in server.adapters:
        check_file(adapter)
    async with opened_adapters(server.adapters, read_only=True):
        yield


def _run_code(text: str, names: dict[str, Any], run: Run) -> int:
    """Run the code; print the value of its last expression, or the traceback of its error."""
    try:
        tree = ast.parse(text, "<code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        _execute(compile(tree, "<code>", "exec", flags=AWAITS), names, run)
        if isinstance(last, ast.Expr):
            value = _execute(compile(ast.Expression(last.value), "<code>", "eval", flags=AWAITS), names, run)
            if value is not None:
                click.echo(repr(value))
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, ReadOnlyDatabase):
            click.echo("nothing was written: --read-only", err=True)
        else:
            lines = traceback.format_exception(type(error), error, _own_part(error))
            click.echo("".join(lines).rstrip(), err=True)
        return 1
    return 0


def _execute(compiled: CodeType, names: dict[str, Any], run: Run) -> Any:
    value = FunctionType(compiled, names)()
    return run(value) if inspect.iscoroutine(value) else value


def _own_part(error: BaseException) -> Any:
    """The traceback from the typed code on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename not in ("<code>", "<console>"):
        trace = trace.tb_next
    return trace


def _interact(names: dict[str, Any], run: Run, read_only: bool) -> None:
    models = ", ".join(name for name in names if name[:1].isupper()) or "no models"
    only = "; nothing can be written" if read_only else ""
    banner = f"server, db and {models} are here; await works{only}. Ctrl-D ends."
    if find_spec("IPython") is None:  # not by `except`: each mistake of the prompt would show that one, too
        _Console(names, run).interact(banner, exitmsg="")
        return
    from IPython.terminal.embed import (  # type: ignore[import-not-found, unused-ignore]  # where it is
        InteractiveShellEmbed,
    )

    ipython = InteractiveShellEmbed(banner1=banner, user_ns=names)
    ipython.loop_runner = run
    ipython.autoawait = True
    ipython()


class _Console(code.InteractiveConsole):
    """Python's own prompt, with `await`."""

    def __init__(self, names: dict[str, Any], run: Run) -> None:
        super().__init__(names)
        self._names = names
        self.compile.compiler.flags |= AWAITS
        self._run = run

    def runcode(self, compiled: CodeType) -> None:
        try:
            _execute(compiled, self._names, self._run)
        except SystemExit:
            raise
        except KeyboardInterrupt:
            self.write("interrupted\n")
        except BaseException as error:
            self.write("".join(traceback.format_exception(type(error), error, _own_part(error))))


# `maniflex backup module:server FILE`: a copy of a SQLite database while it is in use.


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
