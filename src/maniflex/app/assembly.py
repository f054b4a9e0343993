"""From declarations to a working server: check everything, then build everything, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from maniflex._names import did_you_mean
from maniflex.app.databases import Databases, link_stores, make_stores
from maniflex.app.draft import Declaration, ServerDraft
from maniflex.app.entry_tables import computed_problems
from maniflex.app.features import FEATURES
from maniflex.app.route_descriptions import RouteDescriptions
from maniflex.app.route_guards import GuardsByRoute, RouteGuards, production_notes, production_problems
from maniflex.config import Config
from maniflex.db.port import Adapter
from maniflex.errors import DeclarationError
from maniflex.features.history import keep_histories
from maniflex.http.asgi import App, HttpApp
from maniflex.http.layers import Surroundings
from maniflex.http.routing import Router
from maniflex.model.meta import ModelMeta
from maniflex.openapi.document import Document
from maniflex.openapi.serve import Description
from maniflex.pipeline.chain import Composer
from maniflex.pipeline.endpoints import Endpoint, Mount
from maniflex.pipeline.entry import Placement, place_entries
from maniflex.pipeline.in_process import InProcess
from maniflex.pipeline.openapi_context import OpenAPIContext
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.policies import policy_table
from maniflex.pipeline.policy_table import hidden_models
from maniflex.pipeline.registration import Pipeline
from maniflex.pipeline.routes import RouteBuilder
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.scope_rules import scope_table
from maniflex.sql.model import ModelSql
from maniflex.sql.search import searchable_fields

Prefixed = list[tuple[str, Endpoint]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A sealed server's parts."""

    runtime: Runtime
    adapters: tuple[Adapter, ...]
    endpoints: tuple[Endpoint, ...]
    app: App
    probes: App
    description: Description
    in_process: InProcess
    guards: GuardsByRoute
    placement: Placement

    def schemas(self) -> Iterator[tuple[Adapter, list[ModelSql]]]:
        """The models of each database."""
        for adapter in self.adapters:
            yield adapter, [s.sql for s in self.runtime.stores.values() if s.adapter is adapter]

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
        config = self.runtime.config
        problems = production_problems(config, self.guards, self.endpoints, self.placement)
        return list(problems), list(dict.fromkeys(production_notes(self.placement)))


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
    for feature in FEATURES:
        for model, options in feature.models(declaration):
            internal_tables.register(model, options)
    models, placement, problems = _read_models(declaration)
    pipeline = placement.pipeline
    surroundings = Surroundings(
        declaration.layers, declaration.observers, [entry for entry, _ in placement.seats]
    )
    problems += surroundings.problems()
    internal_tables.add_registered(models or ())
    endpoints: list[Endpoint] = []
    guards = GuardsByRoute(placement, declaration.actions)
    draft, store_problems = _make_draft(
        declaration, models, placement=placement, endpoints=endpoints, guards=guards
    )
    _fill_field_rules(draft.routes.runtime, placement)
    for feature in FEATURES:
        feature.prepare(draft)
    problems += [problem for feature in FEATURES for problem in feature.problems(draft)]
    problems += [*internal_tables.relation_problems(draft.models), *store_problems]

    # Built even from a declaration with problems: routes may want the same path, middleware may never run.
    for feature in FEATURES:
        endpoints[:] = feature.replace_routes(draft, [*endpoints, *feature.routes(draft)])
    router, conflicts = _mount_endpoints(config, endpoints)
    mounts, mount_problems = _mount_static_files(config, router)
    problems += [*conflicts, *mount_problems, *_middleware_problems(draft, pipeline, endpoints)]
    problems += _example_problems(config, pipeline, endpoints)
    if problems:
        raise DeclarationError(*problems)

    runtime = draft.routes.runtime
    return Assembly(
        runtime=runtime,
        adapters=tuple(draft.adapters),
        endpoints=tuple(endpoints),
        app=surroundings.around(HttpApp(runtime, router, mounts), runtime),
        probes=_probe_app(runtime, endpoints),
        description=draft.description,
        in_process=InProcess(runtime, endpoints),
        guards=guards,
        placement=placement,
    )


def _fill_field_rules(runtime: Runtime, placement: Placement) -> None:
    """Tell the runtime, before routes are made, which fields answers show changed or not to everybody."""
    for entry, seat in placement.seats:
        for model, transform in entry.transforms(seat):
            runtime.transforms.setdefault(model, []).append(transform)
        for rule in entry.redactions(seat):
            runtime.redactions.add(rule)
    if runtime.redactions:
        runtime.redactions.guard_queries()
    for model, store in runtime.stores.items():
        changed = [transform.field for transform in runtime.transforms.get(model, ())]
        searched = searchable_fields(store.meta)
        store.sql.never_quoted = tuple(f for f in searched if f in changed)
        store.sql.apart_in_search = tuple(f for f in searched if f in changed or f in store.guarded)


def _read_models(declaration: Declaration) -> tuple[tuple[ModelMeta, ...] | None, Placement, list[str]]:
    """The models if they can be read, the pipeline with their own middleware, and the problems of both."""
    models: tuple[ModelMeta, ...] | None = None
    problems: list[str] = []
    try:
        models = declaration.registry.seal()
    except DeclarationError as error:
        problems += error.problems
    pipeline, middleware_problems = declaration.pipeline.with_model_middleware(models or ())
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
    stores, problems = make_stores(models or (), databases, declaration.clock)
    problems += link_stores(config, stores, declaration.internal_tables.models)
    keep_histories(stores)
    policies = policy_table(pipeline, models or ())
    runtime = Runtime(
        config=config,
        clock=declaration.clock,
        adapter=databases.default,
        stores=stores,
        logger=logger,
        scopes=scope_table(pipeline, models or ()),
        policies=policies,
        file_desk=declaration.durable.files.declared_desk,
    )
    metas = {store.meta.name: store.meta for store in stores.values()}
    composer = Composer(
        pipeline,
        config.trace,
        logger,
        models=metas,
        hidden=hidden_models(policies),
        redactions=runtime.redactions,
    )
    descriptions = RouteDescriptions(guards, composer, placement, declaration.layers)
    document = Document(
        config=config,
        models=models or (),
        computed=declaration.computed,
        is_guarded=descriptions.is_guarded,
        home=lambda meta: stores[meta.cls].adapter,
        title=declaration.title,
        entry_docs=descriptions.docs,
        security=descriptions.security,
    )
    spec_composer = Composer(pipeline.openapi, config.trace, logger)
    draft = ServerDraft(
        declaration=declaration,
        models=models or (),
        is_readable=models is not None,
        adapters=databases.all,
        routes=RouteBuilder(runtime, composer, declaration.computed),
        description=Description(
            RouteBuilder(runtime, spec_composer, context=OpenAPIContext),
            pipeline.openapi,
            lambda: document.make(chain.from_iterable(_with_prefix(config, endpoints))),
        ),
    )
    return draft, problems


def _with_prefix(config: Config, endpoints: Sequence[Endpoint]) -> tuple[Prefixed, Prefixed]:
    """The endpoints of the API and those at the root, each with its prefix."""
    of_api = [(config.path_prefix, e) for e in endpoints if e.mount is Mount.API]
    return of_api, [("", e) for e in endpoints if e.mount is not Mount.API]


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


def _probe_app(runtime: Runtime, endpoints: Sequence[Endpoint]) -> App:
    """The probes alone, for a process that serves nothing else."""
    router: Router[Endpoint] = Router()
    for endpoint in endpoints:
        if endpoint.mount is Mount.PROBE:
            router.add(endpoint.method, endpoint.path, endpoint)
    return HttpApp(runtime, router, {})


def _mount_static_files(config: Config, router: Router[Endpoint]) -> tuple[dict[str, App], list[str]]:
    """The application that serves files below a prefix, which no endpoint may be below."""
    directory, prefix = Path(config.static_dir), config.static_prefix
    if config.static_disabled or not str(config.static_dir) or not directory.is_dir():
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
    draft: ServerDraft, pipeline: Pipeline, endpoints: Sequence[Endpoint]
) -> Iterable[str]:
    """Middleware for models and operations that there are not, as far as models can be read."""
    names = [meta.name for meta in draft.models] if draft.is_readable else None
    if not draft.is_readable or len(draft.stored_models) < len(draft.models):
        return pipeline.problems(names, None)
    operations = {target for e in endpoints if e.mount is Mount.API for target in e.targets}
    operations |= {(None, Operation.ACTION) for _ in draft.declaration.actions}
    return pipeline.problems(names, operations)
