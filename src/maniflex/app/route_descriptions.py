"""What the entries of the catalogue add to the API description of each route, and what it asks callers for.

It is worked out when the document is made, from the middleware that a request to the route would pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from maniflex.app.route_guards import GuardsByRoute
from maniflex.db.backend import counts_records
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.chain import Composer
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint, Mount
from maniflex.pipeline.entry import Entry, Placement
from maniflex.pipeline.entry_docs import EntryDocs, query_parameter
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.policies import UNCOUNTED_META
from maniflex.pipeline.registration import Middleware
from maniflex.pipeline.scope_rules import ScopeRule
from maniflex.pipeline.server_entries import LayerEntry

_BODIES = frozenset({Operation.CREATE, Operation.UPDATE})


class RouteDescriptions:
    """Describes the routes of one server."""

    def __init__(
        self, guards: GuardsByRoute, composer: Composer, placement: Placement, layers: Sequence[Any]
    ) -> None:
        self._guards = guards
        self._composer = composer
        self._placement = placement
        lifted = [entry for entry, _ in placement.seats if entry.is_lifted]
        self._layers = [entry for entry in (*lifted, *layers) if isinstance(entry, LayerEntry)]

    def docs(self, endpoint: Endpoint) -> list[EntryDocs]:
        """What the entries of an endpoint add to its description."""
        entries = dict.fromkeys([*self._entries(endpoint), *self._layers])
        of_route = [docs for entry in entries if (docs := _docs_of(entry, endpoint)) is not None]
        model = endpoint.model
        if model is not None and self._is_uncounted(endpoint, model):
            of_route.append(EntryDocs(page_meta=UNCOUNTED_META))
        return [*of_route, *self._words_of_middleware(endpoint), *self._refusals_of_reached(endpoint)]

    def _is_uncounted(self, endpoint: Endpoint, model: ModelMeta) -> bool:
        """Whether pages of the endpoint have no total: none is known, or it would tell of hidden rows."""
        if endpoint.operation is Operation.READ_HISTORY:
            return self._composer.hides_versions(model, item=endpoint.on_one)
        is_hidden = self._composer.hides_rows(model) or not counts_records(model.options.backend)
        return endpoint.operation is Operation.LIST and is_hidden

    def security(self, endpoint: Endpoint) -> list[dict[str, list[str]]] | None:
        """The schemes of which a caller needs one, `{}` for none at all; None when no entry says so."""
        entries = self._entries(endpoint)
        docs = {entry: _docs_of(entry, endpoint) or EntryDocs() for entry in entries}
        schemes = dict.fromkeys(name for doc in docs.values() for name in doc.security)
        alternatives: list[dict[str, list[str]]] = [{name: []} for name in schemes]
        is_open = any(entry.silences(other) for entry in entries for other in self._all_entries(endpoint))
        if not schemes:
            return [] if is_open else None
        authenticators = [entry for entry in entries if entry.is_authenticator]
        exemptions = [entry for entry in entries if entry.is_exemption]
        # The last authenticator refuses callers without a credential, unless an exemption stands before it.
        is_exempt = bool(exemptions and authenticators) and entries.index(exemptions[0]) < entries.index(
            authenticators[-1]
        )
        demands = any(401 in docs[entry].refusals for entry in entries if not entry.is_authenticator)
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
        entries = self._all_entries(endpoint)
        return [one for one in entries if not any(other.silences(one) for other in entries)]

    def _all_entries(self, endpoint: Endpoint) -> list[Entry]:
        if endpoint.context is not Context:
            is_document = endpoint.mount is Mount.API
            registrations = self._placement.pipeline.openapi.auth.registrations if is_document else ()
            return [r.fn for r in registrations if isinstance(r.fn, Entry)]
        middleware = [fn for _, _, fn in self._guards.middleware(endpoint)]
        entries = [fn for fn in (*middleware, *self._rules(endpoint)) if isinstance(fn, Entry)]
        return [entry for entry in dict.fromkeys(entries) if not _is_idle(entry, endpoint)]

    def _rules(self, endpoint: Endpoint) -> Iterator[Middleware]:
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
            yield from self._composer.entries_of_reachable(
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
        for entry in (entry for entry in entries if not entry.skips_reached):
            docs = entry.method_docs(endpoint.method, None, Operation.LIST)
            if docs is not None and docs.refusals:
                yield EntryDocs(refusals=docs.refusals)
        if self._composer.hidden_from(endpoint.model, endpoint.operation):
            yield EntryDocs(refusals={403: ("FORBIDDEN",)})


def _docs_of(entry: Entry, endpoint: Endpoint) -> EntryDocs | None:
    return entry.method_docs(endpoint.method, endpoint.model, endpoint.operation)


def _is_idle(entry: Entry, endpoint: Endpoint) -> bool:
    """Whether it looks at bodies alone, on a route that takes none: a restore is an update without one."""
    is_restore = endpoint.operation is Operation.UPDATE and endpoint.method == "POST"
    return is_restore and entry.acts_for is not None and entry.acts_for <= _BODIES
