"""Processes that work, until they are told to stop or for one pass; and the database opened as it is."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from maniflex._logging import configure_logging, server_logger
from maniflex._names import did_you_mean
from maniflex._service import Service, cancel_remaining_tasks
from maniflex.app.server import Server
from maniflex.background.clock import ClockKeeper, ServerClock
from maniflex.db.port import Adapter
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.db.sqlite.connect import MEMORY
from maniflex.encryption.waiting import allow_waiting
from maniflex.errors import ConfigError, ManiflexError
from maniflex.http.serve import listening
from maniflex.schema.read import has_table

T = TypeVar("T")
STOPPED_EARLY = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_services(
    server: Server, services: Callable[[], Sequence[Service]], what: str, probe_port: int | None = None
) -> None:
    """Run services until SIGTERM or SIGINT; a second signal waits no longer for running work."""
    configure_logging(server.config)
    freeze_objects()
    run_loop(_ServiceProcess(server, services, what, probe_port).run())


def freeze_objects() -> None:
    """Take all objects made so far (modules, models) out of the garbage collector's rounds: they stay."""
    gc.collect()
    gc.freeze()


def run_once(
    server: Server,
    work: Callable[[], Coroutine[Any, Any, T]],
    *,
    within: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    ask_to_stop: Callable[[], bool] = lambda: False,
    so_far: Callable[[], object] = lambda: None,
) -> T:
    """Run `work` on the server's databases, without serving and without its services.

    A signal cancels it, unless `ask_to_stop` returns True: then it ends by itself. `so_far` prints what was
    done until then.
    """
    enter = within or (lambda: server.lifespan(role="client"))
    is_stopping = False

    async def main() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(inside())

        def on_signal() -> None:
            nonlocal is_stopping
            if is_stopping:  # a second signal: the user has waited long enough
                stop_early(so_far)
            is_stopping = True
            if ask_to_stop():
                loop.call_later(server.config.shutdown_timeout.total_seconds(), task.cancel)
            else:
                task.cancel()

        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal)
        try:
            return await task
        finally:
            await cancel_remaining_tasks(server_logger(server.config))

    async def inside() -> T:
        async with enter():
            return await (allow_waiting(work()) if server.asks_for_keys else work())

    try:
        return run_loop(main())
    except asyncio.CancelledError:
        stop_early(so_far)


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run it on a new event loop; an error of the framework becomes one sentence."""
    try:
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            runner.get_loop().set_default_executor(_Unjoined())
            return runner.run(work)
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None
    return uvloop.new_event_loop


class _ServiceProcess:
    def __init__(
        self, server: Server, services: Callable[[], Sequence[Service]], what: str, probe_port: int | None
    ) -> None:
        self._server = server
        self._services = services
        self._what = what
        self._probe_port = probe_port
        self._started: Sequence[Service] = ()
        self._is_stopping = asyncio.Event()
        server.processes.role = what
        self._logger = server_logger(server.config)

    async def run(self) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._signal)
        async with AsyncExitStack() as stack:
            if self._probe_port is not None:  # around the rest: it can be asked while starting and stopping
                config = self._server.config.with_(port=self._probe_port)
                await stack.enter_async_context(listening(self._server.probes, config, "--probe-port"))
            await self._server.start(role="worker", work=self._create_services)
            stack.push_async_callback(self._server.stop)
            self._logger.info("%s: started", self._what)
            await self._is_stopping.wait()
        await cancel_remaining_tasks(self._logger)
        self._logger.info("%s: stopped", self._what)

    def _create_services(self) -> Sequence[Service]:
        self._started = self._services()
        return self._started

    def _signal(self) -> None:
        if self._is_stopping.is_set():
            for service in self._started:
                hurry = getattr(service, "hurry", None)
                if hurry is not None:
                    hurry()
        self._is_stopping.set()
        self._server.begin_shutdown()


class _Unjoined(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`, for which the end of the loop does not wait."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


def end_process(stop: SystemExit) -> NoReturn:
    """End as `stop` says, also when something still runs on a thread and will not stop."""
    if any(_is_running(thread) for thread in threading.enumerate() if thread is not threading.main_thread()):
        _exit(stop.code if isinstance(stop.code, int) else int(stop.code is not None))
    raise stop


def _is_running(thread: threading.Thread) -> bool:
    if not thread.daemon:
        thread.join(0.1)  # one without work ends at once
    return not thread.daemon and thread.is_alive()


def stop_early(so_far: Callable[[], object] = lambda: None) -> NoReturn:
    """Say what was done and that there may be more, and end."""
    so_far()
    click.echo("stopped early", err=True)
    _exit(STOPPED_EARLY)


def _exit(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# `module:server` → the server it names.


class NoSuchTarget(click.ClickException):
    """What was named is not there: the command was used wrongly."""

    exit_code = 2


def load_sealed(target: str) -> Server:
    """The server, its whole declaration checked."""
    server = load(target)
    try:
        server.seal()
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    return server


def load(target: str) -> Server:
    """Import the module and give its server, or say in one sentence why not."""
    module_name, _, attribute = target.partition(":")
    if not module_name or module_name.startswith("."):
        raise click.BadParameter("write it as module:server, such as app:server")
    attribute = attribute or "server"
    if sys.path[:1] != [os.getcwd()]:  # an installed project may be on the path, behind others of that name
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            raise _import_failure(module_name, error) from None
        raise NoSuchTarget(f"there is no module {module_name!r} here") from None
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    except SystemExit as error:  # of a script that runs when it is imported; even 0 would look like success
        raise click.ClickException(
            f"{module_name} ended the process while it was imported (exit code {error.code}); what it runs"
            ' belongs behind `if __name__ == "__main__":`'
        ) from None
    except Exception as error:
        raise _import_failure(module_name, error) from None
    server = getattr(module, attribute, None)
    if not isinstance(server, Server):
        servers = [name for name, value in vars(module).items() if isinstance(value, Server)]
        hint = did_you_mean(attribute, servers) or (f"; it has {', '.join(servers)}" if servers else "")
        raise NoSuchTarget(f"{module_name} has no server called {attribute!r}{hint}")
    return server


def _import_failure(module_name: str, error: Exception) -> click.ClickException:
    """What is wrong with a module, by the lines of the application that led there and no others."""
    place = error.__traceback__
    while place is not None and _is_machinery(place.tb_frame.f_code.co_filename):
        place = place.tb_next
    lines = "".join(traceback.format_exception(type(error), error, place))
    return click.ClickException(f"{module_name} could not be imported\n{lines.rstrip()}")


def _is_machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or "/importlib/" in filename


# Work on the database as it is: nothing is made or migrated, no hook of the application is called.


def on_database(server: Server, work: Callable[[], Coroutine[Any, Any, T]], *tables: str) -> T:
    """Run `work` with the server's database open, once it is known to have these tables."""
    return run_once(server, work, within=lambda: _open_database(server, tables))


@asynccontextmanager
async def opened_adapters(adapters: Sequence[Adapter], *, read_only: bool = False) -> AsyncIterator[None]:
    """The databases open as they are, and closed again."""
    async with AsyncExitStack() as stack:
        for adapter in adapters:
            await adapter.open(read_only=read_only)
            stack.push_async_callback(adapter.close)
        yield


@asynccontextmanager
async def _open_database(server: Server, tables: tuple[str, ...]) -> AsyncIterator[None]:
    environment = server.work.environment
    adapter = environment.adapter
    check_file(adapter)
    async with opened_adapters([adapter]):
        for table in tables:
            await _check_table(adapter, table)
        if isinstance(environment.clock, ServerClock):
            await ClockKeeper(environment.clock, adapter, environment.logger).tick()
        yield


def check_file(adapter: Adapter) -> None:
    """Refuse a SQLite file that is not there: opening would make it."""
    if isinstance(adapter, SqliteAdapter) and adapter._path == MEMORY:
        raise ConfigError("the database is in the memory of the server's process alone, so none is here")
    if isinstance(adapter, SqliteAdapter) and not Path(adapter._path).is_file():
        raise ConfigError(f"there is no database {adapter._path!r}; it is made when the server starts")


async def _check_table(adapter: Adapter, table: str) -> None:
    if not await has_table(adapter, table):
        where = f"the database {adapter.label}"
        raise ConfigError(
            f"{where} has no table {table}; a server that has durable work makes it when it starts"
        )
