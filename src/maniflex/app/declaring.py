"""What an application declares on its server, until the server is sealed."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from maniflex._callables import explain_arguments
from maniflex._service import Service, StartOnly
from maniflex.app.assembly import Assembly
from maniflex.app.draft import InternalTables
from maniflex.app.durable import Durable
from maniflex.app.lifecycle import Lifecycle
from maniflex.doctor.check import Ignore
from maniflex.encryption.port import KeyProvider
from maniflex.errors import ConfigError, DeclarationError
from maniflex.features.actions import Action
from maniflex.features.search import GlobalSearch
from maniflex.http.layers import Layer
from maniflex.model.base import Model
from maniflex.model.registry import Registry
from maniflex.pipeline.entry import LayerEntry, ObserverEntry
from maniflex.pipeline.observation import Observation, Tracing
from maniflex.pipeline.registration import Middleware, Pipeline
from maniflex.pipeline.rules.transforms import Computed
from maniflex.storage.port import Storage

if TYPE_CHECKING:
    from maniflex.admin.declare import Admin, AdminAuth, Login, ModelName, Operations
    from maniflex.admin.people import Superusers
    from maniflex.features.batch import BatchRoute
    from maniflex.features.rollups import RollupSpec
    from maniflex.query.conditions import Where


F = TypeVar("F", bound=Callable[..., Any])
ObserverFn = TypeVar("ObserverFn", bound=Callable[[Observation], Any] | ObserverEntry)


class WithDeclarations:
    """Models, actions, computed fields, services and hooks of a server."""

    _lifecycle: Lifecycle
    _durable: Durable

    def __init__(self) -> None:
        self.pipeline = Pipeline()
        self._registry = Registry()
        self._internal_tables = InternalTables(self._registry)
        self._actions: list[Action] = []
        self._layers: list[Any] = []
        self._observers: list[Any] = []
        self._panic_hooks: list[Callable[[str, BaseException], Any]] = []
        self._computed: dict[type[Model], list[Computed]] = {}
        self._search: GlobalSearch | None = None
        self._batch: BatchRoute | None = None
        self._rollups: list[RollupSpec] = []
        self._admin: Admin | None = None
        self._readiness: dict[str, Callable[[], Any]] = {}
        self._access_control = ""
        self._tracing: Tracing | None = None
        self._ignores: list[Ignore] = []
        self._key_provider: KeyProvider | None = None
        self._assembly: Assembly | None = None
        self._sealing = threading.RLock()

    def _seal(self) -> Assembly:
        raise NotImplementedError

    def _require_open(self, what: str) -> None:
        if self._assembly is not None:
            raise DeclarationError(f"the server is sealed; {what} before it starts")

    def register(self, *models: Any) -> None:
        """Register models; `ModelOptions` behind one override its class keywords, lists are flattened."""
        with self._sealing:
            self._require_open("models are registered")
            self._registry.register(*models)

    def has_model(self, model: type[Model]) -> bool:
        """Whether the model is registered here, by the application or by a part that keeps rows in it."""
        return model in self._registry

    @explain_arguments("server.action")
    def action(
        self,
        method: str,
        path: str,
        *,
        request: Any = None,
        response: Any = None,
        middleware: Iterable[Middleware] = (),
        name: str | None = None,
        summary: str = "",
        tags: Iterable[str] = (),
        deprecated: bool = False,
        description: str | None = None,
        query_params: Mapping[str, Any] | None = None,
        security: Sequence[Mapping[str, Sequence[str]]] | None = None,
        schedulable: bool = False,
        errors: Iterable[int] = (),
        status: int | None = None,
        responses: Mapping[int, Any] | None = None,
        request_body: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]:
        """Mount a handler of your own below the path prefix; `request` validates its body.

        What the handler returns is answered with `status`; `responses` are its other answers by status, with
        the type of their data or None for none, and `request_body` is a body that it reads itself.

        With `schedulable`, schedules that are made over REST may call it; code may schedule any action. The
        rest is for the API description; what it says is the handler's docstring unless told.
        """

        if not isinstance(responses, Mapping | None):
            raise DeclarationError(
                f"action {method} {path}: responses= maps statuses to types, such as {{404: None}}"
            )

        def decorate(fn: F) -> F:
            with self._sealing:
                self._require_open("actions are added")
                self._actions.append(
                    Action(
                        method=method.upper(),
                        path=path,
                        handler=fn,
                        request=request,
                        response=response,
                        middleware=tuple(middleware),
                        name=name or str(getattr(fn, "__name__", "action")),
                        summary=summary,
                        tags=tuple(tags),
                        deprecated=deprecated,
                        description=description if description is not None else inspect.getdoc(fn) or "",
                        query_params=dict(query_params or {}),
                        security=security,
                        schedulable=schedulable,
                        errors=tuple(errors),
                        status=status,
                        responses=dict(responses or {}),
                        request_body=request_body,
                    )
                )
            return fn

        return decorate

    @explain_arguments("server.saga")
    def saga(
        self,
        method: str,
        path: str,
        *,
        type: str,
        request: Any = None,
        undo_attempts: int = 10,
        undo_backoff: Callable[[int], timedelta] | timedelta | float | None = None,
        **options: Unpack[SagaOptions],
    ) -> Callable[[F], F]:
        """Mount a route that submits a run of this type, which the decorated function handles.

        The function is given the `Run`; steps with `compensate=` are taken back, the last one first, where it
        fails. The other options are those of `action` for the route and of `work.handler` for the run.
        """
        from maniflex.background_api.sagas import SAGA_ANSWERS, SagaRoute

        of_handler: dict[str, Any] = dict(options)
        of_action = {name: of_handler.pop(name) for name in ACTION_OPTIONS if name in of_handler}

        def decorate(fn: F) -> F:
            work = self._durable.work
            of_handler.update(payload=request, undo_attempts=undo_attempts, undo_backoff=undo_backoff)
            work.handler(type, **of_handler)(fn)
            usual = {"name": str(getattr(fn, "__name__", "saga")), "description": inspect.getdoc(fn) or ""}
            about = {**usual, **SAGA_ANSWERS, **of_action}
            route = SagaRoute(work, type, request)
            self.action(method, path, request=request, **about)(route.answer)
            return fn

        return decorate

    @explain_arguments("server.computed")
    def computed(self, model: type[Model], name: str, *, batch: bool = False) -> Callable[[F], F]:
        """Add a field to every response of a model: `fn(record)` or `fn(ctx, record)`.

        In batch, `fn` gets all records of a page and returns a value for each.
        """

        def decorate(fn: F) -> F:
            with self._sealing:
                self._require_open("computed fields are added")
                self._computed.setdefault(model, []).append(Computed.of(name, fn, batch))
            return fn

        return decorate

    @explain_arguments("server.enable_global_search")
    def enable_global_search(
        self, path: str = "/search", *, default_limit: int = 20, max_limit: int = 100
    ) -> None:
        """Mount a search over every model with `global_searchable=True`; only auth middleware guards it."""
        with self._sealing:
            self._require_open("global search is enabled")
            if self._search is not None:
                raise DeclarationError("enable_global_search was called already")
            self._search = GlobalSearch(path, default_limit, max_limit)

    @explain_arguments("server.enable_batch")
    def enable_batch(self, path: str = "/batch", *, max_operations: int = 100, actions: bool = False) -> None:
        """Mount a route that takes several operations in one request, each through its own whole pipeline.

        With `actions`, a batch may call actions, too.
        """
        from maniflex.features.batch import BatchRoute
        from maniflex.middleware.idempotency.keys import BatchKeys

        with self._sealing:
            self._require_open("batches are enabled")
            if self._batch is not None:
                raise DeclarationError("enable_batch was called already")
            self._batch = BatchRoute(path, max_operations, actions=actions)
            self._actions.append(self._batch.action([BatchKeys(self._batch.surround)]))

    @explain_arguments("server.rollup")
    def rollup(
        self,
        parent: ModelName,
        field: str,
        op: str,
        child: ModelName,
        child_field: str | None = None,
        *,
        on: str | None = None,
        where: Where | None = None,
    ) -> None:
        """Keep a field of each parent at the `sum`, `count`, `avg`, `min` or `max` of its live children.

        It is computed anew in the transaction of every write of a child. `on` is the child's key to the
        parent, where there are several, and `where` narrows the children that count.
        """
        from maniflex.features.rollups import RollupSpec

        with self._sealing:
            self._require_open("rollups are declared")
            self._rollups.append(RollupSpec(parent, field, op, child, child_field, on, where))

    @explain_arguments("server.admin")
    def admin(self, path: str = "/admin", **options: Unpack[AdminOptions]) -> Admin:
        """Switch the admin panel on, at this path beside the API; nobody enters without a login."""
        from maniflex.admin.declare import TRANSFER_RUN, Admin

        with self._sealing:
            self._require_open("the panel is declared")
            if self._admin is not None:
                raise DeclarationError("server.admin was called already")
            self._admin = Admin(path, **options)
            self._admin.is_sealed = lambda: self._assembly is not None
            if not self._admin.read_only:
                self._durable.work.add_internal(TRANSFER_RUN, self._admin.run_transfer)
        return self._admin

    @property
    def declared_panel(self) -> Admin | None:
        """The panel that `server.admin` declared, if there is one."""
        return self._admin

    @property
    def superusers(self) -> Superusers:
        """The people who may enter the panel with a password of its own, for scripts and tests."""
        from maniflex.admin.people import Superusers

        return Superusers(self._seal().runtime)

    @property
    def panel_path(self) -> str:
        """Where the panel is; empty without one."""
        return "" if self._admin is None else self._admin.path

    def _check_panel_address(self, host: str) -> None:
        """Refuse to serve an open panel to other machines."""
        if self._admin is not None and self._admin.allow_unauthenticated and host not in LOOPBACK:
            raise ConfigError(
                f"the panel is open (allow_unauthenticated), so the server cannot listen on {host}"
            )

    def use(self, layer: Layer | LayerEntry) -> None:
        """Put a layer around everything the server answers; it is given an ASGI application and returns one.

        The first that is added is outermost.
        """
        with self._sealing:
            self._require_open("layers are added")
            self._layers.append(layer)

    def observe(self, fn: ObserverFn) -> ObserverFn:
        """Call `fn` with an `Observation` after every HTTP request, also after those that are refused.

        A plain function is called on the event loop and must not block; an async one keeps nothing waiting.
        """
        with self._sealing:
            self._require_open("observers are added")
            self._observers.append(fn)
        return fn

    @explain_arguments("server.readiness")
    def readiness(self, name: str) -> Callable[[F], F]:
        """Let `/ready` ask this function, too: it fails when it raises, returns False or takes too long."""

        def decorate(fn: F) -> F:
            with self._sealing:
                self._require_open("readiness checks are added")
                if name in self._readiness:
                    raise DeclarationError(f"there are two readiness checks called {name!r}")
                self._readiness[name] = fn
            return fn

        return decorate

    @explain_arguments("server.http_access_controlled")
    def http_access_controlled(self, *, reason: str) -> None:
        """Say that something before the server decides who may call it, so that `production` asks no more."""
        with self._sealing:
            self._require_open("access is decided")
            if not reason.strip():
                raise DeclarationError("http_access_controlled: reason= says what controls it")
            self._access_control = reason

    def trace_with(self, tracing: Tracing) -> None:
        """Make spans of requests, steps, statements, runs and messages: see `maniflex.ext.otel`."""
        with self._sealing:
            self._require_open("tracing is set up")
            if self._tracing is not None:
                raise DeclarationError("the server is traced already")
            self._tracing = tracing

    def add_service(self, service: Service | Callable[[], Any]) -> None:
        """Start and stop this with the server, after the services added before it."""
        with self._sealing:
            self._require_open("services are added")
            self._lifecycle.services.append(StartOnly(service) if inspect.isroutine(service) else service)  # type: ignore[arg-type]

    def set_storage(self, storage: Storage | str) -> None:
        """Keep files in this storage, or in the one at this address; it wins over the setting."""
        with self._sealing:
            self._require_open("its storage is set")
            self._durable.files.set_storage(storage)

    def set_key_provider(self, provider: KeyProvider) -> None:
        """Encrypt and decrypt fields with these keys; it wins over the setting."""
        if not isinstance(provider, KeyProvider):
            raise DeclarationError(f"a {type(provider).__name__} is no key provider")
        with self._sealing:
            self._require_open("its key provider is set")
            self._key_provider = provider

    @explain_arguments("server.doctor_ignore")
    def doctor_ignore(self, code: str, *targets: type[Model] | str, reason: str) -> None:
        """Silence what `maniflex doctor` finds under a code, and say why.

        Targets are models, or names as findings have them: `"Post.title"`, `"POST /api/posts"`. Without
        any, it is silenced wherever it is found.
        """
        from maniflex.doctor.run import codes

        if code not in codes():
            raise DeclarationError(
                f"doctor_ignore: there is no code {code!r}; there are {', '.join(codes())}"
            )
        if not reason.strip():
            raise DeclarationError(f"doctor_ignore({code!r}): reason= says why it is meant")
        names = tuple(one if isinstance(one, str) else one.__name__ for one in targets)
        with self._sealing:
            self._require_open("findings of the doctor are silenced")
            self._ignores.append(Ignore(code, names, reason))

    def on_start(self, fn: F) -> F:
        """Call `fn` when the database is ready and before services start."""
        with self._sealing:
            self._require_open("hooks are added")
            self._lifecycle.on_start.append(fn)
        return fn

    def on_background_panic(self, fn: F) -> F:
        """Call `fn(what, error)` when background work ends in an exception that it did not expect.

        That is work of `ctx.background` and `server.go`, and the loops of durable work. The log has it, too.
        """
        with self._sealing:
            self._require_open("hooks are added")
            self._panic_hooks.append(fn)
        return fn

    def on_shutdown(self, fn: F) -> F:
        """Call `fn` after services have stopped and before the database closes."""
        with self._sealing:
            self._require_open("hooks are added")
            self._lifecycle.on_shutdown.append(fn)
        return fn


# The keywords of `server.saga`: of its route, and of the handler of its runs.


class SagaOptions(TypedDict, total=False):
    """Everything but the route, the type and how steps are undone."""

    middleware: Iterable[Middleware]
    name: str | None
    summary: str
    tags: Iterable[str]
    deprecated: bool
    description: str | None
    query_params: Mapping[str, Any] | None
    security: Sequence[Mapping[str, Sequence[str]]] | None
    schedulable: bool
    errors: Iterable[int]
    max_attempts: int
    lease: timedelta | float | None
    timeout: timedelta | float | None
    backoff: Callable[[int], timedelta] | None
    internal: bool
    public: bool
    max_priority: int
    dead_letter: str | None
    scoped: bool
    encrypted: bool | str | None


ACTION_OPTIONS = (
    *("middleware", "name", "summary", "tags", "deprecated", "description", "query_params", "security"),
    *("schedulable", "errors"),
)


# The keywords of `server.admin`, for type checkers; importing them loads nothing of the panel.


LOOPBACK = ("127.0.0.1", "::1", "localhost")


class AdminOptions(TypedDict, total=False):
    """Everything but the path."""

    title: str
    auth: str | Login | AdminAuth
    role: str | None
    models: Sequence[ModelName] | None
    exclude: Sequence[ModelName]
    read_only: bool
    operations: bool | Operations
    tenants: ModelName | None
    accounts: ModelName | None
    time_zone: str
    templates: str | Path | None
    assets: str | Path | None
    texts: Mapping[str, str] | None
    session_lifetime: timedelta
    idle_timeout: timedelta
    allow_unauthenticated: bool
