"""The capabilities of a server, each with its mistakes, its tables and its routes.

`assembly.py` asks them in this order. A new capability is a class and an entry in `FEATURES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from maniflex._callables import label_of
from maniflex.app.draft import Declaration, ServerDraft
from maniflex.app.encryption import declares_encryption, encrypted_fields, encryption_problems
from maniflex.background_api.metrics import metrics_endpoints, metrics_problems
from maniflex.background_api.part_routes import in_groups, refuse_foreign_scopes
from maniflex.db.rotation import KeyRotation
from maniflex.doctor.check import GuardedRoute
from maniflex.erasure.plan import problems_of
from maniflex.features.actions import action_endpoint
from maniflex.features.aggregate import aggregate_endpoints
from maniflex.features.as_of import with_as_of
from maniflex.features.export import export_endpoints, export_problems
from maniflex.features.files.feature import (
    all_file_endpoints,
    file_route_problems,
    path_without_storage,
    prepare_file_routes,
)
from maniflex.features.history import history_endpoints
from maniflex.features.history_options import history_problems, keep_histories, option_problems
from maniflex.features.search import search_endpoints, search_problems
from maniflex.http.probes import Probes
from maniflex.http.welcome import Welcome, pages_of
from maniflex.middleware.workflow import Machine
from maniflex.model.base import Model
from maniflex.model.field import file_fields
from maniflex.model.history_row import history_model, history_options, is_versioned
from maniflex.model.meta import ModelMeta, ModelOptions
from maniflex.model.texts import companion_problems
from maniflex.pipeline.chain import Default, StepPlace
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.in_process import InProcess
from maniflex.pipeline.languages import read_language
from maniflex.pipeline.model_routes import model_endpoints
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Pipeline, acts_on_files, can_guard_files, takes
from maniflex.pipeline.routes import Endpoint, operation_problems, serves
from maniflex.pipeline.rules.scopes import ScopeRule
from maniflex.pipeline.rules.transforms import computed_problems

if TYPE_CHECKING:
    from maniflex.admin.operations.parts import DurableParts
    from maniflex.doctor.check import DoctorReport


class Feature:
    """One capability of a server; a class that derives from it says only what it has."""

    def models(self, declaration: Declaration) -> Iterable[tuple[type[Model], ModelOptions | None]]:
        """The internal tables to register, if the application uses the feature."""
        return ()

    def register(self, declaration: Declaration, pipeline: Pipeline) -> None:
        """Register the middleware that the feature has, before any is placed."""
        return

    def problems(self, draft: ServerDraft) -> Iterable[str]:
        """The mistakes in what the application declared, one sentence each."""
        return ()

    def prepare(self, draft: ServerDraft) -> None:
        """Say what the routes of others are made with: rules of models, steps that the composer adds."""
        return

    def parameters(self, meta: ModelMeta) -> Mapping[str, str]:
        """Query parameters that no list of the model takes, and the paths below it whose routes take them."""
        return {}

    def routes(self, draft: ServerDraft) -> Iterable[Endpoint]:
        """The endpoints it adds. They are made of declarations with mistakes too, to find those of routes."""
        return ()

    def replace_routes(self, draft: ServerDraft, usual: list[Endpoint]) -> list[Endpoint]:
        """All endpoints so far, given the `usual` ones there are without this feature."""
        return usual

    def private_endpoints(self, draft: ServerDraft) -> Iterable[Endpoint]:
        """The endpoints on no path that requests of this process use, once all others are made."""
        return ()

    def use(self, draft: ServerDraft, in_process: InProcess) -> None:
        """Take what runs requests of this process; the last question."""
        return


class ModelRecords(Feature):
    """The routes of every model, with its computed fields."""

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        models = draft.models if draft.is_readable else None
        yield from computed_problems(models, draft.declaration.computed)
        for meta in draft.models:
            yield from operation_problems(meta)

    def routes(self, draft: ServerDraft) -> Iterator[Endpoint]:
        for meta in draft.stored_models:
            yield from model_endpoints(draft.routes, meta)


class CatalogueRules(Feature):
    """The steps that bind requests by the rules of the models they name: redacted fields, reached models."""

    def prepare(self, draft: ServerDraft) -> None:
        routes = draft.routes
        routes.composer.bring(
            "deserialize", StepPlace.FIRST, "redacted fields", routes.runtime.rules.step_before_query
        )
        routes.composer.bring("deserialize", StepPlace.BEHIND, "reach", routes.reached.step)


class EncryptedFields(Feature):
    """`field(encrypted=...)` and `server.set_key_provider`."""

    def models(self, declaration: Declaration) -> Iterator[tuple[type[Model], ModelOptions | None]]:
        if any(declares_encryption(cls) for cls, _ in declaration.registry.options()):
            yield KeyRotation, None

    def prepare(self, draft: ServerDraft) -> None:
        ids = {field.encrypted or "" for _, field in encrypted_fields(draft.models)}
        draft.declaration.keys.own_key = "default" if "default" in ids else min(ids, default=None)
        draft.declaration.keys.work_key = min(draft.declaration.durable.key_ids().values(), default=None)

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        declaration = draft.declaration
        yield from encryption_problems(
            declaration.keys, draft.models, declaration.durable.key_ids(declaration.keys)
        )


class Languages(Feature):
    """Texts in several languages: `LocaleString` fields."""

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        for meta in draft.models:
            names = [field.name for field in draft.declaration.computed.get(meta.cls, ())]
            yield from companion_problems(meta, names)

    def prepare(self, draft: ServerDraft) -> None:
        stores = draft.routes.runtime.stores

        def step(model: ModelMeta, operation: Operation, item: bool) -> Default | None:
            return read_language if stores[model.cls].listings.own.locales is not None else None

        draft.routes.composer.bring("deserialize", StepPlace.FIRST, "language", step)


class Aggregates(Feature):
    """`aggregate=True`."""

    def parameters(self, meta: ModelMeta) -> Mapping[str, str]:
        has_route = meta.options.aggregate and serves(meta, Operation.LIST, item=False)
        return {"aggregate": "/aggregate"} if has_route else {}

    def routes(self, draft: ServerDraft) -> Iterator[Endpoint]:
        for meta in draft.stored_models:
            yield from aggregate_endpoints(draft.routes, meta)


class Exports(Feature):
    """`export=True`."""

    def parameters(self, meta: ModelMeta) -> Mapping[str, str]:
        has_route = meta.options.export and serves(meta, Operation.EXPORT, item=False)
        return {"format": "/export"} if has_route else {}

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        for meta in draft.models:
            yield from export_problems(meta)

    def routes(self, draft: ServerDraft) -> Iterator[Endpoint]:
        return export_endpoints(draft.routes, draft.stored_models)


class Histories(Feature):
    """`versioned=True`."""

    def models(self, declaration: Declaration) -> Iterator[tuple[type[Model], ModelOptions | None]]:
        for cls, options in declaration.registry.options():
            if is_versioned(options) and options.query is None and options.backend is None:
                yield history_model(cls), history_options(cls, options)

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        for cls, options in draft.declaration.registry.options():
            yield from option_problems(cls.__name__, options)
        models = {meta.name: meta for meta in draft.models}
        for meta in draft.models:
            yield from history_problems(meta, models)

    def prepare(self, draft: ServerDraft) -> None:
        seats = (*draft.placement.seats, *draft.placement.other_seats)
        paths = [str(entry.path) for entry, _ in seats if isinstance(entry, ScopeRule)]
        keep_histories(draft.routes.runtime.stores, paths)

    def routes(self, draft: ServerDraft) -> Iterator[Endpoint]:
        for meta in draft.stored_models:
            yield from history_endpoints(draft.routes, meta)

    def replace_routes(self, draft: ServerDraft, usual: list[Endpoint]) -> list[Endpoint]:
        return with_as_of(draft.routes, usual)


class PersonalData(Feature):
    """`subject=`, `field(personal=True)`: whose data records are."""

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        return problems_of(draft.models)


class Actions(Feature):
    """`server.action`."""

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        actions = draft.declaration.actions
        for action in actions:
            yield from action.problems()
        if draft.is_readable:  # a type may hold a model
            for action in actions:
                yield from action.type_problems()

    def routes(self, draft: ServerDraft) -> Iterator[Endpoint]:
        for action in draft.declaration.actions:
            if action.is_mountable():
                yield action_endpoint(draft.routes, action)


class NestedWrites(Feature):
    """Relations with `nested=True`."""

    def prepare(self, draft: ServerDraft) -> None:
        runtime = draft.routes.runtime
        if models := [meta for meta in draft.stored_models if has_nested(meta)]:
            from maniflex.features.nested import NestedModel

            runtime.nested = {meta.cls: NestedModel(meta, runtime) for meta in models}

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        for meta in draft.stored_models:
            if has_nested(meta):
                from maniflex.features.nested import nested_problems

                yield from nested_problems(meta, draft.routes)

    def use(self, draft: ServerDraft, in_process: InProcess) -> None:
        for routes in draft.routes.runtime.nested.values():
            routes.compose(draft.routes)


class RollupFields(Feature):
    """`server.rollup`."""

    def problems(self, draft: ServerDraft) -> Iterable[str]:
        specs = draft.declaration.rollups
        if not specs or not draft.is_readable:
            return ()
        from maniflex.features.rollups import rollup_problems

        return [*rollup_problems(specs, draft.routes.runtime)]

    def prepare(self, draft: ServerDraft) -> None:
        specs = draft.declaration.rollups
        if specs and draft.is_readable:
            from maniflex.features.rollups import keep_rollups

            draft.routes.runtime.rollups = keep_rollups(specs, draft.routes.runtime)


class BatchRequests(Feature):
    """`server.enable_batch`, whose route is an action."""

    def problems(self, draft: ServerDraft) -> Iterable[str]:
        batch = draft.declaration.batch
        return () if batch is None else batch.problems()

    def use(self, draft: ServerDraft, in_process: InProcess) -> None:
        if draft.declaration.batch is not None:
            draft.declaration.batch.attach(in_process)


class Search(Feature):
    """Searchable models, and `server.enable_global_search`."""

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        yield from search_problems(draft.models)
        if draft.declaration.search is not None:
            yield from draft.declaration.search.problems()

    def routes(self, draft: ServerDraft) -> Iterable[Endpoint]:
        search = draft.declaration.search
        return () if search is None else search_endpoints(draft.routes, search, draft.stored_models)


class DurableRoutes(Feature):
    """The tables of durable work and their routes, which replace some of those that other models have."""

    def models(self, declaration: Declaration) -> Iterable[tuple[type[Model], ModelOptions | None]]:
        return declaration.durable.models()

    def problems(self, draft: ServerDraft) -> Iterable[str]:
        durable = draft.declaration.durable
        runtime = draft.routes.runtime
        captures = durable.events.capture_problems(runtime.stores, runtime.adapter)
        return [*durable.problems(), *captures, *durable.audit.problems(runtime)]

    def prepare(self, draft: ServerDraft) -> None:
        draft.declaration.durable.bind_trails(draft.routes)

    def use(self, draft: ServerDraft, in_process: InProcess) -> None:
        draft.declaration.durable.judge_by(draft.routes)

    def replace_routes(self, draft: ServerDraft, usual: list[Endpoint]) -> list[Endpoint]:
        declaration = draft.declaration
        endpoints = usual
        for part_routes in declaration.durable.part_routes:
            endpoints = part_routes.replace_routes(draft.routes, endpoints)
        return in_groups(refuse_foreign_scopes(endpoints, declaration.internal_tables.models))


def _file_entry_problems(entry: Entry) -> Iterator[str]:
    yield from (f"{entry.name}: {mistake}" for mistake in entry.mistakes)
    if not (acts_on_files(entry) or can_guard_files(entry)):
        yield (
            f"{entry.name}: it does nothing there; what can stand there is a function of (ctx, next), an"
            " entry of the auth step such as auth.jwt or auth.require_role, db.rate_limit, idempotency.keys"
        )


class FileFields(Feature):
    """`file(...)` and `storage=`; the tables of files come with durable work."""

    def register(self, declaration: Declaration, pipeline: Pipeline) -> None:
        desk = declaration.durable.files.declared_desk
        if desk is not None and desk.has_storage and declaration.config.files_routes:
            pipeline.add_files_middleware(declaration.config.files_middleware)

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        runtime = draft.routes.runtime
        for fn in runtime.config.files_middleware:
            if isinstance(fn, Entry):
                yield from (f"files_middleware: {problem}" for problem in _file_entry_problems(fn))
            elif not takes(fn, 2):
                label = label_of(fn)
                yield f"files_middleware: {label}: it is called with (ctx, next), which it does not take"
        for meta in draft.stored_models:
            is_elsewhere = runtime.stores[meta.cls].adapter is not runtime.adapter
            for field, _ in file_fields(meta) if is_elsewhere else ():
                yield (
                    f"{meta.name}.{field.name}: a model in a database of its own has no file fields,"
                    " because its rows and the table of files share no transaction"
                )
        yield from file_route_problems(runtime, draft.models, draft.declaration.actions)

    def prepare(self, draft: ServerDraft) -> None:
        runtime, actions = draft.routes.runtime, draft.declaration.actions
        prepare_file_routes(draft.routes, draft.stored_models)
        runtime.path_without_storage = path_without_storage(runtime, draft.models, actions)

    def parameters(self, meta: ModelMeta) -> Mapping[str, str]:
        has_files = any(not field.hidden for field, _ in file_fields(meta))
        has_route = has_files and serves(meta, Operation.READ_ATTACHMENT, item=True)
        return {"download": "/{id}/{field}"} if has_route else {}

    def routes(self, draft: ServerDraft) -> Iterator[Endpoint]:
        prefix, ignores = draft.declaration.config.path_prefix, draft.declaration.ignores

        def is_meant(endpoint: Endpoint) -> bool:
            return GuardedRoute(prefix + endpoint.path, endpoint, is_decided=False).is_meant(ignores)

        return all_file_endpoints(draft.routes, draft.stored_models, is_meant)


class HealthProbes(Feature):
    """`/health`, `/live` and `/ready`."""

    def routes(self, draft: ServerDraft) -> Iterator[Endpoint]:
        return Probes(draft.routes, draft.databases.all, draft.declaration.health).endpoints()


class WorkMetrics(Feature):
    """`/metrics`."""

    def problems(self, draft: ServerDraft) -> Iterator[str]:
        return metrics_problems(draft.declaration.config)

    def routes(self, draft: ServerDraft) -> Iterator[Endpoint]:
        return metrics_endpoints(draft.routes, draft.declaration.durable.metrics, draft.databases.all)


class Documentation(Feature):
    """`/openapi.json` and `/docs`."""

    def routes(self, draft: ServerDraft) -> Iterator[Endpoint]:
        return draft.description.endpoints()


class LiveStreams(Feature):
    """`server.realtime.enable`."""

    def routes(self, draft: ServerDraft) -> Iterable[Endpoint]:
        hub = draft.declaration.durable.hub
        return () if hub is None else hub.endpoints(draft.routes)

    def private_endpoints(self, draft: ServerDraft) -> Iterable[Endpoint]:
        """The chain of handshakes, and those of the models that clients subscribe to."""
        hub = draft.declaration.durable.hub
        return () if hub is None else hub.private_endpoints(draft.routes)


class AdminPanel(Feature):
    """`server.admin`."""

    def models(self, declaration: Declaration) -> Iterator[tuple[type[Model], ModelOptions | None]]:
        if declaration.admin is not None:
            from maniflex.admin.tables import TABLES

            yield from ((table, None) for table in TABLES)

    def problems(self, draft: ServerDraft) -> Iterable[str]:
        admin = draft.declaration.admin
        if admin is None:
            return ()
        from maniflex.admin.panel import panel_problems

        models = draft.models if draft.is_readable else None
        return panel_problems(admin, draft.declaration.config, models, draft.declaration.actions)

    def routes(self, draft: ServerDraft) -> Iterable[Endpoint]:
        admin, declaration = draft.declaration.admin, draft.declaration
        if admin is None or any(self.problems(draft)):
            return ()
        from maniflex.admin.panel import build_panel
        from maniflex.middleware.service.service_entry import OwnerEntry

        registrations = declaration.pipeline.auth.registrations
        draft.panel = build_panel(
            admin,
            draft.routes,
            draft.stored_models,
            title=declaration.title,
            api_actions=declaration.actions,
            own_authenticators=[r.name for r in registrations if not isinstance(r.fn, Entry)],
            machines=[r.fn for r in declaration.pipeline.validate.registrations if isinstance(r.fn, Machine)],
            owner_seats=[(e, seat) for e, seat in draft.placement.seats if isinstance(e, OwnerEntry)],
            durable=durable_parts(draft) if admin.operations else None,
            work=declaration.durable.work,
        )
        return draft.panel.endpoints()

    def private_endpoints(self, draft: ServerDraft) -> Iterator[Endpoint]:
        """The routes of headless models with pages, and the lists of durable work."""
        if draft.panel is not None:
            parts = draft.panel.parts
            yield from chain.from_iterable(parts.private.headless_endpoints.values())
            if parts.durable is not None:
                yield from parts.durable.endpoints.values()

    def use(self, draft: ServerDraft, in_process: InProcess) -> None:
        if draft.panel is not None:
            draft.panel.parts.in_process = in_process


def durable_parts(draft: ServerDraft) -> DurableParts:
    """Durable work for the pages of the panel, with the requests they make."""
    from maniflex.admin.operations.parts import DurableParts
    from maniflex.background_api.outbox import operator_endpoints
    from maniflex.doctor.run import examine

    declaration = draft.declaration
    durable = declaration.durable

    async def examine_server() -> DoctorReport:
        return await examine(declaration.doctor_subject(), is_running=True)

    return DurableParts(
        work=durable.work,
        outbox=durable.outbox,
        schedules=durable.schedules,
        scheduled=durable.scheduled,
        jobs=durable.jobs,
        processes=durable.processes,
        events=durable.events,
        webhooks=durable.used_webhooks,
        endpoints=operator_endpoints(
            durable.work,
            durable.outbox,
            durable.schedules,
            durable.events,
            durable.used_webhooks,
            draft.routes,
            declaration.internal_tables.models,
        ),
        examine=examine_server,
    )


class WelcomePage(Feature):
    """`/`, where the paths at the root are not the application's and nothing else wants it."""

    def replace_routes(self, draft: ServerDraft, usual: list[Endpoint]) -> list[Endpoint]:
        config = draft.declaration.config
        is_taken = not config.path_prefix or any(endpoint.route in ("", "/") for endpoint in usual)
        if is_taken or not config.welcome_enabled:
            return usual
        admin = draft.declaration.admin
        pages = pages_of(config, "" if admin is None else admin.path)
        return [*usual, *Welcome(draft.routes, pages).endpoints()]


def has_nested(meta: ModelMeta) -> bool:
    """Whether bodies of the model may hold records of others."""
    return any(relation.nested for relation in meta.relations.values())


FEATURES: tuple[Feature, ...] = (
    CatalogueRules(),
    Languages(),
    NestedWrites(),
    ModelRecords(),
    EncryptedFields(),
    Aggregates(),
    Exports(),
    Histories(),
    PersonalData(),
    RollupFields(),
    Actions(),
    BatchRequests(),
    Search(),
    DurableRoutes(),
    FileFields(),
    HealthProbes(),
    WorkMetrics(),
    Documentation(),
    LiveStreams(),
    AdminPanel(),
    WelcomePage(),
)
