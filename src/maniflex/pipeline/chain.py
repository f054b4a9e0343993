"""Compose the steps of an endpoint into one callable, once, when the server is sealed.

Five steps nest: what a middleware awaits as `next()` is all that comes after it, up to and including
the database. The response step runs after them, also when one of them refused the request, so its
middleware sees every answer. An endpoint without middleware is just its default steps in a row, and
middleware that is an `Admission` is one more step in it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, ClassVar

from maniflex._callables import is_async
from maniflex._caller import asking
from maniflex.config import Trace
from maniflex.db.port import Row
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, opens_lists
from maniflex.pipeline.observation import Tracing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import (
    Admission,
    At,
    Middleware,
    OpenAPIPipeline,
    Pipeline,
    Registration,
    SpecStep,
    Step,
)
from maniflex.pipeline.response import Response
from maniflex.pipeline.rules.model_rules import ServerRules
from maniflex.pipeline.rules.reach import (
    Guard,
    Reach,
    forget_identity,
    is_exemption,
    let_pass,
    middleware_to_pass,
)
from maniflex.pipeline.threads import Call
from maniflex.query.query import Models, reachable_models

Handler = Callable[[Context], Awaitable[None]]
Default = Callable[[Context], Awaitable[None] | None]
REPLACES = "in place of "
Link = tuple[str, Middleware | None, Default | None]  # a label, and middleware or a default step
Target = tuple[ModelMeta | None, Operation]  # what a request is for, as registrations match it


_REACHING_NONE = frozenset({Operation.DELETE, Operation.OPTIONS, Operation.PRESIGN_UPLOAD})
_NO_LINKS: dict[At, list[Link]] = {at: [] for at in At}


class SyncMiddleware:
    """A plain `def` middleware, run in a thread."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn

    async def __call__(self, ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
        call: Call = Call(self._fn, ctx, lambda: call.go_on(call_next))
        await ctx.runtime.threads.finish(call)


class Composer:
    """Builds the chains of one server."""

    def __init__(
        self,
        pipeline: Pipeline | OpenAPIPipeline,
        trace: Trace,
        logger: Any,
        models: Models | None = None,
        rules: ServerRules | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._is_traced = tracing is not None or trace.on("steps") or trace.on("timings") or trace.bodies
        self._models: Models = models or {}
        self._rules = rules
        self._pipeline = pipeline
        self._trace = trace
        self._logger = logger

    def steps(
        self,
        names: Sequence[str],
        defaults: dict[str, Default],
        model: ModelMeta | None,
        operation: Operation,
        *,
        item: bool,
        inner: Sequence[tuple[str, Middleware]] = (),
        outer: Sequence[tuple[str, Middleware]] = (),
        also: Sequence[Target] = (),
        early_answer: EarlyAnswer | None = None,
    ) -> Handler:
        """The named steps, nested, with the middleware that applies.

        `inner` goes before the last default, `outer` before everything; `early_answer` goes to
        the middleware that runs the response step itself. The middleware for requests to `also` runs too.
        Where the application replaces the validate step, the default "rules" runs after it; "files" runs
        at the end of that step in any case. Where middleware that asks for the bytes of a body comes right
        behind the deserialize step, that step is "read" before it and "parse" behind it.
        """
        links: list[Link] = [(label, fn, None) for label, fn in outer]
        targets = ((model, operation), *also)
        for name in names:
            step: Step | SpecStep | None = getattr(self._pipeline, name, None)
            links_at = self._links(step, targets, item) if step else _NO_LINKS
            if name == "deserialize" and model is not None and self._rules is not None:
                refuse = self._rules.step_before_query(model, operation)
                links += [("redacted fields", None, refuse)] if refuse is not None else []
            links += links_at[At.BEFORE]
            if name == names[-1]:
                links += [(label, fn, None) for label, fn in inner]
            if links_at[At.REPLACE]:
                label, fn, _ = links_at[At.REPLACE][-1]
                links.append((REPLACES + label if name == "db" else label, fn, None))
                if name == "validate" and "rules" in defaults:
                    links.append(("rules", None, defaults["rules"]))
            elif name in defaults:
                links.append((name, None, self._wrap_default(step, defaults[name], model, operation, item)))
            if name == "deserialize" and model is not None:
                links += self._reach(model, operation, item)
            if name == "db" and "policies" in defaults:
                links.append(("policies", None, defaults["policies"]))
            if name == "deserialize" and "parse" in defaults:
                links = _with_bytes_first(links, links_at[At.AFTER], defaults)
            else:
                links += links_at[At.AFTER]
            if name == "validate" and "files" in defaults:
                links.append(("files", None, defaults["files"]))
        if early_answer is not None:
            early_answer.hand_to([middleware or default for _, middleware, default in links], defaults)
        return self._nest(links)

    def _wrap_default(
        self,
        step: Step | SpecStep | None,
        default: Default,
        model: ModelMeta | None,
        operation: Operation,
        item: bool,
    ) -> Default:
        """The default step with the parts of entries that go around it and nothing else."""
        for r in _matching(step, model, operation, item=item) if step is not None else ():
            if r.wrap is not None:
                default = r.wrap(default)
        return default

    def _links(self, step: Step | SpecStep, targets: Sequence[Target], item: bool) -> dict[At, list[Link]]:
        """The middleware of a step that such a request passes, by position; each of it once."""
        links: dict[At, list[Link]] = {at: [] for at in At}
        matching = [self._matching(step, model, operation, item) for model, operation in targets]
        # In order of registration whatever target it is for: an exemption stands before or after a guard.
        in_order = sorted([r for r in step.registrations if any(r in some for some in matching)], key=_rank)
        for r in in_order:
            functions: list[Middleware] = []
            for (model, operation), some in zip(targets, matching, strict=True):
                fn = r.middleware(model, operation) if r in some else None
                if fn is None or fn in functions or _is_for_reads(r, operation):
                    continue
                if is_exemption(fn) and not opens(fn, step, targets, item=item):
                    continue
                functions.append(fn)
                links[r.at].append((f"{r.step}:{r.name}", fn, None))
        return links

    def _reach(self, model: ModelMeta, operation: Operation, item: bool) -> list[Link]:
        """The step for reached models, where any of them has middleware of its own or hidden rows."""
        guards = self.guards_of_reachable(model, operation, item=item)
        hidden = frozenset() if self._rules is None else self._rules.hidden_from(model, operation)
        if not guards and not hidden:
            return []
        hides_own = self._rules is not None and self._rules[model.cls].hides_rows
        return [("reach", None, Reach(model, operation, guards, hidden, hides_own=hides_own))]

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
            guards[meta] = self._nest([*links, (f"reach {meta.name}", None, let_pass)])
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

    def _matching(
        self, step: Step | SpecStep, model: ModelMeta | None, operation: Operation, item: bool
    ) -> list[Registration]:
        matching = _matching(step, model, operation, item=item)
        if self._trace.skips:
            target = model.name if model else "actions"
            for r in step.registrations:
                if r not in matching:
                    self._logger.debug("%s:%s does not apply to %s %s", r.step, r.name, operation, target)
        return matching

    def has_auth(self, operation: Operation) -> bool:
        """Whether middleware of the auth step stands before such a request, which is about no model."""
        return bool(in_order(self._pipeline.auth, None, operation, item=True))

    def replaces(self, step: str, model: ModelMeta, operation: Operation) -> bool:
        """Whether the application puts its own code in place of a default step, on one record."""
        registrations = getattr(self._pipeline, step).registrations
        return any(r.at is At.REPLACE and r.matches(model, operation, item=True) for r in registrations)

    def _nest(self, links: Sequence[Link]) -> Handler:
        handler: Handler | None = None
        run: list[Default] = []
        later: list[Middleware] = []
        for label, middleware, default in reversed(links):
            if middleware is not None:
                later.insert(0, middleware)
                if isinstance(middleware, Entry):
                    middleware = middleware.placed_before(later[1:])
                if isinstance(middleware, Admission) and type(middleware).__call__ is Admission.__call__:
                    default = middleware.admit
            if default is not None:
                run.insert(0, self._trace_default(label, default))
                continue
            if run:
                handler, run = InARow([*run, *(steps_of(handler) if handler else ())]), []
            assert middleware is not None
            traced_step = self._trace_middleware(label.removeprefix(REPLACES), self._as_async(middleware))
            handler = _wrap(traced_step, handler or _nothing, "" if isinstance(middleware, Entry) else label)
        return InARow([*run, *(steps_of(handler) if handler else ())])

    def _as_async(self, fn: Middleware) -> Callable[[Context, Any], Awaitable[None]]:
        if isinstance(fn, AnswersEarly) or is_async(fn):
            return fn  # type: ignore[return-value]  # both give something to await
        return SyncMiddleware(fn)

    def _trace_middleware(
        self, label: str, fn: Callable[..., Awaitable[None]]
    ) -> Callable[..., Awaitable[None]]:
        if not self._is_traced:
            return fn

        async def call_with_trace(ctx: Context, call_next: Any) -> None:
            await self._await_with_trace(label, ctx, fn(ctx, call_next))

        return call_with_trace

    def _trace_default(self, label: str, step: Default) -> Default:
        if not self._is_traced:
            return step

        async def call_with_trace(ctx: Context) -> None:
            async def run() -> None:
                outcome = step(ctx)
                if outcome is not None:
                    await outcome

            await self._await_with_trace(label, ctx, run())

        return call_with_trace

    async def _await_with_trace(self, label: str, ctx: Context, work: Awaitable[None]) -> None:
        start = time.perf_counter()
        if ctx.step_times is None and self._trace.on("timings"):
            ctx.step_times = StepTimes()
        if self._trace.on("steps"):
            ctx.logger.debug("→ %s", label)
        if self._trace.bodies and ctx._body is not None:
            ctx.logger.debug("  body of %s: %s", label, _names(ctx.body))
        try:
            if self._tracing is None:
                await work
            else:
                with self._tracing.step(label):
                    await work
        finally:
            if self._trace.on("timings"):
                seconds = time.perf_counter() - start
                ctx.logger.debug("← %s %.3f ms", label, seconds * 1000)
                if ctx.step_times is not None:
                    ctx.step_times.add(label, seconds)
            elif self._trace.on("steps"):
                ctx.logger.debug("← %s", label)


def _with_bytes_first(
    links: Sequence[Link], behind: Sequence[Link], defaults: Mapping[str, Default]
) -> list[Link]:
    """The links up to the deserialize step and those behind it, of which some may ask for bytes alone."""
    asking = [*takewhile(lambda link: isinstance(link[1], AnswersEarly) and link[1].asks_for_bytes, behind)]
    if not asking or links[-1][2] is not defaults["deserialize"]:
        return [*links, *behind]
    read, parse = defaults["read"], defaults["parse"]
    rest = behind[len(asking) :]
    return [*links[:-1], ("deserialize", None, read), *asking, ("deserialize", None, parse), *rest]


def _matching(
    step: Step | SpecStep, model: ModelMeta | None, operation: Operation, *, item: bool
) -> list[Registration]:
    """The registrations of a step for such a request, in the order they run in."""
    matching = [r for r in step.registrations if r.matches(model, operation, item=item)]
    return sorted(matching, key=_rank)


def _rank(r: Registration) -> int:
    return r.rank


def in_order(
    step: Step | SpecStep, model: ModelMeta | None, operation: Operation, *, item: bool
) -> list[tuple[Registration, Middleware]]:
    """The middleware of a step that runs for such a request; of several in its place, the last."""
    matching = [
        (r, fn)
        for r in _matching(step, model, operation, item=item)
        if (fn := r.middleware(model, operation)) is not None
    ]
    replacements = [pair for pair in matching if pair[0].at is At.REPLACE]
    before, after = ([pair for pair in matching if pair[0].at is at] for at in (At.BEFORE, At.AFTER))
    return [*before, *replacements[-1:], *after]


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
    return any(isinstance(fn, Entry) and fn.is_authenticator for _, fn in pairs)


_POSITIONS = {At.BEFORE: 0, At.REPLACE: 1, At.AFTER: 2}


def _is_for_reads(r: Registration, operation: Operation) -> bool:
    """Whether a step of the application's own stands in for reading records, so that it knows no history."""
    is_replacement = r.at is At.REPLACE and r.step != "auth" and operation is Operation.READ_HISTORY
    return is_replacement and Operation.READ_HISTORY not in (r.operations or ())


def opens(exemption: Middleware, step: Step | SpecStep, targets: Sequence[Target], *, item: bool) -> bool:
    """Whether an exemption counts for a request: it must be for all that this does to its own model.

    It must also be for the other targets, as far as those have authenticators of their own.
    """
    functions_of = [[fn for _, fn in in_order(step, *target, item=item)] for target in targets]
    own_model, own_functions = targets[0][0], functions_of[0]
    for (model, _), functions in zip(targets, functions_of, strict=True):
        demands = [fn for fn in functions if isinstance(fn, Entry) and fn.is_authenticator]
        if model is not own_model:
            demands = [fn for fn in demands if fn not in own_functions]
        if demands and exemption not in functions:
            return False
    return exemption in own_functions


def _names(body: Any) -> str:
    """The fields of a body, which an action may have declared as any type."""
    fields = body if isinstance(body, Mapping) else getattr(body, "__dict__", ())
    return ", ".join(sorted(map(str, fields))) or type(body).__name__


async def _nothing(ctx: Context) -> None:
    """The end of a chain whose last middleware calls `next()`."""


def _wrap(middleware: Callable[..., Awaitable[None]], handler: Handler, label: str) -> Handler:
    """The middleware before a handler; with a label, the request notes that it came this far."""

    name = label.removeprefix(REPLACES)

    def run(ctx: Context) -> Awaitable[None]:
        return middleware(ctx, partial(handler, ctx))

    def run_with_note(ctx: Context) -> Awaitable[None]:
        ctx.entered = label
        return middleware(ctx, partial(handler, ctx))

    def run_with_note_of_response(ctx: Context) -> Awaitable[None]:
        ctx.entered_response = label
        return middleware(ctx, partial(handler, ctx))

    def run_with_note_of_replacement(ctx: Context) -> Awaitable[None]:
        ctx.replaced_by = name
        return middleware(ctx, partial(handler, ctx))

    if not label:
        return run
    if label.startswith("response:"):
        return run_with_note_of_response
    return run_with_note_of_replacement if label.startswith(REPLACES) else run_with_note


class InARow:
    """Steps one after another, admissions among them; each gives something to await, or nothing."""

    def __init__(self, steps: Sequence[Default]) -> None:
        self.steps = tuple(steps)

    async def __call__(self, ctx: Context) -> None:
        for step in self.steps:
            outcome = step(ctx)
            if outcome is not None:
                await outcome


def steps_of(handler: Handler) -> tuple[Default, ...]:
    """The steps of a chain, for the caller to take one by one: a coroutine less for every request."""
    return handler.steps if isinstance(handler, InARow) else (handler,)


# The response step inside a transaction: run by middleware before the commit, and then not again.
#
# When a chain is composed, each `AnswersEarly` middleware in it gets the response step of its endpoint.
# Only the endpoints that have one check whether they were answered; the others run as they always did.


AnswerStep = Callable[[Context], Awaitable[None] | None]
AnswerOfRow = Callable[[Row], Response]


class EarlyAnswer:
    """The response step of one endpoint, which some middleware of it may have run already."""

    def __init__(self, steps: Sequence[AnswerStep], of_row: AnswerOfRow | None = None) -> None:
        self._steps = tuple(steps)
        self.of_row = of_row  # the answer to a create, where nothing but the stored row has a part in it
        self.has_takers = False

    def hand_to(self, links: Sequence[Any], defaults: Mapping[str, Default]) -> None:
        """Give the response step to those of these links, middleware and default steps, that run it."""
        for place, link in enumerate(links):
            if isinstance(link, AnswersEarly):
                link.take_place(self, before_row=links[place + 1 :] == [defaults.get("db")])
                self.has_takers = True

    async def run(self, ctx: Context) -> None:
        """Run the response step; it is not run again while its answer stands."""
        await self._answer(ctx)
        ctx.early_response = ctx.response

    async def _answer(self, ctx: Context) -> None:
        for step in self._steps:
            outcome = step(ctx)
            if outcome is not None:
                await outcome

    def __call__(self, ctx: Context) -> Awaitable[None] | None:
        """Be the response step of the endpoint, which has nothing to do while the early answer stands."""
        if ctx.response is not None and ctx.response is ctx.early_response:
            return None
        return self._steps[0](ctx) if len(self._steps) == 1 else self._answer(ctx)


class AnswersEarly:
    """Middleware that runs the response step itself, while its transaction is open."""

    early_answer: EarlyAnswer  # of the endpoint it stands in
    asks_for_bytes: ClassVar[bool] = False  # of the body, which it does not need to be parsed

    def __call__(self, ctx: Context, next: Callable[[], Awaitable[None]], /) -> Awaitable[None]:
        """A plain function: what it gives to await is `next()` itself where there is nothing to do."""
        raise NotImplementedError

    def take_place(self, early_answer: EarlyAnswer, *, before_row: bool) -> None:
        """Learn of the endpoint; `before_row`: all that comes behind is the built-in database step."""
        self.early_answer = early_answer

    async def enclose(self, ctx: Context, call: Callable[[], Awaitable[None]]) -> None:
        """Go around the handler of an action, whose request has been read and checked."""
        await call()


# How long the steps of one request took, and its statements: the header `Server-Timing`.
#
# The time of a middleware includes what it waits for (an admission waits for nothing behind it), so the
# times of a request do not add up to its own.


_NO_TOKEN = re.compile(r"[^A-Za-z0-9!#$%&'*+.^_`|~-]+")


class StepTimes:
    """The times of one request, in the order its steps ended."""

    __slots__ = ("_statements", "_statements_seconds", "_steps")

    def __init__(self) -> None:
        self._steps: list[tuple[str, float]] = []
        self._statements = 0
        self._statements_seconds = 0.0

    def add(self, label: str, seconds: float) -> None:
        self._steps.append((label, seconds))

    def add_statement(self, seconds: float) -> None:
        self._statements += 1
        self._statements_seconds += seconds

    def header(self) -> str:
        """The times as a browser shows them."""
        entries = [_entry(label, seconds, label) for label, seconds in self._steps]
        count = f"{self._statements} statement{'' if self._statements == 1 else 's'}"
        return ", ".join([*entries, _entry("database", self._statements_seconds, count)])


def _entry(label: str, seconds: float, description: str) -> str:
    name = _NO_TOKEN.sub("-", label).strip("-") or "step"
    quoted = description.encode("ascii", "replace").decode().replace("\\", "").replace('"', "")
    described = "" if description == name else f';desc="{quoted}"'
    return f"{name};dur={seconds * 1000:.3f}{described}"


def add_to_request(text: str, began: float, ended: float, error: BaseException | None) -> None:
    """Add a statement to the times of the request that asked for it."""
    times: StepTimes | None = getattr(asking.get(), "step_times", None)
    if times is not None:
        times.add_statement(ended - began)
