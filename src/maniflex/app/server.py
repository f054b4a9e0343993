"""The server: the only place where the parts are wired together."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import asdict, fields, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from maniflex._caller import serve_from
from maniflex._clock import Clock, SystemClock, check_clock
from maniflex._logging import GuardedLogger
from maniflex._names import application_of_module, did_you_mean, title_of_module
from maniflex._service import Service
from maniflex.app.assembly import Assembly, assemble
from maniflex.app.data_access import WithDataAccess
from maniflex.app.databases import SchemaTables, describe_databases, refuse_table_warnings
from maniflex.app.declaring import WithDeclarations
from maniflex.app.draft import Declaration
from maniflex.app.durable import Durable, WithDurableWork
from maniflex.app.encryption import (
    answers_for_keys,
    declares_encryption,
    make_keyring,
    note_encrypted_columns,
    require_keys,
    try_stored_values,
)
from maniflex.app.keys import ROTATE_RUN
from maniflex.app.lifecycle import Lifecycle, LifecycleError, LifecycleState, collect_warnings
from maniflex.app.route_guards import RouteGuards
from maniflex.background.loop import dead_parts, stalled_loops
from maniflex.background.runs.run import Run
from maniflex.config import Config, Settings
from maniflex.db.current import detached_context
from maniflex.db.port import Adapter
from maniflex.doctor.check import Ignore, Subject
from maniflex.encryption.waiting import allow_waiting, let_tasks_wait
from maniflex.erasure.api import Erasures
from maniflex.errors import ConfigError, DeclarationError, ManiflexError
from maniflex.features.actions import Action
from maniflex.http.asgi import App, LateRequests, Send
from maniflex.http.layers import Observed
from maniflex.http.probes import Health
from maniflex.http.protocol import SocketOptions
from maniflex.http.serve import LONGEST, Delay, on_stop_signal
from maniflex.model.base import Model
from maniflex.pipeline.chain import in_order
from maniflex.pipeline.context import AsgiScope, Receive
from maniflex.pipeline.observation import Observation
from maniflex.pipeline.operation import Operation

if TYPE_CHECKING:
    from maniflex.db.short_locks import LockLimits
    from maniflex.doctor.check import Subject
    from maniflex.schema.target import MigrationTarget


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
        module = sys._getframe(1).f_globals
        self._title = title_of_module(module)
        self._home, self._application = application_of_module(module)
        self._clock = SystemClock() if clock is None else check_clock(clock)
        self._logger = self.config.logger or logging.getLogger("maniflex")
        self._durable = Durable(self.config)
        self._background_logger = GuardedLogger(
            self._logger, self.config.panic_logger, self._panic_hooks, self.config.service_name
        )
        self._lifecycle = Lifecycle(self._background_logger, self.config.shutdown_timeout.total_seconds())
        self._starting: asyncio.Task[None] | None = None
        self._makes_tables = False  # whatever `auto_migrate` says
        self._schema: SchemaTables | None = None  # of this start
        self._late_requests = LateRequests()
        self._rotates_in_runs = False
        self._lifecycle.on_shutdown.append(self._durable.close)
        if self.config.on_start is not None:
            self._lifecycle.on_start.append(self.config.on_start)
        if self.config.on_shutdown is not None:
            self._lifecycle.on_shutdown.append(self.config.on_shutdown)
        if self.config.on_background_panic is not None:
            self._panic_hooks.append(self.config.on_background_panic)

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

    def _seal(self, *, without_extras: bool = False) -> Assembly:
        if self._assembly is None:
            with self._sealing:
                if self._assembly is None:
                    assembly = self._assembly = self._assemble(without_extras)
                    assembly.runtime.server = self
                    self._durable.attach(assembly.runtime, assembly.endpoints)
        if self._assembly.missing_extras and not without_extras:
            raise DeclarationError(*self._assembly.missing_extras)
        return self._assembly

    def _assemble(self, without_extras: bool) -> Assembly:
        warnings: list[str] = []
        try:
            with collect_warnings(self._logger) as warnings:
                self._offer_rotation()
                self._durable.note_declarations(self._registry, self._actions, self.pipeline, self.config)
                self._durable.files.declare(self._registry, self.config, self._logger, self._clock)
                return assemble(replace(self._declaration(warnings), without_extras=without_extras))
        finally:
            for warning in () if self.config.is_strict else warnings:
                self._background_logger.warning("%s", warning)

    def _offer_rotation(self) -> None:
        """Let runs rotate keys, where there are runs and keys."""
        is_declared = any(declares_encryption(cls) for cls, _ in self._registry.options())
        if is_declared and self._durable.work.is_used and not self._rotates_in_runs:
            self._rotates_in_runs = True
            self._durable.work.add_internal(ROTATE_RUN, self._rotate_in_run)

    async def _rotate_in_run(self, run: Run) -> dict[str, Any]:
        return asdict(await self.keys.rotate(**run.payload))

    def _declaration(self, warnings: list[str]) -> Declaration:
        keys = make_keyring(self.config, self._key_provider)
        checks = dict(self._readiness)
        if keys.waits:
            checks.setdefault("key provider", self._find_keys)
        # Asked when a probe comes: another life has another lifecycle.
        health = Health(
            accepting=lambda: self._lifecycle.accepting,
            stalled=lambda: stalled_loops(self._lifecycle.running),
            dead=lambda: dead_parts(self._lifecycle.running),
            checks=checks,
            missing_migration=self._find_missing_migration,
        )
        return Declaration(
            config=self.config,
            clock=self._clock,
            logger=self._logger,
            background_logger=self._background_logger,
            registry=self._registry,
            internal_tables=self._internal_tables,
            pipeline=self.pipeline,
            actions=self._actions,
            layers=self._layers,
            observers=self._observers,
            computed=self._computed,
            search=self._search,
            batch=self._batch,
            rollups=self._rollups,
            durable=self._durable,
            health=health,
            admin=self._admin,
            doctor_subject=self.doctor_subject,
            ignores=self._ignores,
            warnings=warnings,
            tracing=self._tracing,
            access_control=self._access_control,
            keys=keys,
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
        if assembly.panel is not None and role == "server":
            assembly.panel.read_sources()

        own_work = self._durable.services if role == "server" and self.config.background else tuple

        works = False

        def background() -> Sequence[Service]:
            nonlocal works
            services = (work or own_work)()
            works = bool(services)
            streams = self._durable.hub_services() if role == "server" else []
            return [*self._durable.with_helpers(services, role), *streams]

        strict: AbstractContextManager[list[str]] = nullcontext([])
        if self.config.is_strict:
            strict = collect_warnings(self._logger)
        with strict as warnings, serve_from(assembly.runtime.adapter):
            prepare_tables = partial(self._prepare_tables, assembly, warnings)
            starting = self._lifecycle.start(
                assembly.adapters, prepare_tables, services=role != "client", background=background
            )
            if assembly.runtime.keys.waits:
                assembly.runtime.keys.loop = asyncio.get_running_loop()
                let_tasks_wait(assembly.runtime.keys.loop)
                starting = allow_waiting(starting)
            await starting
        runtime = assembly.runtime
        for sentence in describe_databases(self.config, runtime.adapter, assembly.adapters, runtime.stores):
            self._background_logger.info("%s", sentence)
        for adapter in assembly.adapters:
            report_needs = getattr(adapter, "report_needs", None)
            if report_needs is not None:  # a server with connections that run out
                report_needs(works=works and adapter is assembly.runtime.adapter)

    async def _prepare_tables(self, assembly: Assembly, warnings: list[str]) -> None:
        """Check the keys and make the tables of the models, unless a strict start has warnings to refuse."""
        runtime = assembly.runtime
        if self.config.keys_required:
            await require_keys(runtime.keys, runtime.models.values(), self._durable.key_ids(runtime.keys))
        if self.config.is_strict:
            await refuse_table_warnings(
                assembly.schemas(),
                warnings,
                config=self.config,
                application=self._application,
                makes_tables=self._makes_tables or self.config.auto_migrate,
            )
        self._schema = self._tables(assembly)
        await self._schema.prepare()
        if self.config.keys_required:
            if runtime.keys.has_answered:
                await try_stored_values(runtime.stores.values())
            await note_encrypted_columns(runtime)
        await self._durable.learn_time()
        await self._durable.files.prepare()
        await self._durable.prepare()

    def _tables(self, assembly: Assembly, application: str | None = None) -> SchemaTables:
        return SchemaTables(
            assembly,
            self._durable,
            self.config,
            home=self._home,
            application=application or self._application,
            makes_tables=self._makes_tables,
        )

    async def _find_keys(self) -> bool:
        runtime = self._seal().runtime
        if not self.config.keys_required:
            return True
        return await answers_for_keys(
            runtime.keys, runtime.models.values(), self._durable.key_ids(runtime.keys)
        )

    async def _find_missing_migration(self) -> str:
        return "" if self._schema is None else await self._schema.find_missing_migration()

    def migration_file_problems(self, application: str) -> list[str]:
        """What the models have and no migration file makes, if there are files; asks no database."""
        return self._tables(self._seal(), application).file_problems()

    @asynccontextmanager
    async def migration_targets(
        self, application: str, lock_limits: LockLimits | None = None
    ) -> AsyncIterator[list[MigrationTarget]]:
        """The databases, open and with time for long statements, for the commands that migrate them."""
        settings: Settings = {
            "read_database": None,
            "statement_timeout": timedelta(days=7),
            "lock_timeout": timedelta(minutes=30),
            "idle_in_transaction_timeout": timedelta(days=7),
        }
        with self.on_database(None, **settings):
            assembly = self._seal()
            async with AsyncExitStack() as stack:
                for adapter in assembly.adapters:
                    stack.push_async_callback(adapter.close)
                    await adapter.open()
                yield self._tables(assembly, application).targets(lock_limits)

    async def stop(self, timeout: timedelta | None = None) -> None:
        """Stop services, await background work and close the databases, all before one deadline."""
        assembly = self._seal()
        seconds = None if timeout is None else timeout.total_seconds()
        with serve_from(assembly.runtime.adapter):
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
        self,
        database: str | Adapter | None,
        *,
        clock: Clock | None = None,
        makes_tables: bool = False,
        **settings: Unpack[Settings],
    ) -> Iterator[None]:
        """Run on another database, with another clock or settings, then be as before; for the test kit.

        None keeps the database, and whether somebody has named it. With `makes_tables` its tables are made,
        whatever `auto_migrate` says.
        """
        if self._lifecycle.state not in (LifecycleState.NEW, LifecycleState.STOPPED):
            raise LifecycleError(f"the server is {self._lifecycle.state}; it cannot change its database")
        before = (self.config, self._clock, self._lifecycle, self._assembly)
        schema_before = self._makes_tables, self._schema
        config = _config(database, self.config, dict(settings))
        self._clock = self._clock if clock is None else check_clock(clock)
        self.config = config
        self._lifecycle, self._assembly, self._starting = self._lifecycle.again(), None, None
        self._makes_tables, self._schema = makes_tables, None
        try:
            yield
        finally:
            self._makes_tables, self._schema = schema_before
            self.config, self._clock, self._lifecycle, self._assembly = before
            if self._assembly is not None:
                self._durable.attach(self._assembly.runtime, self._assembly.endpoints)

    def assembled_on(self, database: str) -> Assembly:
        """The sealed parts on another database, which no replica is read for; for commands that move data."""
        with self.on_database(database, read_database=None):
            return self._seal()

    async def make_tables(self, assembly: Assembly) -> None:
        """Make the tables of an assembly in its default database, which is open."""
        await self._tables(assembly).make()

    def begin_shutdown(self) -> None:
        """Stop being ready; the shutdown deadline counts from here, and leaves room for `drain_delay`."""
        wait = LONGEST * self.config.drain_delay + self.config.shutdown_timeout
        self._lifecycle.begin_shutdown(wait.total_seconds())

    def end_streams(self) -> None:
        """Let clients of streams go; with `drain_delay` at its end."""
        if self._durable.hub is not None:
            self._durable.hub.end_streams()

    @property
    def websocket_options(self) -> SocketOptions | None:
        """How WebSocket connections behave; None where the application has none."""
        return None if self._durable.hub is None else self._durable.hub.socket_options

    def run(self, *, host: str | None = None, port: int | None = None) -> None:
        """Serve until SIGINT or SIGTERM."""
        from maniflex.http.serve import serve

        port = self.config.port if port is None else port
        try:
            config = self.config.with_(host=host or self.config.host, port=port)
            self._check_panel_address(config.host)
            serve(self, config)
        except ConfigError as error:  # in a script, one sentence says more than a traceback
            raise SystemExit(f"maniflex: {error}") from None

    # -- serving -------------------------------------------------------------------------------

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            if self._lifecycle.accepting and self._assembly is not None:  # as good as every request
                await self._assembly.app(scope, receive, send)
            else:
                send = await self._start_or_note(scope, send)
                await self._seal().app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._asgi_lifespan(receive, send)
        elif scope["type"] == "websocket":
            if self._durable.hub is None:
                await send({"type": "websocket.close", "code": 1000})
            else:
                await self._start_or_note(scope, send)
                await self._durable.hub.serve_websocket(scope, receive, send)

    def serve_logged(self, scope: AsgiScope, receive: Receive, send: Send) -> Awaitable[None]:
        """An HTTP request of a listener that keeps an access log."""
        if self._lifecycle.accepting and self._assembly is not None:
            return self._assembly.logged.serve(scope, receive, send)
        return self._serve_late(scope, receive, send)

    async def _serve_late(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        send = await self._start_or_note(scope, send)
        await self._seal().logged.serve(scope, receive, send)

    async def _start_or_note(self, scope: AsgiScope, send: Send) -> Send:
        """Start if nobody has; how to answer a request that comes although the server is to stop."""
        state = self._lifecycle.state
        if state is LifecycleState.NEW or (state is LifecycleState.STARTING and self._starting is not None):
            await self._start_late()
        return send if self._lifecycle.accepting else self._late_requests.note(scope, send)

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
        delay = Delay(self.config.drain_delay.total_seconds(), lambda: self._late_requests.are_coming)
        with on_stop_signal(self.begin_shutdown, delay, self.end_streams):
            self._seal().description.make_early()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    def note_refused(self, seen: Observation) -> None:
        """Tell the observers of a request that the HTTP server refused before it could be handed over."""
        app = self._seal().app
        if isinstance(app, Observed):
            app.note_refused(seen)

    @property
    def metrics_page(self) -> App:
        """`/metrics` alone: an ASGI application for a port of its own."""
        return self._seal().metrics

    @property
    def places(self) -> list[tuple[str, str]]:
        """What people look for, each with its path: the API, its reference and the panel."""
        paths = {path for _, path, _ in self.routes}
        pages = (("reference", "/docs"), ("panel", "/admin/"))
        return [("API", self.config.path_prefix or "/"), *(page for page in pages if page[1] in paths)]

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The databases, the default one first."""
        return self._seal().adapters

    @property
    def models(self) -> list[type[Model]]:
        """The model classes of the application, without the tables of features."""
        stores = self._seal().runtime.stores.values()
        return [store.meta.cls for store in stores if not store.meta.is_internal]

    @property
    def erasure(self) -> Erasures:
        """Erases what is kept of a person."""
        return self._with_waiting(super().erasure)

    @property
    def asks_for_keys(self) -> bool:
        """Whether values of encrypted fields are sealed and opened by a key provider elsewhere."""
        return self._seal().runtime.keys.waits

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

    def doctor_subject(self) -> Subject:
        """The application as `maniflex.doctor.run.examine` looks at it, also where a package lacks."""

        assembly = self._seal(without_extras=True)
        return subject_of(
            assembly,
            self._durable,
            self._tables(assembly),
            actions=self._actions,
            layers=self._layers,
            computed=self._computed,
            ignores=self._ignores,
        )


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


# A sealed server as the doctor looks at it.


def subject_of(
    assembly: Assembly,
    durable: Durable,
    tables: SchemaTables,
    *,
    actions: Sequence[Action],
    layers: Sequence[Any],
    computed: Mapping[type[Model], Sequence[Any]],
    ignores: Sequence[Ignore],
) -> Subject:
    """The application, as values."""
    runtime = assembly.runtime
    desk = durable.files.declared_desk

    return Subject(
        config=runtime.config,
        clock=runtime.clock,
        models=tuple(store.meta for store in runtime.stores.values()),
        stores=runtime.stores,
        adapters=assembly.adapters,
        routes=tuple(assembly.guards.judge_routes(assembly.endpoints, runtime.config.path_prefix)),
        placement=assembly.placement,
        layers=layers,
        actions=actions,
        computed=computed,
        work=durable.work,
        outbox=durable.outbox,
        events=durable.events,
        schedules=durable.schedules,
        storage=None if desk is None else desk.storage,
        in_process=assembly.in_process,
        runtime=runtime,
        migration_targets=tables.targets,
        ignores=tuple(ignores),
        work_keys=durable.key_ids(runtime.keys),
        has_open_hub=_has_open_hub(assembly, durable),
        missing_extras=assembly.missing_extras,
    )


def _has_open_hub(assembly: Assembly, durable: Durable) -> bool:
    """Whether nobody asks who connects to the streams."""
    hub = durable.hub
    if hub is None:
        return False
    if hub.has_authenticator:
        return hub.asks_nobody
    auth = assembly.placement.pipeline.auth
    return not in_order(auth, None, Operation.SUBSCRIBE, item=True)
