"""Compose the steps of an endpoint into one callable, once, when the server is sealed.

Five steps nest: what a middleware awaits as `next()` is all that comes after it, up to and including
the database. The response step runs after them, also when one of them refused the request, so its
middleware sees every answer. An endpoint without middleware is just its default steps in a row, and
middleware that is an `Admission` is one more step in it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import takewhile
from typing import Any, ClassVar

from maniflex._callables import is_async
from maniflex._caller import asking
from maniflex.config import Trace
from maniflex.db.port import Row
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import AuthEntry, Entry
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
    demands_identity,
    is_exemption,
)
from maniflex.pipeline.response import Response
from maniflex.pipeline.threads import Call

Handler = Callable[[Context], Awaitable[None]]
Default = Callable[[Context], Awaitable[None] | None]
REPLACES = "in place of "
Link = tuple[str, Middleware | None, Default | None]  # a label, and middleware or a default step
Target = tuple[ModelMeta | None, Operation]  # what a request is for, as registrations match it


_PARTS = {"parse": "deserialize"}  # defaults that are a part of another
_NO_LINKS: dict[At, list[Link]] = {at: [] for at in At}


class StepPlace(Enum):
    """Where a step goes that stands beside a default one."""

    FIRST = "before all middleware of the step"
    BEHIND = "behind the default step, or what replaces it"
    BEHIND_REPLACED = "behind what replaces the default step, where it is replaced"
    LAST = "behind all middleware of the step"


@dataclass(frozen=True, slots=True)
class AddedStep:
    """A step of one endpoint beside its default ones."""

    run: Default
    step: str  # the name of the one it stands beside
    place: StepPlace


MakeStep = Callable[[ModelMeta, Operation, bool], Default | None]  # for one record, or for many


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
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._is_traced = tracing is not None or trace.on("steps") or trace.on("timings") or trace.bodies
        self._brought: list[tuple[str, StepPlace, str, MakeStep]] = []
        self._pipeline = pipeline
        self._trace = trace
        self._logger = logger

    def bring(self, step: str, place: StepPlace, label: str, make: MakeStep) -> None:
        """Add a step to every endpoint of a model that has the named one, where `make` gives it for that."""
        self._brought.append((step, place, label, make))

    def steps(
        self,
        names: Sequence[str],
        defaults: Mapping[str, Default | AddedStep],
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
        A default that is an `AddedStep` goes to its place, and so does what was brought for all endpoints.
        Middleware that reads the bytes of a body itself goes before the deserialize step it came right
        behind, if the defaults have a "parse" for a body that was read.
        """
        _require_places(names, defaults)
        own = {name: one for name, one in defaults.items() if not isinstance(one, AddedStep)}
        links: list[Link] = [(label, fn, None) for label, fn in outer]
        targets = ((model, operation), *also)
        for name in names:
            step: Step | SpecStep | None = getattr(self._pipeline, name, None)
            links_at = self._links(step, targets, item) if step else _NO_LINKS
            links_of = self._added_links(name, defaults, model, operation, item)
            links += links_of[StepPlace.FIRST] + links_at[At.BEFORE]
            if name == names[-1]:
                links += [(label, fn, None) for label, fn in inner]
            if links_at[At.REPLACE]:
                label, fn, _ = links_at[At.REPLACE][-1]
                links.append((REPLACES + label if name == "db" else label, fn, None))
                links += links_of[StepPlace.BEHIND_REPLACED]
            elif name in own:
                links.append((name, None, self._wrap_default(step, own[name], model, operation, item)))
            links += links_of[StepPlace.BEHIND]
            if name == "deserialize" and "parse" in own:
                links = _with_bytes_first(links, links_at[At.AFTER], own)
            else:
                links += links_at[At.AFTER]
            links += links_of[StepPlace.LAST]
        if early_answer is not None:
            early_answer.hand_to([middleware or default for _, middleware, default in links], own)
        return self.nest(links)

    def _added_links(
        self,
        name: str,
        defaults: Mapping[str, Default | AddedStep],
        model: ModelMeta | None,
        operation: Operation,
        item: bool,
    ) -> dict[StepPlace, list[Link]]:
        """The steps beside the named one, by their place."""
        links: dict[StepPlace, list[Link]] = {place: [] for place in StepPlace}
        for label, one in defaults.items():
            if isinstance(one, AddedStep) and one.step == name:
                links[one.place].append((label, None, one.run))
        for step, place, label, make in self._brought if model is not None else ():
            run = make(model, operation, item) if step == name and model is not None else None
            if run is not None:
                links[place].append((label, None, run))
        return links

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

    def nest(self, links: Sequence[Link]) -> Handler:
        """One callable of all these."""
        handler: Handler | None = None
        run: list[Default] = []
        later: list[Middleware] = []
        openers = [middleware for _, middleware, _ in links if isinstance(middleware, AuthEntry)]
        for label, middleware, default in reversed(links):
            if isinstance(middleware, Entry) and any(one.silences(middleware) for one in openers):
                continue  # as the description of the route says
            if middleware is not None:
                later.insert(0, middleware)
                if isinstance(middleware, AuthEntry):
                    middleware = middleware.placed_before(later[1:])
                if isinstance(middleware, Admission) and type(middleware).__call__ is Admission.__call__:
                    default = middleware.admit
            if default is not None:
                run.insert(0, self._trace_default(label, default))
                continue
            if run:
                handler, run = _in_a_row([*run, *(steps_of(handler) if handler else ())]), []
            assert middleware is not None
            traced_step = self._trace_middleware(label.removeprefix(REPLACES), self._as_async(middleware))
            is_ours = isinstance(middleware, Entry | AnswersEarly)
            handler = _wrap(traced_step, handler or _nothing, "" if is_ours else label)
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
    """The links up to the deserialize step and those behind it, before which readers of bytes go."""
    readers = [*takewhile(lambda link: isinstance(link[1], AnswersEarly) and link[1].reads_bytes, behind)]
    if not readers or links[-1][2] is not defaults["deserialize"]:
        return [*links, *behind]
    for _, middleware, _ in readers:
        assert isinstance(middleware, AnswersEarly)
        middleware.parse = defaults["parse"]
    return [*links[:-1], *readers, links[-1], *behind[len(readers) :]]


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
        demands = [fn for fn in functions if demands_identity(fn)]
        if model is not own_model:
            demands = [fn for fn in demands if fn not in own_functions]
        if demands and exemption not in functions:
            return False
    return exemption in own_functions


def _require_places(names: Sequence[str], defaults: Mapping[str, Default | AddedStep]) -> None:
    """Refuse a step that has no place in the chain: one that judges rows would be left out unnoticed."""
    for label, default in defaults.items():
        name = default.step if isinstance(default, AddedStep) else _PARTS.get(label, label)
        if name not in names:
            raise ValueError(f"the step {label!r} has no place: there is no step {name!r} among {names}")


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


def _in_a_row(steps: Sequence[Default]) -> Handler:
    """What `next()` of a middleware awaits: one step that is a coroutine already is that step itself."""
    if len(steps) == 1 and is_async(steps[0]):
        return steps[0]  # type: ignore[return-value]  # so it always gives something to await
    return InARow(steps)


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
    reads_bytes: ClassVar[bool] = False  # of the body, which it does not need to be parsed
    parse: Default | None = None  # where it stands before the step that reads bodies: what parses them

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
