"""The middleware of each route, and the mistakes of an application that is to serve the world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from maniflex._limits import Limits
from maniflex.config import Config
from maniflex.features.actions import Action
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint, Mount
from maniflex.pipeline.entry import Entry, Placement
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware
from maniflex.pipeline.scope_rules import ScopeRule

MOST_ROWS = 10_000  # of one page; a larger limit is as good as none


@dataclass(frozen=True, slots=True)
class RouteGuards:
    """What stands before one route, by the names that users wrote."""

    authenticators: tuple[str, ...]  # middleware of the auth step that is no entry counts as one
    exemptions: tuple[str, ...]
    others: tuple[str, ...]  # roles, scope rules, limits

    def __str__(self) -> str:
        parts = {"auth": self.authenticators, "open": self.exemptions, "guards": self.others}
        return "; ".join(f"{name}: {', '.join(names)}" for name, names in parts.items() if names) or "-"

    @property
    def is_decided(self) -> bool:
        """Whether the application said who may use the route."""
        return bool(self.authenticators or self.exemptions)


class GuardsByRoute:
    """Finds the middleware of the routes of one server."""

    def __init__(self, placement: Placement, actions: Sequence[Action]) -> None:
        self._placement = placement
        self._actions: Mapping[tuple[str, str], Action] = {(a.method, a.path): a for a in actions}

    def of(self, endpoint: Endpoint) -> RouteGuards:
        """The guards of an endpoint."""
        authenticators, exemptions, others = [], [], []
        for step, name, fn in self._middleware(endpoint):
            if getattr(fn, "is_exemption", False):
                exemptions.append(name)
            elif getattr(fn, "is_authenticator", False) or (step == "auth" and not isinstance(fn, Entry)):
                authenticators.append(name)
            elif step == "auth" or (isinstance(fn, Entry) and step != "response"):
                others.append(name)
        action = self._action(endpoint)
        if action is not None and action.security is not None and not action.security:
            exemptions.append("security=[]")
        unique = (tuple(dict.fromkeys(names)) for names in (authenticators, exemptions, others))
        return RouteGuards(*unique)

    def docs(self, endpoint: Endpoint) -> list[EntryDocs]:
        """What the entries of an endpoint add to its description."""
        entries = dict.fromkeys(fn for _, _, fn in self._middleware(endpoint) if isinstance(fn, Entry))
        docs = (entry.docs(endpoint.model, endpoint.operation) for entry in entries)
        return [doc for doc in docs if doc is not None]

    def _action(self, endpoint: Endpoint) -> Action | None:
        if endpoint.operation is not Operation.ACTION:
            return None
        return self._actions.get((endpoint.method, endpoint.path))

    def _middleware(self, endpoint: Endpoint) -> Iterator[tuple[str, str, Middleware]]:
        """Step, name and function of the middleware that a request to the endpoint may pass."""
        if endpoint.mount is not Mount.API or endpoint.context is not Context:
            return
        for step in self._placement.pipeline.steps:
            for r in step.registrations:
                for model, operation in endpoint.targets:
                    is_passed = r.matches(model, operation, item=endpoint.on_one)
                    fn = r.middleware(model, operation) if is_passed else None
                    if fn is not None:
                        yield step.name, r.name, fn if isinstance(fn, Entry) else r.fn
        action = self._action(endpoint)
        for fn in action.middleware if action is not None else ():
            if isinstance(fn, Entry):
                yield "action", fn.name, fn


def production_problems(
    config: Config, guards: GuardsByRoute, endpoints: Sequence[Endpoint], placement: Placement
) -> Iterator[str]:
    """What should not be served to the world, one sentence each."""
    by_path: dict[str, list[str]] = {}
    for endpoint in endpoints:
        has_pipeline = endpoint.mount is Mount.API and endpoint.context is Context
        if has_pipeline and endpoint.method not in ("HEAD", "OPTIONS") and not guards.of(endpoint).is_decided:
            by_path.setdefault(config.path_prefix + endpoint.path, []).append(endpoint.method)
    for path, methods in by_path.items():
        yield f"{', '.join(methods)} {path}: neither an authenticator nor an exemption stands before it"
    if not config.query_timeout:
        yield "query_timeout is 0, so a request may run for ever"
    if config.auto_migrate:
        yield "auto_migrate is on, so every start changes the schema; migrate as a step of its own"
    yield from _limit_problems("limits", config.limits)
    for meta in {e.model.name: e.model for e in endpoints if e.model is not None}.values():
        if meta.options.limits is not None:
            yield from _limit_problems(f"{meta.name}: limits", meta.options.limits)
    for entry, seat in placement.seats:
        yield from (f"{entry.name}: {problem}" for problem in entry.production_problems(seat))


def _limit_problems(where: str, limits: Limits) -> Iterator[str]:
    if limits.max_limit > MOST_ROWS:
        yield f"{where}: max_limit={limits.max_limit} lets one request read that many rows"


def production_notes(placement: Placement) -> Iterator[str]:
    """What may be meant, and should be looked at."""
    for entry, seat in placement.seats:
        models = entry.bound_models(seat) if isinstance(entry, ScopeRule) else seat.models
        for meta in models if entry.varies_by_caller else ():
            for field in meta.fields:
                if field.unique and not field.unique_within and field.name != "id":
                    yield (
                        f"{meta.name}.{field.name} is unique among the rows of all callers, which tells one "
                        f"what another has; {entry.name} binds the model, so unique= may name its field"
                    )
    yield from placement.warnings
