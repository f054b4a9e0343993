"""The server: the only place where the parts are wired together."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Unpack

from maniflex._clock import Clock, SystemClock, check_clock
from maniflex._names import did_you_mean, title_of_module
from maniflex._service import Service
from maniflex.app.assembly import Assembly, assemble
from maniflex.app.data_access import WithDataAccess
from maniflex.app.declaring import WithDeclarations
from maniflex.app.draft import Declaration
from maniflex.app.durable import Durable, WithDurableWork
from maniflex.app.lifecycle import Lifecycle, LifecycleError, LifecycleState
from maniflex.app.route_guards import RouteGuards
from maniflex.background.loop import stalled
from maniflex.background.watch import dead_parts
from maniflex.config import Config
from maniflex.db.current import detached_context
from maniflex.db.decimal_schema import use_order_keys_if_there
from maniflex.db.drift import check_drift
from maniflex.db.migrate import migrate
from maniflex.db.port import Adapter
from maniflex.db.query_models import check_queries
from maniflex.errors import ConfigError, DeclarationError, ManiflexError
from maniflex.http.asgi import App
from maniflex.http.probes import Health
from maniflex.http.signals import on_stop_signal
from maniflex.http.streaming import Send
from maniflex.pipeline.context import AsgiScope, Receive
from maniflex.server_keywords import Settings


class Server(WithDeclarations, WithDurableWork, WithDataAccess):
    """An application: register models, then serve it. It *is* an ASGI application."""

    def __init__(
        self,
        database: str | Adapter | Config | None = None,
        *,
        config: Config | None = None,
        clock: Clock | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        self.config = _config(database, config, dict(settings))
        super().__init__()
        self._title = title_of_module(sys._getframe(1).f_globals)
        self._clock = SystemClock() if clock is None else check_clock(clock)
        self._logger = self.config.logger or logging.getLogger("maniflex")
        self._durable = Durable(self.config)
        self._lifecycle = Lifecycle(self._logger, self.config.shutdown_timeout.total_seconds())
        self._starting: asyncio.Task[None] | None = None
        self._lifecycle.on_shutdown.append(self._durable.close)
        for hook, hooks in (
            (self.config.on_start, self._lifecycle.on_start),
            (self.config.on_shutdown, self._lifecycle.on_shutdown),
        ):
            if hook is not None:
                hooks.append(hook)

    def __repr__(self) -> str:
        return f"<Server {self._lifecycle.state} {self.config.path_prefix or '/'}>"

    def now(self) -> datetime:
        """The time by the server's clock, which tests can move."""
        return self._clock.now()

    def go(self, fn: Callable[[], Awaitable[Any]]) -> None:
        """Run `fn` beside the server until it stops; its task is cancelled when shutdown begins."""
        self._lifecycle.go(fn)

    def seal(self) -> None:
        """Check the whole declaration and build everything from it; every mistake in one message."""
        self._seal()

    def _seal(self) -> Assembly:
        if self._assembly is None:
            with self._sealing:
                if self._assembly is None:
                    self._durable.note_declarations(self._registry, self._actions, self.pipeline)
                    self._durable.files.declare(self._registry, self.config, self._logger, self._clock)
                    assembly = self._assembly = assemble(self._declaration())
                    self._durable.attach(assembly.runtime, assembly.endpoints)
        return self._assembly

    def _declaration(self) -> Declaration:
        # Asked when a probe comes: another life has another lifecycle.
        health = Health(
            accepting=lambda: self._lifecycle.accepting,
            stalled=lambda: stalled(self._lifecycle.running),
            dead=lambda: dead_parts(self._lifecycle.running),
        )
        return Declaration(
            config=self.config,
            clock=self._clock,
            logger=self._logger,
            registry=self._registry,
            internal_tables=self._internal_tables,
            pipeline=self.pipeline,
            actions=self._actions,
            layers=self._layers,
            observers=self._observers,
            computed=self._computed,
            search=self._search,
            durable=self._durable,
            health=health,
            title=self._title,
        )

    # -- living --------------------------------------------------------------------------------

    async def start(
        self, *, role: str = "server", work: Callable[[], Sequence[Service]] | None = None
    ) -> None:
        """Seal, open the databases, migrate and start services.

        `role="client"` starts no services, `role="worker"` only those of the application and of `work`.
        """
        assembly = self._seal()
        assembly.runtime.tasks.attach()
        assembly.runtime.watch.attach()

        async def prepare_tables() -> None:
            for adapter, own_models in assembly.schemas():
                models = [*own_models, *self._durable.entry_tables.beside_rows(adapter)]
                if self.config.auto_migrate:
                    own = self._durable.schema(adapter.dialect) if adapter is assembly.runtime.adapter else ()
                    await migrate(adapter, [model for model in models if not model.readonly], own)
                else:
                    await use_order_keys_if_there(adapter, models)
                    await check_drift(adapter, [model for model in models if not model.readonly])
                await check_queries(adapter, models)
            await self._durable.learn_time()
            await self._durable.files.prepare()

        works = self._durable.services if role == "server" and self.config.background else tuple

        def background() -> Sequence[Service]:
            return self._durable.with_time_services((work or works)())

        await self._lifecycle.start(
            assembly.adapters, prepare_tables, services=role != "client", background=background
        )

    async def stop(self, timeout: timedelta | None = None) -> None:
        """Stop services, await background work and close the databases, all before one deadline."""
        assembly = self._seal()
        seconds = None if timeout is None else timeout.total_seconds()
        await self._lifecycle.stop(assembly.runtime, assembly.adapters, seconds)

    @asynccontextmanager
    async def lifespan(
        self, *, role: str = "server", work: Callable[[], Sequence[Service]] | None = None
    ) -> AsyncIterator[Server]:
        """Everything but the listener: for scripts, tests and embedding."""
        await self.start(role=role, work=work)
        try:
            yield self
        finally:
            await self.stop()

    @contextmanager
    def on_database(
        self, database: str | Adapter, *, clock: Clock | None = None, **settings: Unpack[Settings]
    ) -> Iterator[None]:
        """Run on another database, with another clock or settings, then be as before; for the test kit."""
        if self._lifecycle.state not in (LifecycleState.NEW, LifecycleState.STOPPED):
            raise LifecycleError(f"the server is {self._lifecycle.state}; it cannot change its database")
        before = (self.config, self._clock, self._lifecycle, self._assembly)
        config = _config(database, self.config, dict(settings))
        self._clock = self._clock if clock is None else check_clock(clock)
        self.config = config
        self._lifecycle, self._assembly, self._starting = self._lifecycle.again(), None, None
        try:
            yield
        finally:
            self.config, self._clock, self._lifecycle, self._assembly = before
            if self._assembly is not None:
                self._durable.attach(self._assembly.runtime, self._assembly.endpoints)

    def begin_shutdown(self) -> None:
        """Stop being ready; the shutdown deadline counts from here."""
        self._lifecycle.begin_shutdown()

    def run(self, *, host: str | None = None, port: int | None = None) -> None:
        """Serve until SIGINT or SIGTERM."""
        from maniflex.http.serve import serve

        port = self.config.port if port is None else port
        try:
            serve(self, self.config.with_(host=host or self.config.host, port=port))
        except ConfigError as error:  # in a script, one sentence says more than a traceback
            raise SystemExit(f"maniflex: {error}") from None

    # -- serving -------------------------------------------------------------------------------

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            state = self._lifecycle.state
            if state is LifecycleState.NEW or (
                state is LifecycleState.STARTING and self._starting is not None
            ):
                await self._start_late()
            await self._seal().app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._asgi_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _start_late(self) -> None:
        """Start with the first request: an application that mounts this one sends it no lifespan messages."""
        if self._starting is None or (self._starting.done() and self._lifecycle.state is LifecycleState.NEW):
            # In a task of its own: the client that happened to be first may leave.
            self._starting = asyncio.create_task(self._start_or_renew(), context=detached_context())
        await asyncio.shield(self._starting)

    async def _start_or_renew(self) -> None:
        try:
            await self.start()
        except DeclarationError:
            raise
        except Exception as error:  # the database is away, a hook failed; the next request tries again
            self._logger.error("the server could not start: %s", _why(error), exc_info=error)
            self._lifecycle = self._lifecycle.again()

    async def _asgi_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as error:
            is_ours = isinstance(error, ManiflexError)
            self._logger.error(
                "the server could not start: %s", _why(error), exc_info=None if is_ours else error
            )
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        if not self._lifecycle.accepting:  # told to stop while starting: the port never opens
            await self.stop()
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        with on_stop_signal(self.begin_shutdown):
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    @property
    def probes(self) -> App:
        """`/live`, `/ready`, `/health` and `/metrics` alone: an ASGI application for a process that works."""
        return self._seal().probes

    @property
    def routes(self) -> list[tuple[str, str, str]]:
        """Method, path and owner of everything that is mounted."""
        return self._seal().routes()

    @property
    def guards(self) -> list[tuple[str, str, RouteGuards]]:
        """Method, path and guards of everything that is mounted."""
        return self._seal().guarded_routes()

    def production_report(self) -> tuple[list[str], list[str]]:
        """What should not be served to the world, and what should be looked at before it is."""
        return self._seal().production_report()


def _why(error: Exception) -> str:
    """The error, where it happened and what caused it, in one line."""
    cause = [repr(error.__cause__)] if error.__cause__ else []
    more = [*getattr(error, "__notes__", ()), *cause]
    return f"{error} ({': '.join(more)})" if more else str(error)


def _config(database: Any, config: Config | None, settings: dict[str, Any]) -> Config:
    if isinstance(database, Config):
        database, config = None, database
    setting_names = {f.name for f in fields(Config)}
    unknown = [
        f"there is no setting {name!r}{did_you_mean(name, setting_names)}"
        for name in settings
        if name not in setting_names
    ]
    if unknown:
        raise ConfigError(*unknown)
    if database is not None:
        settings["database"] = database
    return Config(**settings) if config is None else config.with_(**settings)
