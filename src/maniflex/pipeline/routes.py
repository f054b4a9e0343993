"""The one way to make an `Endpoint`: a method and a path, with the chains composed of its steps.

OPTIONS is never written out: `with_options` and `options` read from the endpoints of a path which
methods it has.

    routes.with_options([
        routes.endpoint("GET", "/posts/stats", Operation.LIST, model=post, defaults=steps, respond=answer),
    ])  # GET, and OPTIONS with `Allow: GET, OPTIONS`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from maniflex._names import did_you_mean
from maniflex.db.backend import has_method
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.chain import (
    AddedStep,
    AnswerOfRow,
    Composer,
    Default,
    EarlyAnswer,
    Handler,
    InARow,
    Target,
    steps_of,
)
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import Middleware
from maniflex.pipeline.response import Response
from maniflex.pipeline.rules.reach import ReachedModels
from maniflex.pipeline.rules.redactions import redact_unwritten, write_in_language
from maniflex.pipeline.rules.transforms import Computed
from maniflex.pipeline.runtime import Runtime

# What a registry exposes: one `Endpoint` for every method and path.
#
# `routes.py` makes them, http mounts them, openapi describes them.


class Mount(StrEnum):
    """Where the path of an endpoint begins."""

    API = "api"  # below the path prefix
    ROOT = "root"
    PROBE = "probe"  # at the root, also in a process that serves no API
    METRICS = "metrics"  # likewise, or alone on a port of its own


_WITHOUT_MODEL = frozenset({Operation.ACTION, Operation.SEARCH, Operation.SUBSCRIBE, *Operation.FILES})


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One method on one path, with its two chains and the steps behind them."""

    method: str
    path: str  # from its mount on; parameters as {name}
    operation: Operation
    model: ModelMeta | None
    main: Handler
    respond: Handler
    owner: str  # for messages: "Post" or "action cancel"
    about: RouteDocs | None = None
    context: type[Context] = Context
    mount: Mount = Mount.API
    behind_auth: Handler | None = None  # of an action: the chain for a caller who needs no proof
    also: tuple[Target, ...] = ()  # whose middleware it runs besides
    item: bool | None = None  # whether it is about one record; None: as its path says
    behind: tuple[Default, ...] = ()  # run once it is answered, however that came
    prefix: str = ""  # what stands before the path of one of the API
    chains: tuple[tuple[Default, ...], ...] = field(init=False)  # the steps of all
    route: str = field(init=False)  # the whole path, as it is declared
    names: tuple[str, str, str] = field(init=False)  # of route, model and operation, as observers are told

    @property
    def targets(self) -> tuple[Target, ...]:
        """The models and operations whose middleware it runs."""
        return ((self.model, self.operation), *self.also)

    @property
    def on_one(self) -> bool:
        """Whether it is about one record."""
        if self.item is not None:
            return self.item
        return "{" in self.path or bool(self.model and self.model.options.singleton)

    def __post_init__(self) -> None:
        chains = (steps_of(self.main), steps_of(self.respond))
        object.__setattr__(self, "chains", (*chains, self.behind) if self.behind else chains)
        is_below_prefix = self.mount is Mount.API
        object.__setattr__(self, "route", self.prefix + self.path if is_below_prefix else self.path)
        has_operation = self.model is not None or self.operation in _WITHOUT_MODEL
        model, operation = "" if self.model is None else self.model.name, str(self.operation)
        object.__setattr__(self, "names", (self.route, model, operation if has_operation else ""))


def set_params(
    ctx: Context, endpoint: Endpoint, names: Sequence[str], params: str | Mapping[str, str]
) -> None:
    """Tell a request the parameters of its path: one at its end as a text, several by their names."""
    if type(params) is str:
        ctx.resource_id = params
        if endpoint.model is None:
            ctx.params = {names[0]: params}
            ctx.route = endpoint.path
    elif not isinstance(params, str):
        ctx.params = params
        if endpoint.model is not None:
            ctx.resource_id = params.get("id", "")
        else:
            ctx.route = endpoint.path


MAIN = ("auth", "deserialize", "validate", "service", "db")
TRIMMED = ("auth",)
_NO_STEPS = InARow(())


@dataclass(frozen=True, slots=True)
class RouteBuilder:
    """Makes the endpoints of one server."""

    runtime: Runtime
    composer: Composer
    reached: ReachedModels
    computed: Mapping[type[Model], Sequence[Computed]] = field(default_factory=dict)
    context: type[Context] = Context

    def endpoint(
        self,
        method: str,
        path: str,
        operation: Operation,
        *,
        model: ModelMeta | None = None,
        steps: Sequence[str] = MAIN,
        defaults: Mapping[str, Default | AddedStep] | None = None,
        inner: Sequence[tuple[str, Middleware]] = (),
        outer: Sequence[tuple[str, Middleware]] = (),
        also: Sequence[Target] = (),
        answering: Sequence[tuple[str, Middleware]] = (),
        respond: Default | None = None,
        of_row: AnswerOfRow | None = None,
        item: bool | None = None,
        owner: str = "",
        about: RouteDocs | None = None,
        mount: Mount = Mount.API,
    ) -> Endpoint:
        """An endpoint with the named `steps`, of which `defaults` has the code, and a response step.

        Without `respond` there is no response step: an earlier one answers. `answering` is middleware of
        the route's own for it. `of_row` makes the same answer of the row that the db step stores, where that
        is all it takes. `item` says whether the operation is on one record, which a parameter in
        the path says otherwise. The middleware for requests to `also` runs too.
        """
        on_one = "{" in path if item is None else item
        compose = self.composer.steps
        answer: Handler = _NO_STEPS
        if respond is not None:
            answer = compose(
                ("response",),
                {"response": respond},
                model,
                operation,
                item=on_one,
                inner=answering,
                also=also,
            )
        has_only_default = steps_of(answer) == (respond,)
        early_answer = EarlyAnswer(steps_of(answer), of_row if has_only_default else None)
        main = compose(
            steps,
            defaults or {},
            model,
            operation,
            item=on_one,
            inner=inner,
            outer=outer,
            also=also,
            early_answer=early_answer,
        )
        return Endpoint(
            method=method,
            path=path,
            operation=operation,
            model=model,
            main=main,
            respond=InARow((early_answer,)) if early_answer.has_takers else answer,
            owner=owner or (model.name if model is not None else ""),
            about=about,
            context=self.context,
            mount=mount,
            also=tuple(also),
            item=item,
            behind=self._behind,
            prefix=self.runtime.config.path_prefix,
        )

    @property
    def _behind(self) -> tuple[Default, ...]:
        if self.runtime.rules.has_redactions:
            return (redact_unwritten,)
        return (write_in_language,) if self.runtime.has_texts else ()

    def bare(
        self, method: str, path: str, handler: Handler, *, owner: str, about: RouteDocs, mount: Mount
    ) -> Endpoint:
        """An endpoint without a pipeline, which `handler` answers alone."""
        return Endpoint(
            method=method,
            path=path,
            operation=Operation.READ,
            model=None,
            main=handler,
            respond=_NO_STEPS,
            owner=owner,
            about=about,
            context=self.context,
            mount=mount,
            behind=self._behind,
            prefix=self.runtime.config.path_prefix,
        )

    def with_options(
        self, endpoints: Iterable[Endpoint], about: RouteDocs | None = None
    ) -> Iterator[Endpoint]:
        """The endpoints by path; after those of each path, one that answers OPTIONS there.

        Operations that a model leaves out have none.
        """
        for same_path in _by_path(filter(_is_served, endpoints)):
            yield from same_path
            yield self._options_of(same_path, about)

    def options(self, endpoints: Iterable[Endpoint]) -> Iterator[Endpoint]:
        """The answers to OPTIONS alone, one for each path of these endpoints."""
        for same_path in _by_path(endpoints):
            yield self._options_of(same_path, None)

    def _options_of(self, same_path: Sequence[Endpoint], about: RouteDocs | None) -> Endpoint:
        first = same_path[0]
        return self.endpoint(
            "OPTIONS",
            first.path,
            Operation.OPTIONS,
            model=first.model,
            steps=TRIMMED,
            respond=_allow_step({e.method for e in same_path}),
            owner=first.owner,
            about=about,
            also=[(model, Operation.OPTIONS) for model, _ in first.also],
        )


def _is_served(endpoint: Endpoint) -> bool:
    model = endpoint.model
    if model is None:
        return True
    return serves(model, endpoint.operation, item=endpoint.on_one)


def _by_path(endpoints: Iterable[Endpoint]) -> Iterable[Sequence[Endpoint]]:
    groups: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        groups.setdefault(endpoint.path, []).append(endpoint)
    return groups.values()


def _allow_step(methods: Iterable[str]) -> Default:
    """Answers OPTIONS on a path that has these methods beside it."""
    allow = ", ".join(sorted({*methods, "OPTIONS"}))

    def respond(ctx: Context) -> None:
        if ctx.response is None:
            ctx.response = Response(204, headers={"allow": allow})

    return respond


# What the documentation says of a route beyond what its model and operation say already.
#
# An endpoint may have a `RouteDocs`; it works the same without.


@dataclass(frozen=True, slots=True)
class RouteDocs:
    """The texts, types and parameters of one endpoint; types are annotations, schemas JSON Schema."""

    name: str = ""  # becomes the operationId
    summary: str = ""
    description: str = ""
    tags: Sequence[str] = ()
    deprecated: bool = False
    request: Any = None  # the type of the body
    response: Any = None  # the type of `data`
    request_schema: Mapping[str, Any] | None = None  # wins over `request`
    data_schema: Mapping[str, Any] | None = None  # wins over `response`
    request_media: str = "application/json"
    takes_form: bool = False  # of a model's own create and update: a form, too
    body_required: bool = True
    body_text: str = "What the operation is given."
    status: int = 200
    is_status_declared: bool = False  # of an action: its status is the only one without `more_answers`
    more_answers: Mapping[int, Any] = field(default_factory=dict)  # of an action: type of the data, or None
    request_body: Mapping[str, Any] | None = None  # of OpenAPI; wins over `request` and `request_schema`
    query: Mapping[str, Any] = field(default_factory=dict)  # name → type of a query parameter
    grammar: Sequence[str] = ()  # parameters of the list grammar it takes: "filter", "sort", …
    parameters: Sequence[Mapping[str, Any]] = ()  # further OpenAPI parameters
    media: Sequence[str] = ()  # what it answers with, when that is not JSON
    answers: Mapping[int, Mapping[str, Any] | None] | None = None  # JSON without an envelope, by status
    answer_texts: Mapping[int, str] = field(default_factory=dict)  # what an answer is, by status
    errors: Sequence[int] = ()  # statuses of its refusals, in addition to those of its kind
    codes: Sequence[str] = ()  # error codes that only such operations give
    security: Sequence[Mapping[str, Sequence[str]]] | None = None  # empty: open to everybody
    extensions: Mapping[str, Any] = field(default_factory=dict)  # `x-` keys of the operation
    hidden: bool = False  # not part of the API: pages, scripts and styles

    def of_head(self) -> RouteDocs:
        """The texts of a HEAD route, made of those of its GET."""
        return replace(self, name=f"head_{self.name}", summary=f"Headers of: {self.summary.lower()}")


# The class keyword `operations=`: which routes of a model there are.


def serves(model: ModelMeta, operation: Operation, *, item: bool) -> bool:
    """Whether the model has routes for the operation, on one record (`item`) or on many."""
    if operation in Operation.WRITES and not keeps(model, operation):
        return False
    if model.options.operations is None:
        return True
    names = {str(name) for name in _names(model.options.operations)}
    operations = frozenset(o for o in Operation if o in names)
    if operation is Operation.READ_HISTORY and not item and Operation.LIST not in operations:
        return operation in operations  # whose records are read one by one has no list of their histories
    return covered(operations, operation, item=item)


def keeps(model: ModelMeta, operation: Operation) -> bool:
    """Whether a write can be done at all: a query model has none, and a backend those of its methods."""
    if model.options.backend is not None:
        return has_method(model.options.backend, operation)
    return model.options.query is None


def operation_problems(model: ModelMeta) -> Iterator[str]:
    """What cannot be meant by a model's `operations=`."""
    operations: Any = model.options.operations
    if operations is None:
        return
    operation_names = [operation.value for operation in Operation]
    names = _names(operations)
    if not names:
        yield f"{model.name}: operations is empty; headless=True makes a model without routes"
    for name in names:
        if str(name) not in operation_names:
            hint = did_you_mean(str(name), operation_names) or f"; there are: {', '.join(operation_names)}"
            yield f"{model.name}: operations: there is no operation {name!r}{hint}"


def _names(operations: Any) -> list[Any]:
    return [operations] if isinstance(operations, str) else list(operations)
