"""The one way to make an `Endpoint`: a method and a path, with the chains composed of its steps.

OPTIONS is never written out: `with_options` and `options` read from the endpoints of a path which
methods it has.

    routes.with_options([
        routes.endpoint("GET", "/posts/stats", Operation.LIST, model=post, defaults=steps, respond=answer),
    ])  # GET, and OPTIONS with `Allow: GET, OPTIONS`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.chain import Composer, Default, Handler, InARow, Target, steps_of
from maniflex.pipeline.computed import Computed
from maniflex.pipeline.context import Context
from maniflex.pipeline.early_answer import EarlyAnswer
from maniflex.pipeline.endpoints import Endpoint, Mount
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.redacted_answers import redact_unwritten
from maniflex.pipeline.registration import Middleware
from maniflex.pipeline.response import Response
from maniflex.pipeline.route_docs import RouteDocs
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.served import serves

MAIN = ("auth", "deserialize", "validate", "service", "db")
TRIMMED = ("auth",)
_NO_STEPS = InARow(())


@dataclass(frozen=True, slots=True)
class RouteBuilder:
    """Makes the endpoints of one server."""

    runtime: Runtime
    composer: Composer
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
        defaults: dict[str, Default] | None = None,
        inner: Sequence[tuple[str, Middleware]] = (),
        outer: Sequence[tuple[str, Middleware]] = (),
        also: Sequence[Target] = (),
        answering: Sequence[tuple[str, Middleware]] = (),
        respond: Default | None = None,
        item: bool | None = None,
        owner: str = "",
        about: RouteDocs | None = None,
        mount: Mount = Mount.API,
    ) -> Endpoint:
        """An endpoint with the named `steps`, of which `defaults` has the code, and a response step.

        Without `respond` there is no response step: an earlier one answers. `answering` is middleware of
        the route's own for it. `item` says whether the operation is on one record, which a parameter in
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
        early_answer = EarlyAnswer(steps_of(answer))
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
        return (redact_unwritten,) if self.runtime.redactions else ()

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
