"""A request in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from maniflex.db.port import Isolation
from maniflex.pipeline.context import Context
from maniflex.pipeline.registration import Next


def with_transaction(isolation: Isolation | str | None = None) -> Callable[[Context, Next], Awaitable[None]]:
    """Middleware: everything after it shares one transaction, committed only if the request succeeds.

    Register it on the service step. An open transaction is joined, so registering it twice is fine.
    """

    async def transactional(ctx: Context, next: Next) -> None:
        async with ctx.transaction(isolation=isolation):
            await next()

    return transactional
