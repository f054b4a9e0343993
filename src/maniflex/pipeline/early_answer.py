"""The response step inside a transaction: run by middleware before the commit, and then not again.

When a chain is composed, each `AnswersEarly` middleware in it gets the response step of its endpoint. Only
the endpoints that have one check whether they were answered; the others run as they always did.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from maniflex.pipeline.context import Context

Step = Callable[[Context], Awaitable[None] | None]


class EarlyAnswer:
    """The response step of one endpoint, which some middleware of it may have run already."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = tuple(steps)
        self.has_takers = False

    @property
    def only_step(self) -> Step | None:
        """The response step itself, where nothing else has a part in the answer."""
        return self._steps[0] if len(self._steps) == 1 else None

    def hand_to(self, chain: Sequence[tuple[Any, Step | None]]) -> None:
        """Give the response step to the middleware of a chain, of that and of default steps, that runs it."""
        for place, (middleware, _) in enumerate(chain):
            if isinstance(middleware, AnswersEarly):
                rest = chain[place + 1 :]
                middleware.take_place(self, rest[0][1] if len(rest) == 1 else None)
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

    def __call__(self, ctx: Context, next: Callable[[], Awaitable[None]], /) -> Awaitable[None]:
        """A plain function: what it gives to await is `next()` itself where there is nothing to do."""
        raise NotImplementedError

    def take_place(self, early_answer: EarlyAnswer, next_step: Step | None) -> None:
        """Learn of the endpoint; `next_step` is given where it is all that comes behind."""
        self.early_answer = early_answer

    def take_over(self, step: Step, run: Step) -> bool:
        """Whether it runs the default step before it by itself; `run` is that step, with its trace if any."""
        return False

    async def enclose(self, ctx: Context, call: Callable[[], Awaitable[None]]) -> None:
        """Go around the handler of an action, whose request has been read and checked."""
        await call()
