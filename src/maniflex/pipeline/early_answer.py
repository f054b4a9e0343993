"""The response step inside a transaction: run by middleware before the commit, and then not again.

When a chain is composed, each `AnswersEarly` middleware in it gets the response step of its endpoint. Only
the endpoints that have one check whether they were answered; the others run as they always did.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from maniflex.pipeline.context import Context

Step = Callable[[Context], Awaitable[None] | None]


class EarlyAnswer:
    """The response step of one endpoint, which some middleware of it may have run already."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = tuple(steps)
        self.has_takers = False

    def hand_to(self, chain: Iterable[Any]) -> None:
        """Give the response step to the middleware of a chain that runs it itself."""
        for middleware in chain:
            if isinstance(middleware, AnswersEarly):
                middleware.early_answer = self
                self.has_takers = True

    async def run(self, ctx: Context) -> None:
        """Run the response step; it is not run again while its answer stands."""
        for step in self._steps:
            outcome = step(ctx)
            if outcome is not None:
                await outcome
        ctx.early_response = ctx.response

    async def __call__(self, ctx: Context) -> None:
        """Be the response step of the endpoint, which has nothing to do while the early answer stands."""
        if ctx.response is None or ctx.response is not ctx.early_response:
            for step in self._steps:
                outcome = step(ctx)
                if outcome is not None:
                    await outcome


class AnswersEarly:
    """Middleware that runs the response step itself, while its transaction is open."""

    early_answer: EarlyAnswer  # of the endpoint it stands in

    async def enclose(self, ctx: Context, call: Callable[[], Awaitable[None]]) -> None:
        """Go around the handler of an action, whose request has been read and checked."""
        await call()
