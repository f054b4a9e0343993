"""Middleware that has its say before a request goes on, and nothing to do afterwards.

In a chain it is a step in a row, where other middleware goes around all that comes behind it. That spares a
request two coroutines for each, and every wait for the database a way through them.
"""

from __future__ import annotations

from collections.abc import Awaitable

from maniflex.pipeline.context import Context
from maniflex.pipeline.registration import Next


class Admission:
    """Lets a request pass or refuses it."""

    def admit(self, ctx: Context) -> Awaitable[None] | None:
        """Let it pass, or raise; gives something to await only where that takes waiting."""
        raise NotImplementedError

    async def __call__(self, ctx: Context, next: Next) -> None:
        """Be middleware, where something else than a chain runs it."""
        outcome = self.admit(ctx)
        if outcome is not None:
            await outcome
        await next()
