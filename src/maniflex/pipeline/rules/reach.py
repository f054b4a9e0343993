"""The models a request reaches besides its own, and the auth middleware that stands before their rows.

A client reaches another model by `include`, by a dotted filter or sort, by the conditions of an
aggregate, and by a key in a body. Which middleware guards which model is worked out when the server
is sealed; a route from which no guarded model can be reached has no such step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from maniflex.db.port import AfterCommit
from maniflex.errors import Forbidden, RequestError
from maniflex.model.meta import ModelMeta, RelationKind
from maniflex.pipeline.chain import Composer, Link, in_order
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.exchange import IN_PROCESS
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import (
    At,
    AuthPart,
    Middleware,
    Pipeline,
    Registration,
    SpecStep,
    Step,
    demands_identity,
    is_exemption,
    part_of,
)
from maniflex.pipeline.response import Response, no_answer_error, status_of
from maniflex.pipeline.rules.model_rules import ServerRules
from maniflex.pipeline.rules.scopes import opens_lists
from maniflex.query.query import (
    Filter,
    Include,
    Models,
    Query,
    Scope,
    adopt,
    fields_fixed_by,
    leaves,
    models_along,
    models_reached,
    reachable_models,
)

Guard = Callable[[Context], Awaitable[None]]


class View(Context):
    """A request as the middleware of a reached model sees it: a list of that model, or one of its records.

    Request, identity and state are the request's own. An identity that is set here is known to the
    later middleware of the same view and to nothing else, so no rule that passed is passed twice.
    """

    passed = False

    def __init__(
        self, ctx: Context, model: ModelMeta, operation: Operation = Operation.LIST, record_id: str = ""
    ) -> None:
        super().__init__(ctx.runtime, ctx.scope, ctx.receive, operation, ctx.request_id)
        self.parent = ctx
        self.model = model
        self.resource_id = record_id
        self.auth, self.authenticated = ctx.auth, ctx.authenticated
        self.csrf_exempt, self.authenticator = ctx.csrf_exempt, ctx.authenticator
        self.trace_id, self.traceparent = ctx.trace_id, ctx.traceparent
        self.route_path = ctx.route_path
        self.raw_body = ctx.raw_body
        self._state = ctx.state
        self._request = ctx._request
        self._query = ctx.runtime.stores[model.cls].query(b"")

    @property
    def forced(self) -> Scope:
        """The conditions of the request, and those of this view for its model."""
        assert self.parent is not None
        return adopt(self.parent.forced, self.current_query())

    def after_commit(self, call: AfterCommit) -> None:
        assert self.parent is not None
        self.parent.after_commit(call)

    def add_header(self, name: str, value: str) -> None:
        assert self.parent is not None
        self.parent.add_header(name, value)


class Refused(Exception):
    """The middleware of a reached model answered instead of letting the request pass."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"refused with {status_of(response)}")
        self.response = response


def forget_identity(view: Context) -> None:
    """The beginning of a guard's chain, where the model does not take the credentials of the route.

    What the application itself says of a caller stays: in code that calls, and in middleware of its own.
    """
    if view.authenticated and IN_PROCESS not in view.scope:
        view.auth = view.authenticator = None
        view.authenticated = view.csrf_exempt = False


def let_pass(view: Context) -> None:
    """The end of a guard's chain."""
    assert isinstance(view, View)
    view.passed = True


async def admit(
    ctx: Context,
    model: ModelMeta,
    guard: Guard,
    operation: Operation = Operation.LIST,
    record_id: str = "",
) -> None:
    """Run the middleware of a reached model; what it binds the model to binds the request.

    Raises what the middleware raises, or `Refused` with the response it set.
    """
    view = View(ctx, model, operation, record_id)
    await guard(view)
    response = view.response
    if response is not None and status_of(response) >= 400:
        raise Refused(response)
    if not view.passed:
        raise no_answer_error(view) if response is None else Forbidden()
    query = ctx.current_query()
    scope = adopt(query.forced, view.current_query())
    if scope is not query.forced:
        ctx._query = query.with_scope(scope)
    if view.auth is not ctx.auth and ctx.runtime.rules[model.cls].judges_rows:
        ctx.policy_views = {**(ctx.policy_views or {}), model.name: view}


async def view_through(ctx: Context, model: ModelMeta, guard: Guard) -> View | None:
    """The request as the middleware of a reached model lets it pass; None where that refuses it."""
    view = View(ctx, model)
    try:
        await guard(view)
    except RequestError as refusal:
        if refusal.status >= 500:
            raise
        return None
    is_refused = view.response is not None and status_of(view.response) >= 400
    return None if is_refused or not view.passed else view


class Reach:
    """The step that finds the guarded models a request reaches and runs their middleware.

    It also refuses what would tell of `hidden` rows, which only a policy keeps from the caller.
    """

    def __init__(
        self,
        model: ModelMeta,
        operation: Operation,
        guards: Mapping[ModelMeta, Guard],
        hidden: frozenset[str] = frozenset(),
        *,
        hides_own: bool = False,
    ) -> None:
        self._model = model
        self._hides_own = hides_own  # rows of its own list, which nothing may count or search
        self._hidden = hidden
        self._guards = {meta.name: (meta, guard) for meta, guard in guards.items()}
        self._keys = tuple(_open_keys(model, operation, self._guards))
        self._reads = operation in Operation.READS

    def __call__(self, ctx: Context) -> Awaitable[None] | None:
        ctx.reach = self
        names = self._by_query(ctx) if self._reads else self._by_body(ctx)
        guards = (
            [self._guards[name] for name in dict.fromkeys(names) if name in self._guards] if names else ()
        )
        if self._hidden and self._tells_of_hidden(ctx):
            return _admit_all_and_refuse(ctx, guards)
        return _admit_all(ctx, guards) if guards else None

    def _tells_of_hidden(self, ctx: Context) -> bool:
        """Whether the client counts, searches, compares or orders by rows that it may not see."""
        if ctx._query is None and not ctx.scope["query_string"] and ctx.aggregation is None:
            return False
        query = ctx.current_query() if ctx.client_listing is None else ctx.client_listing.query
        asks_own = query.search is not None or ctx.aggregation is not None
        if asks_own and self._hides_own:
            return True
        conditions = () if ctx.aggregation is None else ctx.aggregation.filters
        return not self._hidden.isdisjoint(_models_asked_about(query, conditions))

    def _by_query(self, ctx: Context) -> Sequence[str]:
        query = ctx._query
        if query is None:
            if not ctx.scope["query_string"]:
                return ()
            query = ctx.current_query()
        listing = ctx.client_listing  # as the client wrote it, before code added conditions of its own
        if listing is None:
            names: Sequence[str] = models_reached(query, query.includes)
        elif query.includes is not listing.query.includes:
            names = models_reached(listing.query, query.includes)
        else:
            names = listing.reached
        if ctx.aggregation is None:
            return names
        conditions = leaves(ctx.aggregation.filters)
        return [*names, *(name for item in conditions for name in models_along(item.path))]

    def _by_body(self, ctx: Context) -> Sequence[str]:
        body = ctx._body
        names: list[str] = []
        fixed_fields: set[str] | None = None
        for key, api, target in self._keys:
            if body is not None and body.sent(api):
                fixed_fields = (
                    fields_fixed_by(self._model, ctx.forced) if fixed_fields is None else fixed_fields
                )
                if key not in fixed_fields:
                    names.append(target)
        return names


def _models_asked_about(query: Query, conditions: Sequence[Filter]) -> Iterator[str]:
    """The names of the models whose rows decide what a query gives, though it may show none of them.

    Those are the models of dotted filters and sorts and of more `conditions`, and junctions.
    """
    paths = [item.path for item in leaves((*query.filters, *conditions))]
    for path in (*paths, *(sort.path for sort in query.sorts)):
        yield from models_along(path)
    yield from _junctions(query.includes)


def _junctions(includes: Iterable[Include]) -> Iterator[str]:
    for include in includes:
        if include.relation.through is not None:
            yield include.relation.through
        yield from _junctions(include.nested)


async def reach_again(ctx: Context) -> None:
    """Run the middleware of models that became known as reached after the step for it."""
    outcome = None if ctx.reach is None else ctx.reach(ctx)
    if outcome is not None:
        await outcome


async def _admit_all_and_refuse(ctx: Context, guards: Iterable[tuple[ModelMeta, Guard]]) -> None:
    await _admit_all(ctx, guards)
    raise Forbidden()


async def _admit_all(ctx: Context, guards: Iterable[tuple[ModelMeta, Guard]]) -> None:
    for meta, guard in guards:
        await admit(ctx, meta, guard)


def _open_keys(
    model: ModelMeta, operation: Operation, guards: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Attribute, API name and target of the keys a client can send that name records of guarded models."""
    for relation in model.relations.values():
        if relation.kind is not RelationKind.BELONGS_TO or relation.key is None:
            continue
        field = model.by_name[relation.key]
        is_closed = field.name in model.closed or (field.immutable and operation is Operation.UPDATE)
        if relation.target in guards and not is_closed:
            yield field.name, field.api, relation.target


# Which auth middleware of a reached model a request has still to pass; worked out when it is sealed.


Registered = Sequence[tuple[Registration, Middleware]]


def middleware_to_pass(
    step: Step | SpecStep,
    model: ModelMeta,
    of_model: Registered,
    passed: Sequence[Middleware],
    route: Registered,
    operation: Operation,
) -> tuple[list[tuple[Registration, Middleware]], bool]:
    """The middleware of the model that is still to pass, and whether to find out anew who is asking.

    `passed` are the functions of the route that count for this model; `route` are all of them.
    """
    forgets = _takes_other_credentials(step, model, of_model, route, operation)
    if forgets:
        passed = [fn for fn in passed if not _judges_caller(fn)]
    if forgets or _exempts_more(route, of_model):
        passed = [fn for fn in passed if not _concerns_identity(fn)]
    return _still_to_pass(of_model, passed), forgets


def _takes_other_credentials(
    step: Step | SpecStep, model: ModelMeta, of_model: Registered, route: Registered, operation: Operation
) -> bool:
    """Whether an identity of the route may come from an authenticator that the model does not have.

    A write only names records of the model: for that, authenticators of the model's writes count too.
    """
    own_readers = [fn for _, fn in of_model if _reads_credential(fn)]
    strange_readers = [fn for _, fn in route if _reads_credential(fn) and fn not in own_readers]
    if operation in Operation.WRITES and strange_readers:
        of_any_operation = [r.fn for r in step.registrations if r.models is None or model.name in r.models]
        strange_readers = [fn for fn in strange_readers if fn not in of_any_operation]
    return bool(own_readers and strange_readers)


def _still_to_pass(
    of_model: Registered, passed: Sequence[Middleware]
) -> list[tuple[Registration, Middleware]]:
    """The middleware of a model that a request has not passed; an authenticator keeps its exemptions.

    They are passed again, because what the route was exempted from says nothing of this model.
    """
    own = [pair for pair in of_model if pair[1] not in passed]
    if not any(demands_identity(fn) for _, fn in own):
        return own
    return [pair for pair in of_model if pair in own or is_exemption(pair[1])]


def _exempts_more(route: Registered, of_model: Registered) -> bool:
    """Whether an anonymous caller of the route was let pass by an exemption that the model does not have."""
    exemptions = [fn for _, fn in of_model if is_exemption(fn)]
    return any(is_exemption(fn) and fn not in exemptions for _, fn in route)


def _reads_credential(fn: Middleware) -> bool:
    return part_of(fn) is AuthPart.AUTHENTICATOR


def _judges_caller(fn: Middleware) -> bool:
    return part_of(fn) is AuthPart.GUARD


def _concerns_identity(fn: Middleware) -> bool:
    return demands_identity(fn) or is_exemption(fn)


def guards_of_rows(step: Step | SpecStep, model: ModelMeta) -> list[tuple[Registration, Middleware]]:
    """The middleware that stands before rows of a model which a request to another one leads to.

    It is what stands before its lists, and what guards its single records alone: a model may be served
    without a list, and then nothing else guards it. Exemptions from one of the two do not open the other.
    """
    of_lists = in_order(step, model, Operation.LIST, item=False)
    of_reads = in_order(step, model, Operation.READ, item=True)
    lists, reads = [r for r, _ in of_lists], [r for r, _ in of_reads]
    further = [pair for pair in of_reads if pair[0] not in lists and not opens_lists(pair[0])]
    if not further:
        return of_lists
    if _has_authenticator(of_lists):
        further = [pair for pair in further if not is_exemption(pair[1])]
    if _has_authenticator(further):
        of_lists = [pair for pair in of_lists if pair[0] in reads or not is_exemption(pair[1])]
    places = {id(r): place for place, r in enumerate(step.registrations)}
    return sorted(
        [*of_lists, *further],
        key=lambda pair: (_POSITIONS[pair[0].at], pair[0].rank, places[id(pair[0])]),
    )


def _has_authenticator(pairs: Iterable[tuple[Registration, Middleware]]) -> bool:
    return any(demands_identity(fn) for _, fn in pairs)


_POSITIONS = {At.BEFORE: 0, At.REPLACE: 1, At.AFTER: 2}


# The guards of all models of a server, and the step of each endpoint that asks them.


_REACHING_NONE = frozenset({Operation.DELETE, Operation.OPTIONS, Operation.PRESIGN_UPLOAD})


class ReachedModels:
    """Says which models a request can reach, and what stands before their rows that it has not passed."""

    def __init__(self, composer: Composer, pipeline: Pipeline, models: Models, rules: ServerRules) -> None:
        self._composer = composer
        self._pipeline = pipeline
        self._models = models
        self._rules = rules

    def step(self, model: ModelMeta, operation: Operation, item: bool) -> Reach | None:
        """The step of an endpoint, where a model that it reaches has guards of its own or hidden rows."""
        guards = self.guards_of_reachable(model, operation, item=item)
        hidden = self._rules.hidden_from(model, operation)
        if not guards and not hidden:
            return None
        return Reach(model, operation, guards, hidden, hides_own=self._rules[model.cls].hides_rows)

    def guards_of_reachable(
        self, model: ModelMeta | None, operation: Operation, *, item: bool
    ) -> dict[ModelMeta, Guard]:
        """The guards of every model that such a request can reach."""
        return self.guards(self._reachable(model, operation), model, operation, item=item)

    def entries_of_reachable(
        self, model: ModelMeta | None, operation: Operation, *, item: bool
    ) -> Iterator[Middleware]:
        """What was registered to guard the models that such a request can reach."""
        yield from self.entries_before(self._reachable(model, operation), model, operation, item=item)

    def entries_before(
        self, models: Iterable[ModelMeta], model: ModelMeta | None, operation: Operation, *, item: bool
    ) -> Iterator[Middleware]:
        """What was registered to guard these models, as far as such a request has not passed it."""
        for _, own, _ in self._not_passed(models, model, operation, item=item):
            yield from (fn if isinstance(fn, Entry) else r.fn for r, fn in own)

    def _reachable(self, model: ModelMeta | None, operation: Operation) -> list[ModelMeta]:
        if operation is Operation.SEARCH:
            return [m for m in self._models.values() if m.options.global_searchable]
        if model is None or operation in _REACHING_NONE:
            return []
        return [model, *reachable_models(model, self._models)]

    def guards(
        self,
        models: Iterable[ModelMeta],
        model: ModelMeta | None,
        operation: Operation,
        *,
        item: bool,
        asked: Operation = Operation.LIST,
    ) -> dict[ModelMeta, Guard]:
        """For each of these models, its auth middleware that such a request has not passed.

        It is that for rows which a request reaches, unless it reaches single records by another operation
        (`asked`).
        """
        guards: dict[ModelMeta, Guard] = {}
        for meta, own, forgets in self._not_passed(models, model, operation, item=item, asked=asked):
            links: list[Link] = [("forget identity", None, forget_identity)] if forgets else []
            links += [(f"auth:{r.name} of {meta.name}", fn, None) for r, fn in own]
            guards[meta] = self._composer.nest([*links, (f"reach {meta.name}", None, let_pass)])
        return guards

    def _not_passed(
        self,
        models: Iterable[ModelMeta],
        model: ModelMeta | None,
        operation: Operation,
        *,
        item: bool,
        asked: Operation = Operation.LIST,
    ) -> Iterator[tuple[ModelMeta, list[tuple[Registration, Middleware]], bool]]:
        """The models with auth middleware that such a request has not passed, and that middleware.

        A middleware for all models runs once in a request; one for some models, once for each of them, and
        code of the application that may look at the record once for each record. A model that does not take
        the credentials of the route has to find out anew who is asking.
        """
        step: Step | SpecStep = self._pipeline.auth
        route_middleware = in_order(step, model, operation, item=item)
        of_records = asked is not Operation.LIST
        for meta in models:
            route_functions = [
                fn
                for r, fn in route_middleware
                if r.models is None or (meta is model and (isinstance(fn, Entry) or not of_records))
            ]
            of_model = in_order(step, meta, asked, item=True) if of_records else guards_of_rows(step, meta)
            own, forgets = middleware_to_pass(
                step, meta, of_model, route_functions, route_middleware, operation
            )
            if own:
                yield meta, own, forgets
