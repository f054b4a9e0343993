"""The middleware of each route, and the mistakes of an application that is to serve the world."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex.app.draft import Declaration
from maniflex.config import DEFAULT, Config, Limits
from maniflex.db.backend import counts_records
from maniflex.doctor.check import GuardedRoute, Ignore
from maniflex.features.actions import Action
from maniflex.middleware.auth.csrf_tokens import RouteMiddleware
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.chain import in_order, opens
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import (
    AuthEntry,
    Entry,
    EntryDocs,
    LayerEntry,
    Placement,
    SecretKeeper,
    ServerEntry,
    Trait,
    acting,
    query_parameter,
)
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import (
    UNSEEN_BY,
    Middleware,
    Pipeline,
    Step,
    acts_on_files,
    demands_identity,
    is_exemption,
)
from maniflex.pipeline.routes import Endpoint, Mount
from maniflex.pipeline.rules.model_rules import ServerRules
from maniflex.pipeline.rules.policies import UNCOUNTED_META, PolicyEntry
from maniflex.pipeline.rules.reach import ReachedModels
from maniflex.pipeline.rules.scopes import ScopeRule, unique_among_all

_UNDECIDED = "neither an authenticator nor an exemption stands before it"
MOST_ROWS = 10_000  # of one page; a larger limit is as good as none


@dataclass(frozen=True, slots=True)
class RouteGuards:
    """What stands before one route, by the names that users wrote."""

    authenticators: tuple[str, ...]  # middleware of the auth step that is no entry counts as one
    exemptions: tuple[str, ...]
    others: tuple[str, ...]  # roles, scope rules, limits

    def __str__(self) -> str:
        parts = {"auth": self.authenticators, "open": self.exemptions, "guards": self.others}
        return "; ".join(f"{name}: {', '.join(names)}" for name, names in parts.items() if names) or "open"

    @property
    def is_decided(self) -> bool:
        """Whether the application said who may use the route."""
        return bool(self.authenticators or self.exemptions)


class GuardsByRoute:
    """Finds the middleware of the routes of one server."""

    def __init__(
        self, placement: Placement, actions: Sequence[Action], files_middleware: Sequence[Middleware] = ()
    ) -> None:
        self._placement = placement
        self._actions: Mapping[tuple[str, str], Action] = {(a.method, a.path): a for a in actions}
        self._of_files = [fn for fn in files_middleware if isinstance(fn, Entry) and acts_on_files(fn)]

    def of(self, endpoint: Endpoint) -> RouteGuards:
        """The guards of an endpoint."""
        authenticators, exemptions, others = [], [], []
        for step, name, fn in self.middleware(endpoint):
            if is_exemption(fn):
                exemptions.append(name)
            elif demands_identity(fn) or (step == "auth" and not isinstance(fn, Entry)):
                authenticators.append(name)
            elif step == "auth" or (isinstance(fn, Entry) and step != "response"):
                others.append(_with_terms(name, fn))
        action = self._action(endpoint)
        if action is not None and action.security is not None and not action.security:
            exemptions.append("security=[]")
        unique = (tuple(dict.fromkeys(names)) for names in (authenticators, exemptions, others))
        return RouteGuards(*unique)

    def judge_routes(self, endpoints: Iterable[Endpoint], prefix: str) -> list[GuardedRoute]:
        """The routes, each with whether the application said who may use it."""
        return [
            GuardedRoute(
                prefix + endpoint.path if endpoint.mount is Mount.API else endpoint.path,
                endpoint,
                guards.is_decided,
                guards.authenticators,
            )
            for endpoint in endpoints
            for guards in (self.of(endpoint),)
        ]

    def _action(self, endpoint: Endpoint) -> Action | None:
        if endpoint.operation is not Operation.ACTION:
            return None
        return self._actions.get((endpoint.method, endpoint.path))

    def middleware(self, endpoint: Endpoint) -> Iterator[tuple[str, str, Middleware]]:
        """Step, name and function of the middleware that a request to the endpoint may pass, as it runs."""
        if endpoint.mount is not Mount.API or endpoint.context is not Context:
            return
        action = self._action(endpoint)
        own = [fn for fn in action.middleware if isinstance(fn, Entry)] if action is not None else []
        yield from (("action", fn.name, fn) for fn in own if is_exemption(fn))
        has_no_auth_step = any(isinstance(fn, AuthEntry) and fn.replaces_auth_step for fn in own)
        for step in self._placement.pipeline.steps:
            if step.name == "auth" and has_no_auth_step:
                continue
            if step.name == "response":
                yield from (("action", fn.name, fn) for fn in own if not is_exemption(fn))
                yield from (("files", fn.name, fn) for fn in self._entries_of_files(endpoint))
            for model, operation in endpoint.targets:
                if operation in UNSEEN_BY.get(step.name, ()):
                    continue
                for name, label, fn in _of_step(step, model, operation, item=endpoint.on_one):
                    if not is_exemption(fn) or opens(fn, step, endpoint.targets, item=endpoint.on_one):
                        yield name, label, fn

    def _entries_of_files(self, endpoint: Endpoint) -> Iterator[Entry]:
        """The entries of `files_middleware` that act on this route; a signed upload passes none of them."""
        if endpoint.operation in Operation.FILES and endpoint.method != "PUT":
            yield from (fn for fn in self._of_files if fn.make(None, endpoint.operation) is not None)


def guarded_routes(guards: GuardsByRoute, endpoints: Sequence[Endpoint]) -> Iterator[RouteMiddleware]:
    """Every route with all that a request to it passes, in order."""
    for endpoint in endpoints:
        middleware = [fn for _, _, fn in guards.middleware(endpoint)]
        if middleware:
            model = endpoint.model
            label = (
                f"{endpoint.method} {endpoint.path}"
                if model is None
                else f"{endpoint.operation} of {model.name}"
            )
            yield RouteMiddleware(endpoint.method, label, middleware)


def _of_step(
    step: Step, model: ModelMeta | None, operation: Operation, *, item: bool
) -> Iterator[tuple[str, str, Middleware]]:
    for r, fn in in_order(step, model, operation, item=item):
        yield step.name, r.name, fn if isinstance(fn, Entry) else r.fn
    for r in step.registrations:
        if isinstance(r.fn, PolicyEntry) and r.matches(model, operation, item=item):
            yield step.name, r.name, r.fn


def _with_terms(name: str, fn: Middleware) -> str:
    terms = fn.terms if isinstance(fn, Entry) else ""
    return f"{name}({terms})" if terms else name


@dataclass(frozen=True, slots=True)
class ProductionProblem:
    """What should not be served to the world, or be looked at before it is."""

    text: str
    code: str = ""  # under which the doctor finds the same; empty: it does not
    names: tuple[str, ...] = ()  # by which `server.doctor_ignore` silences it

    def silencing_rule(self, ignores: Iterable[Ignore]) -> Ignore | None:
        """The `doctor_ignore` of the application that says that this is meant."""
        return next((rule for rule in ignores if rule.silences(self.code, self.names)), None)


def production_problems(
    declaration: Declaration, guards: GuardsByRoute, endpoints: Sequence[Endpoint], placement: Placement
) -> Iterator[ProductionProblem]:
    """What should not be served to the world, one sentence each."""
    config = declaration.config
    if not declaration.access_control:
        yield from _open_routes(declaration, guards, endpoints)
        yield from _open_pages(config, declaration.pipeline)
    if not config.query_timeout:
        text = "query_timeout is 0, so a request may run for ever"
        yield ProductionProblem(text, "T173", ("query_timeout", "query_timeout=0"))
    if config.auto_migrate:
        text = (
            "auto_migrate is on, so every start changes the schema; migrate as a step of its own:"
            " auto_migrate=False, or AUTO_MIGRATE=false where the settings are Config.from_env()"
        )
        yield ProductionProblem(text, "T155", ("auto_migrate", "auto_migrate=True"))
    if config.trace.bodies:
        text = "trace: bodies=True writes the names of the fields that clients send to the log"
        yield ProductionProblem(text, "T172", ("trace",))
    yield from _limit_problems("limits", config.limits)
    for meta in {e.model.name: e.model for e in endpoints if e.model is not None}.values():
        if meta.options.limits is not None:
            yield from _limit_problems(f"{meta.name}: limits", meta.options.limits)
    entries = (
        ProductionProblem(f"{entry.name}: {problem}", "T117", (entry.name,))
        for entry, seat in (*placement.seats, *placement.other_seats)
        if isinstance(entry, SecretKeeper)
        for problem in entry.production_problems(seat)
    )
    yield from dict.fromkeys(entries)


def _open_routes(
    declaration: Declaration, guards: GuardsByRoute, endpoints: Sequence[Endpoint]
) -> Iterator[ProductionProblem]:
    """One problem for each path; what is silenced of it is one for each method and reason."""
    methods_of: dict[str, list[str]] = {}
    for route in guards.judge_routes(endpoints, declaration.config.path_prefix):
        if not route.is_open:
            continue
        if route.is_meant(declaration.ignores):
            yield ProductionProblem(f"{route}: {_UNDECIDED}", route.code, route.names)
        else:
            methods_of.setdefault(route.path, []).append(route.endpoint.method)
    for path, methods in methods_of.items():
        yield ProductionProblem(f"{', '.join(methods)} {path}: {_UNDECIDED}")


def _open_pages(config: Config, pipeline: Pipeline) -> Iterator[ProductionProblem]:
    """Pages that are open by default, so that somebody has to say that they are meant to be."""
    if config.openapi_enabled and not pipeline.openapi.auth.registrations:
        names = ["openapi_enabled", *(["docs_enabled"] if config.docs_enabled else [])]
        if any(config.origin(name) == DEFAULT for name in names):
            yield ProductionProblem(
                "the API description is open to everybody by default; guard it with pipeline.openapi.auth, or"
                f" say that it is meant or not: {', '.join(f'{name}=…' for name in names)}",
                "T105",
                ("/docs", f"{config.path_prefix}/openapi.json"),
            )


def _limit_problems(where: str, limits: Limits) -> Iterator[ProductionProblem]:
    if limits.max_limit > MOST_ROWS:
        yield ProductionProblem(f"{where}: max_limit={limits.max_limit} lets one request read that many rows")


def production_notes(placement: Placement, access_control: str) -> Iterator[ProductionProblem]:
    """What may be meant, and should be looked at."""
    if access_control:
        yield ProductionProblem(f"who may call which route is decided before the server: {access_control}")
    yield from dict.fromkeys(_wide_uniqueness(placement))


def _wide_uniqueness(placement: Placement) -> Iterator[ProductionProblem]:
    for _, meta, field in unique_among_all(placement):
        name = f"{meta.name}.{field.name}"
        yield ProductionProblem(
            f"{name} is unique among the rows of all callers, which tells one "
            "what another has; where that is not meant, unique= names the field of their scope",
            "T113",
            (meta.name, name),
        )


# What the entries of the catalogue add to the API description of each route, and what it asks callers
# for.
#
# It is worked out when the document is made, from the middleware that a request to the route would pass.


_BODIES = frozenset({Operation.CREATE, Operation.UPDATE})


class RouteDescriptions:
    """Describes the routes of one server."""

    def __init__(
        self,
        guards: GuardsByRoute,
        reached: ReachedModels,
        rules: ServerRules,
        placement: Placement,
        layers: Sequence[Any],
    ) -> None:
        self._rules = rules
        self._guards = guards
        self._reached = reached
        self._placement = placement
        lifted_entries = [
            entry for entry, _ in placement.seats if isinstance(entry, ServerEntry) and entry.is_lifted
        ]
        self._layers = [entry for entry in (*lifted_entries, *layers) if isinstance(entry, LayerEntry)]

    def docs(self, endpoint: Endpoint) -> list[EntryDocs]:
        """What the entries of an endpoint add to its description."""
        entries = dict.fromkeys([*self._entries(endpoint), *self._layers])
        of_route = [docs for entry in entries if (docs := _docs_on(endpoint, entry)) is not None]
        model = endpoint.model
        if model is not None and self._is_uncounted(endpoint, model):
            of_route.append(EntryDocs(page_meta=UNCOUNTED_META))
        return [*of_route, *self._words_of_middleware(endpoint), *self._refusals_of_reached(endpoint)]

    def _is_uncounted(self, endpoint: Endpoint, model: ModelMeta) -> bool:
        """Whether pages of the endpoint have no total: none is known, or it would tell of hidden rows."""
        if endpoint.operation is Operation.READ_HISTORY:
            judge = self._rules[model.cls].judge(Operation.READ_HISTORY, item=endpoint.on_one)
            return judge.hides_rows or (endpoint.on_one and bool(judge))
        is_hidden = self._rules[model.cls].hides_rows or not counts_records(model.options.backend)
        return endpoint.operation is Operation.LIST and is_hidden

    def security(self, endpoint: Endpoint) -> list[dict[str, list[str]]] | None:
        """The schemes of which a caller needs one, `{}` for none at all; None when no entry says so."""
        entries = self._entries(endpoint)
        docs = {entry: _docs_on(endpoint, entry) or EntryDocs() for entry in entries}
        schemes = dict.fromkeys(name for doc in docs.values() for name in doc.security)
        alternatives: list[dict[str, list[str]]] = [{name: []} for name in schemes]
        if not schemes:
            return [] if len(entries) < len(self._all_entries(endpoint)) else None
        authenticators = [entry for entry in entries if demands_identity(entry)]
        exemptions = [entry for entry in entries if is_exemption(entry)]
        # The last authenticator refuses callers without a credential, unless an exemption stands before it.
        is_exempt = bool(exemptions and authenticators) and entries.index(exemptions[0]) < entries.index(
            authenticators[-1]
        )
        demands = any(401 in docs[entry].refusals for entry in entries if not demands_identity(entry))
        return [*alternatives, {}] if is_exempt and not demands else alternatives

    def is_guarded(self, endpoint: Endpoint) -> bool:
        """Whether auth middleware of the application's own may refuse a request for this endpoint."""
        if endpoint.about is not None and endpoint.about.security == ():
            return False
        if endpoint.context is not Context:
            registrations = self._placement.pipeline.openapi.auth.registrations
            return any(not isinstance(r.fn, Entry) for r in registrations)
        own = (fn for step, _, fn in self._guards.middleware(endpoint) if step == "auth")
        return any(not isinstance(fn, Entry) for fn in (*own, *self._entries_of_reachable(endpoint)))

    # -- the entries of a route ----------------------------------------------------------------

    def _entries(self, endpoint: Endpoint) -> list[Entry]:
        """Those that do something there, in the order they run in."""
        return acting(self._all_entries(endpoint))

    def _all_entries(self, endpoint: Endpoint) -> list[Entry]:
        if endpoint.context is not Context:
            is_document = endpoint.mount is Mount.API
            registrations = self._placement.pipeline.openapi.auth.registrations if is_document else ()
            return [r.fn for r in registrations if isinstance(r.fn, Entry)]
        middleware = [fn for _, _, fn in self._guards.middleware(endpoint)]
        entries = [fn for fn in (*middleware, *self._entries_of_checks(endpoint)) if isinstance(fn, Entry)]
        return [entry for entry in dict.fromkeys(entries) if not _is_idle(entry, endpoint)]

    def _entries_of_checks(self, endpoint: Endpoint) -> Iterator[Middleware]:
        """The entries that add rules to a write instead of middleware."""
        if endpoint.model is not None and endpoint.mount is Mount.API:
            for r in self._placement.pipeline.checks:
                if r.matches(endpoint.model, endpoint.operation, item=endpoint.on_one):
                    yield r.fn

    def _entries_of_reachable(self, endpoint: Endpoint) -> Iterator[Middleware]:
        """The guards of models that the route may lead to; code of an action may touch every bound model."""
        if endpoint.mount is not Mount.API or endpoint.context is not Context:
            return
        if endpoint.operation is Operation.ACTION:
            yield from (entry for entry, _ in self._placement.seats if isinstance(entry, ScopeRule))
        else:
            yield from self._reached.entries_of_reachable(
                endpoint.model, endpoint.operation, item=endpoint.on_one
            )

    def _words_of_middleware(self, endpoint: Endpoint) -> Iterator[EntryDocs]:
        """What middleware of the application's own says that it reads and refuses with."""
        if endpoint.mount is not Mount.API or endpoint.context is not Context:
            return
        for step in self._placement.pipeline.steps:
            for r in step.registrations:
                if (r.errors or r.params) and r.matches(
                    endpoint.model, endpoint.operation, item=endpoint.on_one
                ):
                    parameters = [query_parameter(name, text) for name, text in r.params]
                    yield EntryDocs(refusals=dict(r.errors), parameters=parameters)

    def _refusals_of_reached(self, endpoint: Endpoint) -> Iterator[EntryDocs]:
        entries = dict.fromkeys(fn for fn in self._entries_of_reachable(endpoint) if isinstance(fn, Entry))
        for entry in (entry for entry in entries if Trait.SKIPS_REACHED not in entry.traits):
            docs = _docs_of(entry, endpoint.method, None, Operation.LIST)
            if docs is not None and docs.refusals:
                yield EntryDocs(refusals=docs.refusals)
        if self._rules.hidden_from(endpoint.model, endpoint.operation):
            yield EntryDocs(refusals={403: ("FORBIDDEN",)})


def _docs_on(endpoint: Endpoint, entry: Entry) -> EntryDocs | None:
    return _docs_of(entry, endpoint.method, endpoint.model, endpoint.operation)


def _docs_of(entry: Entry, method: str, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
    if isinstance(entry, AuthEntry):
        return entry.method_docs(method, model, operation)
    return entry.docs(model, operation)


def _is_idle(entry: Entry, endpoint: Endpoint) -> bool:
    """Whether it looks at bodies alone, on a route that takes none: a restore is an update without one."""
    is_restore = endpoint.operation is Operation.UPDATE and endpoint.method == "POST"
    return is_restore and entry.acts_for is not None and entry.acts_for <= _BODIES
