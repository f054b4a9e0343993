"""From declarations to a working server: check everything, then build everything, once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from maniflex._names import did_you_mean
from maniflex.app.databases import (
    Databases,
    Stores,
    link_stores,
    make_stores,
    observe_statements,
    unregistered_targets,
)
from maniflex.app.draft import Declaration, ServerDraft
from maniflex.app.entry_tables import computed_problems
from maniflex.app.features import FEATURES
from maniflex.app.route_guards import (
    GuardsByRoute,
    ProductionProblem,
    RouteDescriptions,
    RouteGuards,
    guarded_routes,
    production_notes,
    production_problems,
)
from maniflex.config import Config
from maniflex.db.port import Adapter
from maniflex.db.store import Store
from maniflex.doctor.check import Ignore
from maniflex.encryption.waiting import waits_inside
from maniflex.errors import DeclarationError
from maniflex.http.access_log import with_access_log
from maniflex.http.asgi import App, HttpApp, Router
from maniflex.http.layers import Observed, Surroundings
from maniflex.middleware.auth.authenticator import CallerCheck
from maniflex.middleware.auth.csrf_tokens import forgery_problems
from maniflex.model.meta import ModelMeta
from maniflex.model.texts import localized_fields, settle_locales
from maniflex.openapi.document import Document
from maniflex.openapi.serve import Description
from maniflex.pipeline.chain import Composer
from maniflex.pipeline.context import OpenAPIContext
from maniflex.pipeline.entry import Placement, place_entries, unused_models
from maniflex.pipeline.in_process import InProcess
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Pipeline
from maniflex.pipeline.routes import Endpoint, Mount, RouteBuilder
from maniflex.pipeline.rules.model_rules import ServerRules
from maniflex.pipeline.rules.reach import ReachedModels
from maniflex.pipeline.runtime import Runtime
from maniflex.query.parse import OwnParameters
from maniflex.query.query import reachable_models
from maniflex.sql.model import ModelSql

if TYPE_CHECKING:
    from maniflex.admin.panel import Panel

Prefixed = list[tuple[str, Endpoint]]


class StartReport:
    """What may stop a start, depending on its settings, and what may be meant."""

    def __init__(
        self,
        *,
        production: Iterable[ProductionProblem],
        strict: Iterable[str],
        notes: Iterable[ProductionProblem],
        ignores: Sequence[Ignore],
    ) -> None:
        self.strict = list(strict)
        self.notes: list[str] = []
        self._silenced: list[str] = []
        self.production = list(self._leave_silenced(production, ignores))
        self.notes += self._leave_silenced(notes, ignores)

    def _leave_silenced(
        self, problems: Iterable[ProductionProblem], ignores: Sequence[Ignore]
    ) -> Iterator[str]:
        """The problems that the application does not silence for the doctor; a note tells of the others."""
        for problem in problems:
            rule = problem.silencing_rule(ignores)
            if rule is None:
                yield problem.text
            else:
                self._silenced.append(problem.text)
                self.notes.append(f"{rule.code} silenced: {problem.text} ({rule.reason})")

    def all(self) -> list[str]:
        """Both, without the warnings of entries that would also refuse to serve in production."""
        said_elsewhere = (*self.production, *self._silenced)
        others = [text for text in self.strict if not text.endswith(said_elsewhere)]
        return list(dict.fromkeys([*self.production, *others]))

    def of(self, config: Config) -> list[str]:
        """The problems for a server with these settings."""
        if config.production:
            return self.all()
        return self.strict if config.strict else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A sealed server's parts."""

    runtime: Runtime
    adapters: tuple[Adapter, ...]
    endpoints: tuple[Endpoint, ...]
    app: App
    logged: Observed  # the same for listeners that keep an access log
    probes: App
    metrics: App
    description: Description
    in_process: InProcess
    guards: GuardsByRoute
    placement: Placement
    report: StartReport
    panel: Panel | None
    missing_extras: tuple[str, ...] = ()  # with any it is only good for the doctor

    def schemas(self) -> Iterator[tuple[Adapter, list[ModelSql]]]:
        """The models of each database."""
        for adapter in self.adapters:
            yield adapter, [store.sql for store in self.stores_of(adapter)]

    def stores_of(self, adapter: Adapter) -> list[Store]:
        """The stores of the models in one database."""
        return [store for store in self.runtime.stores.values() if store.adapter is adapter]

    def routes(self) -> list[tuple[str, str, str]]:
        """Method, path and owner of every endpoint."""
        of_api, at_root = _with_prefix(self.runtime.config, self.endpoints)
        return [(e.method, prefix + e.path, e.owner) for prefix, e in (*of_api, *at_root)]

    def guarded_routes(self) -> list[tuple[str, str, RouteGuards]]:
        """Method, path and guards of every endpoint."""
        of_api, at_root = _with_prefix(self.runtime.config, self.endpoints)
        return [(e.method, prefix + e.path, self.guards.of(e)) for prefix, e in (*of_api, *at_root)]

    def production_report(self) -> tuple[list[str], list[str]]:
        """What should not be served to the world, and what should be looked at before it is."""
        return self.report.all(), list(dict.fromkeys(self.report.notes))


def assemble(declaration: Declaration) -> Assembly:
    """Build the server, or raise one `DeclarationError` with every mistake there is."""
    declaration.pipeline.seal()  # first, so that what comes in meanwhile is refused instead of forgotten
    try:
        return _build(declaration)
    except BaseException:
        declaration.pipeline.unseal()
        raise


def _build(declaration: Declaration) -> Assembly:
    config, internal_tables = declaration.config, declaration.internal_tables
    _register_internal_tables(declaration)
    models, placement, problems = _read_models(declaration)
    pipeline = placement.pipeline
    surroundings = Surroundings(
        declaration.layers, declaration.observers, [e for e, _ in placement.seats], declaration.tracing
    )
    problems += surroundings.problems()
    internal_tables.add_registered(models or ())
    endpoints: list[Endpoint] = []
    guards = GuardsByRoute(placement, declaration.actions, declaration.config.files_middleware)
    draft, store_problems = _make_draft(
        declaration, models, placement=placement, endpoints=endpoints, guards=guards
    )
    for feature in FEATURES:
        feature.prepare(draft)
    _seal_rules(draft, placement)
    problems += [problem for feature in FEATURES for problem in feature.problems(draft)]
    problems += [*internal_tables.relation_problems(draft.models), *store_problems]

    # Built even from a declaration with problems: routes may want the same path, middleware may never run.
    for feature in FEATURES:
        endpoints[:] = feature.replace_routes(draft, [*endpoints, *feature.routes(draft)])
    router, conflicts = _mount_endpoints(config, endpoints)
    mounts, mount_problems = _mount_static_files(config, router, declaration.logger)
    problems += [*conflicts, *mount_problems, *_middleware_problems(draft, placement, endpoints)]
    problems += _example_problems(config, pipeline, endpoints)
    problems += forgery_problems(guarded_routes(guards, endpoints))
    report = _report(draft, guards, endpoints, placement)
    problems += report.of(config)
    missing = _refuse_problems(problems, without_extras=declaration.without_extras and not store_problems)

    runtime = draft.routes.runtime
    app = surroundings.around(_adapt_http(HttpApp(runtime, router, mounts), runtime), runtime)
    return Assembly(
        runtime=runtime,
        adapters=tuple(draft.databases.all),
        endpoints=tuple(endpoints),
        app=app,
        logged=with_access_log(app, runtime.proxies, config.service_name),
        probes=_app_of(runtime, endpoints, Mount.PROBE, Mount.METRICS),
        metrics=_app_of(runtime, endpoints, Mount.METRICS),
        description=draft.description,
        in_process=_make_in_process(draft, endpoints, router),
        guards=guards,
        placement=placement,
        report=report,
        panel=draft.panel,
        missing_extras=missing,
    )


def _register_internal_tables(declaration: Declaration) -> None:
    for feature in FEATURES:
        for model, options in feature.models(declaration):
            declaration.internal_tables.register(model, options)


def _adapt_http(app: App, runtime: Runtime) -> App:
    """The application, beside a replica with what keeps clients from missing their own writes.

    Its plain functions may wait for keys that are kept elsewhere.
    """
    if runtime.keys.waits:
        app = waits_inside(app)
    if getattr(runtime.adapter, "replica", None) is None:
        return app
    from maniflex.http.read_positions import ReadPositions

    config, database = runtime.config, cast(Any, runtime.adapter)
    max_lag = config.read_max_lag.total_seconds()
    return ReadPositions(app, database, cookie=config.position_cookie, max_lag=max_lag)


def _report(
    draft: ServerDraft, guards: GuardsByRoute, endpoints: Sequence[Endpoint], placement: Placement
) -> StartReport:
    declaration = draft.declaration
    internal = declaration.internal_tables.models
    of_databases = list(draft.databases.problems())
    own_models = [meta for meta in draft.models if meta.cls not in internal]
    return StartReport(
        production=[
            *map(ProductionProblem, of_databases),
            *production_problems(declaration, guards, endpoints, placement),
        ],
        strict=[*of_databases, *declaration.warnings, *unregistered_targets(own_models)],
        notes=production_notes(placement, declaration.access_control),
        ignores=declaration.ignores,
    )


def _make_in_process(
    draft: ServerDraft, endpoints: Sequence[Endpoint], router: Router[Endpoint]
) -> InProcess:
    """What runs requests of the application itself."""
    in_process = InProcess(draft.routes.runtime, endpoints, router.find)
    for feature in FEATURES:
        feature.use(draft, in_process)
    return in_process


def _seal_rules(draft: ServerDraft, placement: Placement) -> None:
    """Before routes are made: which rules bind the models, and what their query strings may hold."""
    runtime = draft.routes.runtime
    runtime.caller_checks += [entry.check for entry, _ in placement.seats if isinstance(entry, CallerCheck)]
    runtime.rules.seal()
    for store in runtime.stores.values():
        store.listings.own = _own_parameters(draft, placement.pipeline, store)


def _own_parameters(draft: ServerDraft, pipeline: Pipeline, store: Store) -> OwnParameters:
    """What else the query strings of a model may hold: what middleware and features of the model read."""
    registrations = [r for step in pipeline.steps for r in step.registrations]
    names = {
        name for r in registrations if r.models is None or store.meta.name in r.models for name, _ in r.params
    }
    config = draft.declaration.config
    base = f"{config.path_prefix}/{store.meta.table}"
    features = [feature.parameters(store.meta) for feature in FEATURES]
    elsewhere = {name: base + path for parameters in features for name, path in parameters.items()}
    models = (store.meta, *reachable_models(store.meta, store.models))
    locales = config.locale if any(localized_fields(meta) for meta in models) else None
    return OwnParameters(frozenset(names), config.strict_params, store.listings.guarded, elsewhere, locales)


def _read_models(declaration: Declaration) -> tuple[tuple[ModelMeta, ...] | None, Placement, list[str]]:
    """The models if they can be read, the pipeline with their own middleware, and the problems of both."""
    models: tuple[ModelMeta, ...] | None = None
    problems: list[str] = []
    try:
        models = declaration.registry.seal()
        settle_locales(models, declaration.config.locale)
    except DeclarationError as error:
        problems += error.problems
    pipeline, middleware_problems = declaration.pipeline.with_model_middleware(models or ())
    for feature in FEATURES:
        feature.register(declaration, pipeline)
    computed = {cls.__name__: [f.name for f in fields] for cls, fields in declaration.computed.items()}
    placement = place_entries(pipeline, models, declaration.actions, computed)
    for warning in placement.warnings:
        declaration.logger.warning(warning)
    problems += [*middleware_problems, *placement.problems]
    problems += computed_problems(placement.pipeline, models or (), declaration.computed)
    return models, placement, problems


def _make_draft(
    declaration: Declaration,
    models: Sequence[ModelMeta] | None,
    *,
    placement: Placement,
    endpoints: Sequence[Endpoint],
    guards: GuardsByRoute,
) -> tuple[ServerDraft, list[str]]:
    """What features start from, and the problems of the models' databases; `endpoints` will be described."""
    config, logger, pipeline = declaration.config, declaration.logger, placement.pipeline
    databases = Databases(config)
    stores, problems = make_stores(models or (), databases, declaration.clock, declaration.keys)
    problems += link_stores(config, stores, declaration.internal_tables.models)
    rules = ServerRules(stores, placement)
    runtime = _make_runtime(declaration, databases, stores, rules)
    metas = {store.meta.name: store.meta for store in stores.values()}
    composer = Composer(pipeline, config.trace, logger, tracing=declaration.tracing)
    reached_models = ReachedModels(composer, pipeline, metas, rules)
    descriptions = RouteDescriptions(guards, reached_models, rules, placement, declaration.layers)
    document = _make_document(declaration, models or (), stores, descriptions)
    spec_composer = Composer(pipeline.openapi, config.trace, logger)
    draft = ServerDraft(
        declaration=declaration,
        models=models or (),
        is_readable=models is not None,
        databases=databases,
        placement=placement,
        routes=RouteBuilder(runtime, composer, reached_models, declaration.computed),
        description=Description(
            RouteBuilder(runtime, spec_composer, reached_models, context=OpenAPIContext),
            pipeline.openapi,
            lambda: document.make(chain.from_iterable(_with_prefix(config, endpoints))),
        ),
    )
    return draft, problems


def _make_document(
    declaration: Declaration,
    models: Sequence[ModelMeta],
    stores: Stores,
    descriptions: RouteDescriptions,
) -> Document:
    """What writes the description of the API."""
    return Document(
        config=declaration.config,
        models=models,
        computed=declaration.computed,
        is_guarded=descriptions.is_guarded,
        home=lambda meta: stores[meta.cls].adapter,
        title=declaration.title,
        entry_docs=descriptions.docs,
        security=descriptions.security,
        posted_types=declaration.durable.posted_types,
    )


def _make_runtime(
    declaration: Declaration, databases: Databases, stores: Stores, rules: ServerRules
) -> Runtime:
    runtime = Runtime(
        config=declaration.config,
        clock=declaration.clock,
        adapter=databases.default,
        stores=stores,
        logger=declaration.logger,
        rules=rules,
        file_desk=declaration.durable.files.declared_desk,
        background_logger=declaration.background_logger,
        tracing=declaration.tracing,
        keys=declaration.keys,
    )
    durations = observe_statements(databases.all, declaration.config, declaration.tracing)
    runtime.statement_durations = durations
    return runtime


def _refuse_problems(problems: Sequence[str], *, without_extras: bool) -> tuple[str, ...]:
    """Raise with all mistakes; without extras the packages that lack are no mistakes, and are given back."""
    missing = tuple(dict.fromkeys(problem for problem in problems if "pip install" in problem))
    if problems and not (without_extras and set(missing) == set(problems)):
        raise DeclarationError(*dict.fromkeys(problems))
    return missing


def _with_prefix(config: Config, endpoints: Sequence[Endpoint]) -> tuple[Prefixed, Prefixed]:
    """The endpoints of the API and those at the root, each with its prefix."""
    of_api = [(config.path_prefix, e) for e in endpoints if e.mount is Mount.API]
    elsewhere = {Mount.API, *((Mount.METRICS,) if config.metrics_port else ())}
    return of_api, [("", e) for e in endpoints if e.mount not in elsewhere]


def _mount_endpoints(config: Config, endpoints: Sequence[Endpoint]) -> tuple[Router[Endpoint], list[str]]:
    """What answers a path, and every path two want."""
    router: Router[Endpoint] = Router()
    problems = []
    of_api, at_root = _with_prefix(config, endpoints)
    for prefix, endpoint in (*at_root, *of_api):
        existing = router.add(endpoint.method, prefix + endpoint.path, endpoint)
        if existing is not None:
            where = f"{endpoint.method} {prefix}{endpoint.path}"
            problems.append(f"{where}: both {existing.owner} and {endpoint.owner} want this route")
    return router, problems


def _app_of(runtime: Runtime, endpoints: Sequence[Endpoint], *mounts: Mount) -> App:
    """An application of the endpoints of these mounts alone, for a port beside that of the API."""
    router: Router[Endpoint] = Router()
    for endpoint in endpoints:
        if endpoint.mount in mounts:
            router.add(endpoint.method, endpoint.path, endpoint)
    return HttpApp(runtime, router, {})


def _mount_static_files(
    config: Config, router: Router[Endpoint], logger: logging.Logger
) -> tuple[dict[str, App], list[str]]:
    """The application that serves files below a prefix, which no endpoint may be below."""
    directory, prefix = Path(config.static_dir), config.static_prefix
    if config.static_disabled or not str(config.static_dir):
        return {}, []
    if not directory.is_dir():
        logger.warning("static_dir: there is no directory %s, so nothing is served from it", directory)
        return {}, []
    if not prefix:
        return {}, ["static_prefix is empty; files need a prefix of their own, or static_disabled"]
    from maniflex.http.static import static_app

    paths = [path for path in router.paths() if (path + "/").startswith(prefix + "/")]
    problems = [f"static_prefix {prefix!r} would share its paths with {path!r}" for path in paths[:1]]
    return {prefix: static_app(directory, prefix)}, problems


def _example_problems(config: Config, pipeline: Pipeline, endpoints: Sequence[Endpoint]) -> Iterator[str]:
    """Examples in the API description for methods and paths that are not there."""
    of_api, at_root = _with_prefix(config, endpoints)
    routes = {(e.method, prefix + e.path) for prefix, e in (*of_api, *at_root)}
    for registration in pipeline.openapi.generate.registrations:
        route = getattr(registration.fn, "route", None)
        if route is not None and route not in routes:
            hint = did_you_mean(route[1], {path for method, path in routes if method == route[0]})
            yield f"pipeline.openapi.generate: {registration.name}: nothing serves {' '.join(route)}{hint}"


def _middleware_problems(
    draft: ServerDraft, placement: Placement, endpoints: Sequence[Endpoint]
) -> Iterator[str]:
    """Middleware for models and operations that there are not, as far as models can be read."""
    pipeline = placement.pipeline
    names = {meta.name: meta for meta in draft.models} if draft.is_readable else None
    if not draft.is_readable or len(draft.stored_models) < len(draft.models):
        yield from pipeline.problems(names, None)
        return
    operations = {target for e in endpoints if e.mount is Mount.API for target in e.targets}
    private = chain.from_iterable(feature.private_endpoints(draft) for feature in FEATURES)
    operations |= {target for endpoint in private for target in endpoint.targets}
    operations |= {(None, Operation.ACTION) for _ in draft.declaration.actions}
    yield from pipeline.problems(names, operations)
    yield from unused_models(placement, operations)
