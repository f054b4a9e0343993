"""The middleware of each route, and the mistakes of an application that is to serve the world."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from maniflex._limits import Limits
from maniflex.app.draft import Declaration
from maniflex.config import DEFAULT, Config
from maniflex.doctor.finding import Ignore
from maniflex.doctor.open_routes import code_of_open_route, names_of_route
from maniflex.features.actions import Action
from maniflex.middleware.auth.csrf_tokens import RouteMiddleware
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.chain import in_order, opens
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint, Mount
from maniflex.pipeline.entry import Entry, Placement
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import UNSEEN_BY, Middleware, Pipeline, Step
from maniflex.pipeline.scope_rules import unique_among_all

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
        self._of_files = [fn for fn in files_middleware if isinstance(fn, Entry) and fn.in_files]

    def of(self, endpoint: Endpoint) -> RouteGuards:
        """The guards of an endpoint."""
        authenticators, exemptions, others = [], [], []
        for step, name, fn in self.middleware(endpoint):
            if getattr(fn, "is_exemption", False):
                exemptions.append(name)
            elif getattr(fn, "is_authenticator", False) or (step == "auth" and not isinstance(fn, Entry)):
                authenticators.append(name)
            elif step == "auth" or (isinstance(fn, Entry) and step != "response"):
                others.append(_with_terms(name, fn))
        action = self._action(endpoint)
        if action is not None and action.security is not None and not action.security:
            exemptions.append("security=[]")
        unique = (tuple(dict.fromkeys(names)) for names in (authenticators, exemptions, others))
        return RouteGuards(*unique)

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
        yield from (("action", fn.name, fn) for fn in own if fn.is_exemption)
        for step in self._placement.pipeline.steps:
            if step.name == "response":
                yield from (("action", fn.name, fn) for fn in own if not fn.is_exemption)
                yield from (("files", fn.name, fn) for fn in self._entries_of_files(endpoint))
            for model, operation in endpoint.targets:
                if operation in UNSEEN_BY.get(step.name, ()):
                    continue
                for name, label, fn in _of_step(step, model, operation, item=endpoint.on_one):
                    is_exemption = isinstance(fn, Entry) and fn.is_exemption
                    if not is_exemption or opens(fn, step, endpoint.targets, item=endpoint.on_one):
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
        judges = isinstance(r.fn, Entry) and r.fn.judges_rows
        if judges and r.matches(model, operation, item=item):
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
        text = "auto_migrate is on, so every start changes the schema; migrate as a step of its own"
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
        for problem in entry.production_problems(seat)
    )
    yield from dict.fromkeys(entries)


def _open_routes(
    declaration: Declaration, guards: GuardsByRoute, endpoints: Sequence[Endpoint]
) -> Iterator[ProductionProblem]:
    """One problem for each path; what is silenced of it is one for each method and reason."""
    prefix = declaration.config.path_prefix
    methods_of: dict[str, list[str]] = {}
    for endpoint in endpoints:
        has_pipeline = endpoint.mount is Mount.API and endpoint.context is Context
        if has_pipeline and endpoint.method not in ("HEAD", "OPTIONS") and not guards.of(endpoint).is_decided:
            path = prefix + endpoint.path
            text = f"{endpoint.method} {path}: {_UNDECIDED}"
            names = names_of_route(endpoint, path)
            one = ProductionProblem(text, code_of_open_route(endpoint), names)
            if one.silencing_rule(declaration.ignores) is None:
                methods_of.setdefault(path, []).append(endpoint.method)
            else:
                yield one
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
