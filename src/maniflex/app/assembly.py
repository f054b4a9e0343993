"""From declarations to a working server: check everything, then build everything, once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import sqlalchemy as sa

from maniflex._clock import Clock
from maniflex.app.entry_tables import computed_problems
from maniflex.background.metrics import Metrics
from maniflex.background_api.groups import in_groups
from maniflex.background_api.metrics import metrics_endpoints, metrics_problems
from maniflex.background_api.part_routes import PartRoutes, RouteBuilder, refuse_foreign_scopes
from maniflex.config import Config, sqlite_path
from maniflex.db.cascade import junction_problems, unenforceable
from maniflex.db.port import Adapter
from maniflex.db.store import Store
from maniflex.errors import DeclarationError
from maniflex.features.actions import Action, action_endpoint
from maniflex.features.aggregate import aggregate_endpoints
from maniflex.features.export import export_endpoints, export_problems
from maniflex.features.pending import unavailable_options
from maniflex.features.search import GlobalSearch, search_endpoints, search_problems
from maniflex.http.asgi import App, HttpApp
from maniflex.http.probes import Health, Probes
from maniflex.http.routing import Router
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta, RelationKind
from maniflex.model.registry import Registry
from maniflex.openapi.document import Document
from maniflex.openapi.serve import Description
from maniflex.pipeline.chain import Composer
from maniflex.pipeline.computed import Computed
from maniflex.pipeline.context import AsgiScope, Context, Receive
from maniflex.pipeline.endpoints import Endpoint, model_endpoints
from maniflex.pipeline.entry import place_entries
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.read_body import IN_PROCESS
from maniflex.pipeline.registration import Pipeline, takes
from maniflex.pipeline.runtime import Runtime
from maniflex.sql.model import ModelSql


@dataclass(frozen=True, slots=True)
class Assembly:
    """A sealed server's parts."""

    runtime: Runtime
    adapters: tuple[Adapter, ...]
    endpoints: tuple[Endpoint, ...]
    app: App
    probes: App
    routes: list[tuple[str, str, str]]
    description: Description

    def schemas(self) -> Iterator[tuple[Adapter, list[ModelSql]]]:
        """The models of each database."""
        for adapter in self.adapters:
            yield adapter, [s.sql for s in self.runtime.stores.values() if s.adapter is adapter]

    def in_process_request(
        self,
        operation: Operation,
        model: type[Model] | str,
        id: str,
        body: Mapping[str, Any] | None,
        query: Any,
        headers: Mapping[str, str] | None,
    ) -> tuple[Endpoint, AsgiScope, Receive]:
        """The endpoint of an operation and a request for it that came by no wire."""
        meta = self.runtime.store(model).meta
        endpoints = [
            e
            for e in self.endpoints
            if e.model is meta and e.operation is operation and e.path.endswith("}") == bool(id)
        ]
        if not endpoints:
            where = "one record" if id else "the collection"
            raise DeclarationError(f"{meta.name} has no {operation} operation on {where}")
        path = f"/{meta.table}/{id}" if id else f"/{meta.table}"
        # What is no Unicode goes on as it is, to be refused like the same bytes of a client.
        raw = query if isinstance(query, str) else urlencode(query, doseq=True, errors="surrogatepass")
        content = b"" if body is None else self.runtime.encode(body)
        scope: AsgiScope = {
            "type": "http",
            IN_PROCESS: True,
            "method": endpoints[0].method,
            "path": path,
            "query_string": raw.encode(errors="surrogatepass"),
            "headers": [
                (k.lower().encode(errors="surrogatepass"), v.encode(errors="surrogatepass"))
                for k, v in (headers or {}).items()
            ],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        return endpoints[0], scope, receive


@dataclass(frozen=True, slots=True)
class Declaration:
    """What an application has said by the time it is sealed."""

    config: Config
    clock: Clock
    logger: logging.Logger
    registry: Registry
    pipeline: Pipeline
    actions: Sequence[Action]
    computed: Mapping[type[Model], Sequence[Computed]]
    search: GlobalSearch | None
    part_routes: Sequence[PartRoutes]  # the routes of durable work
    metrics: Metrics
    health: Health
    problems: Sequence[str] = ()  # those of the durable parts
    internal_tables: Collection[type[Model]] = ()  # tables of durable work, which have guards of their own
    title: str = ""  # of the API description, when no setting names it


def assemble(declaration: Declaration) -> Assembly:
    """Build the server, or raise one `DeclarationError` with every mistake there is."""
    declaration.pipeline.seal()  # first, so that what comes in meanwhile is refused instead of forgotten
    try:
        return _build(declaration)
    except BaseException:
        declaration.pipeline.unseal()
        raise


def _build(declaration: Declaration) -> Assembly:
    config, logger = declaration.config, declaration.logger
    computed_fields, search, actions = declaration.computed, declaration.search, declaration.actions
    readable_models, problems, pipeline = _check_declaration(
        declaration.registry, declaration.pipeline, actions, computed_fields, logger
    )
    problems += [*declaration.problems, *metrics_problems(config)]
    models = readable_models or ()
    problems += _internal_relation_problems(models, declaration.internal_tables)
    problems += [*search_problems(models), *(search.problems() if search is not None else ())]
    databases = _Databases(config)
    stores, store_problems = _stores(models, databases, declaration.clock)
    problems += store_problems

    problems += _link_stores(config, stores, declaration.internal_tables)

    # Built even from a declaration with problems: routes may want the same path, middleware may never run.
    runtime = Runtime(config, declaration.clock, databases.default, stores, logger)
    composer = Composer(pipeline, config.trace, logger, {s.meta.name: s.meta for s in stores.values()})
    usable = [meta for meta in models if meta.cls in stores]
    endpoints = [
        e for m in usable for e in model_endpoints(runtime, composer, m, computed_fields.get(m.cls, ()))
    ]
    endpoints += [e for m in usable for e in aggregate_endpoints(runtime, composer, m)]
    endpoints += export_endpoints(runtime, composer, usable)
    endpoints += [action_endpoint(a, composer) for a in actions if a.is_mountable()]
    if search is not None:
        endpoints += search_endpoints(search, composer, models)
    builder = RouteBuilder(runtime, composer, computed_fields)
    for part_routes in declaration.part_routes:
        endpoints = part_routes.replace_routes(builder, endpoints)
    endpoints = in_groups(refuse_foreign_scopes(endpoints, declaration.internal_tables))
    probes = list(Probes(runtime, databases.all, declaration.health).endpoints())
    probes += metrics_endpoints(runtime, declaration.metrics)
    probe_app = _probe_app(runtime, probes)
    document = Document(
        config,
        models,
        computed_fields,
        partial(_is_guarded, pipeline, composer),
        lambda meta: stores[meta.cls].adapter,
        declaration.title,
    )

    def describe() -> dict[str, Any]:
        return document.make([(config.path_prefix, e) for e in endpoints] + [("", e) for e in probes])

    spec_steps = Composer(pipeline.openapi, config.trace, logger)
    description = Description(config, pipeline.openapi, spec_steps, describe)
    endpoints += description.below_prefix()
    probes += description.at_root()
    router, mounts, conflicts = _routes(config, endpoints, probes)
    problems += conflicts
    names = None if readable_models is None else [meta.name for meta in readable_models]
    complete = readable_models is not None and len(stores) == len(readable_models)
    operations = {(e.model, e.operation) for e in endpoints} | {(None, Operation.ACTION) for _ in actions}
    problems += pipeline.problems(names, operations if complete else None)
    if problems:
        raise DeclarationError(*problems)

    routes = [(e.method, config.path_prefix + e.path, e.owner) for e in endpoints]
    routes += [(e.method, e.path, e.owner) for e in probes]
    app = HttpApp(runtime, router, mounts)
    return Assembly(runtime, tuple(databases.all), tuple(endpoints), app, probe_app, routes, description)


def _probe_app(runtime: Runtime, probes: Sequence[Endpoint]) -> App:
    """The probes alone, for a process that serves nothing else."""
    router: Router[Endpoint] = Router()
    for endpoint in probes:
        router.add(endpoint.method, endpoint.path, endpoint)
    return HttpApp(runtime, router, {})


def _is_guarded(pipeline: Pipeline, composer: Composer, endpoint: Endpoint) -> bool:
    """Whether auth middleware may refuse a request for this endpoint, its own or that of a reached model."""
    if endpoint.about is not None and endpoint.about.security == ():
        return False
    if endpoint.context is not Context:
        return True
    item = "{" in endpoint.path or bool(endpoint.model and endpoint.model.options.singleton)
    matching = (r.matches(endpoint.model, endpoint.operation, item=item) for r in pipeline.auth.registrations)
    return any(matching) or bool(composer.guards_of_reachable(endpoint.model, endpoint.operation, item=item))


def _link_stores(
    config: Config, stores: Mapping[type[Model], Store], internal_tables: Collection[type[Model]]
) -> list[str]:
    """Tell every store of the others, and say which of their relations cannot be kept."""
    models = {store.meta.name: store.meta for store in stores.values()}
    stores_by_model = {store.meta.name: store for store in stores.values()}
    for store in stores.values():
        limits = store.meta.options.limits or config.limits
        store.link(models, stores_by_model, limits, must_bind=store.meta.cls in internal_tables)
    crossing = [problem for store in stores.values() for problem in unenforceable(store, stores_by_model)]
    return [*crossing, *junction_problems(stores_by_model)]


def _internal_relation_problems(
    models: Sequence[ModelMeta], internal_tables: Collection[type[Model]]
) -> Iterator[str]:
    """Relations into internal tables: what comes along with another record passes no guard of theirs."""
    names = {cls.__name__ for cls in internal_tables}
    for meta in (meta for meta in models if meta.cls not in internal_tables):
        for relation in meta.relations.values():
            if not {relation.target, relation.through} & names:
                continue
            if relation.kind is RelationKind.BELONGS_TO:
                hint = f"{meta.name}.{relation.key}: keep the id as a plain field: relation=None"
            else:
                hint = f"{meta.name}.{relation.name}: leave it out, and look the records up by id"
            yield f"{hint}; no model refers to {relation.target}, whose guard it would go around"


def _stores(
    models: Sequence[ModelMeta], databases: _Databases, clock: Clock
) -> tuple[dict[type[Model], Store], list[str]]:
    """Each model on its database, and those whose database is none."""
    metadata: dict[int, sa.MetaData] = {}
    stores: dict[type[Model], Store] = {}
    problems: list[str] = []
    for meta in models:
        try:
            adapter = databases.of(meta)
        except DeclarationError as error:
            problems += [f"{meta.name}: database: {problem}" for problem in error.problems]
            continue
        stores[meta.cls] = Store(meta, adapter, metadata.setdefault(id(adapter), sa.MetaData()), clock)
    return stores, problems


def _check_declaration(
    registry: Registry,
    pipeline: Pipeline,
    actions: Sequence[Action],
    computed: Mapping[type[Model], Sequence[Computed]],
    logger: logging.Logger,
) -> tuple[tuple[ModelMeta, ...] | None, list[str], Pipeline]:
    """The models if they can be read, the problems, and the pipeline with the models' own middleware."""
    problems: list[str] = []
    models: tuple[ModelMeta, ...] | None = None
    try:
        models = registry.seal()
    except DeclarationError as error:
        problems += error.problems
    whole_pipeline, own_problems = pipeline.with_model_middleware(models or ())
    placement = place_entries(whole_pipeline, models)
    problems += [*own_problems, *placement.problems]
    problems += computed_problems(placement.pipeline, models or (), computed)
    for warning in placement.warnings:
        logger.warning(warning)
    # Without models, every mention of one would look wrong.
    problems += _computed_problems(None if models is None else {m.cls: m for m in models}, computed)
    problems += [problem for meta in models or () for problem in unavailable_options(meta)]
    problems += [problem for meta in models or () for problem in export_problems(meta)]
    problems += [problem for action in actions for problem in action.problems()]
    if models is not None:  # a type may hold a model
        problems += [problem for action in actions for problem in action.type_problems()]
    return models, problems, placement.pipeline


def _computed_problems(
    models: Mapping[type[Model], ModelMeta] | None, computed: Mapping[type[Model], Sequence[Computed]]
) -> list[str]:
    problems = [
        f"computed {cls.__name__}.{field.name}: it is called with (record) or (ctx, record),"
        " neither of which it takes"
        for cls, fields in computed.items()
        for field in fields
        if not takes(field.fn, 2 if field.takes_context else 1)
    ]
    if models is None:
        return problems
    for cls, fields in computed.items():
        meta = models.get(cls)
        if meta is None:
            problems.append(f"computed {cls.__name__}.{fields[0].name}: the model is not registered")
            continue
        names = {*meta.by_api, *meta.relations}
        for field in fields:
            if field.name in names:
                problems.append(f"computed {meta.name}.{field.name}: there is a field of that name already")
            names.add(field.name)
    return problems


class _Databases:
    """The default database and those single models are routed to; one adapter for one URL."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._by_address: dict[str, Adapter] = {}
        self.all: list[Adapter] = []
        self.default = self._adapter(config.database)

    def of(self, meta: ModelMeta) -> Adapter:
        return self.default if meta.options.database is None else self._adapter(meta.options.database)

    def _adapter(self, database: Any) -> Adapter:
        if isinstance(database, str):
            if database not in self._by_address:
                self._by_address[database] = self._build(database)
            database = self._by_address[database]
        elif not hasattr(database, "transaction"):
            raise DeclarationError(f"a {type(database).__name__} is neither an address nor an adapter")
        if not any(database is other for other in self.all):
            self.all.append(database)
        adapter: Adapter = database
        return adapter

    def _build(self, url: str) -> Adapter:
        config = self._config
        if url.startswith(("postgresql://", "postgres://")):
            from maniflex.db.postgres.adapter import PostgresAdapter

            return PostgresAdapter(
                url,
                read_url=config.read_database if url == config.database else None,
                pool_size=config.pool_size,
                read_pool_size=config.read_pool_size,
                statement_timeout=config.statement_timeout,
                lock_timeout=config.lock_timeout,
                idle_in_transaction_timeout=config.idle_in_transaction_timeout,
                pool_timeout=config.pool_timeout,
                application_name=config.application_name,
                schema=config.schema,
                pooler=config.pooler,
            )
        if url.startswith("sqlite:") or url == ":memory:":
            from maniflex.db.sqlite.adapter import SqliteAdapter

            return SqliteAdapter(
                sqlite_path(url),
                readers=config.sqlite_readers,
                lock_timeout=config.lock_timeout,
                statement_timeout=config.statement_timeout,
                pool_timeout=config.pool_timeout,
            )
        raise DeclarationError("an address is written sqlite:///file or postgresql://…")


def _routes(
    config: Config, endpoints: Sequence[Endpoint], probes: Sequence[Endpoint]
) -> tuple[Router[Endpoint], dict[str, App], list[str]]:
    """What answers a path, and every path two want."""
    router: Router[Endpoint] = Router()
    problems = []
    mounted_endpoints = [("", e) for e in probes] + [(config.path_prefix, e) for e in endpoints]
    for prefix, endpoint in mounted_endpoints:
        existing = router.add(endpoint.method, prefix + endpoint.path, endpoint)
        if existing is not None:
            where = f"{endpoint.method} {prefix}{endpoint.path}"
            problems.append(f"{where}: both {existing.owner} and {endpoint.owner} want this route")
    mounts: dict[str, App] = {}
    try:
        mounts = _static_mounts(config)
    except DeclarationError as error:
        problems += error.problems
    for prefix in mounts:
        paths = [path for path in router.paths() if (path + "/").startswith(prefix + "/")]
        if paths:
            problems.append(f"static_prefix {prefix!r} would share its paths with {paths[0]!r}")
    return router, mounts, problems


def _static_mounts(config: Config) -> dict[str, App]:
    directory = Path(config.static_dir)
    if config.static_disabled or not str(config.static_dir) or not directory.is_dir():
        return {}
    if not config.static_prefix:
        raise DeclarationError("static_prefix is empty; files need a prefix of their own, or static_disabled")
    from maniflex.http.static import static_app

    return {config.static_prefix: static_app(directory, config.static_prefix)}
