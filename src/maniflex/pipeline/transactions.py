"""A request in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from maniflex._names import did_you_mean
from maniflex.db.port import Isolation
from maniflex.errors import DeclarationError
from maniflex.pipeline.context import Context
from maniflex.pipeline.registration import Next


def with_transaction(isolation: Isolation | str | None = None) -> Callable[[Context, Next], Awaitable[None]]:
    """Middleware: everything after it shares one transaction, committed only if the request succeeds.

    Register it on the service step. An open transaction is joined, so registering it twice is fine.
    """
    level = None if isolation is None else _level(isolation)

    async def transactional(ctx: Context, next: Next) -> None:
        async with ctx.transaction(isolation=level):
            await next()

    transactional.opens_transaction = True  # type: ignore[attr-defined]  # for entries that must stand before
    return transactional


def _level(isolation: Isolation | str) -> Isolation:
    name = str(isolation).lower().replace("_", " ")
    levels = [level.value for level in Isolation]
    if name not in levels:
        hint = did_you_mean(name, levels) or f"; there are: {', '.join(levels)}"
        raise DeclarationError(f"with_transaction: there is no isolation level {isolation!r}{hint}")
    return Isolation(name)
