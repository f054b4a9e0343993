"""Changes of tables that others use: a change that waits too long for its lock gives up and tries again.

All statements on a table queue up behind one that waits for a strong lock, so that wait is short.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from maniflex.db.current import transaction
from maniflex.db.port import Adapter, Tx
from maniflex.errors import SerializationFailure, Timeout, Unavailable
from maniflex.sql.statement import Sql

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5  # seconds between two tries


@dataclass(frozen=True, slots=True)
class LockLimits:
    """How long a change waits for its lock, and how often it tries."""

    lock_timeout: timedelta
    tries: int


class LockNotFree(Unavailable):
    """Others held the lock of a table in all tries; nothing was changed."""


async def change_tables(
    adapter: Adapter,
    work: Callable[[Tx], Awaitable[None]],
    limits: LockLimits,
    on_wait: Callable[[int], None] | None = None,
) -> None:
    """Run `work` in a transaction that waits for locks only so long, and again when it was too long.

    `on_wait` is told of each try that was in vain and is not the last.
    """
    milliseconds = max(1, limits.lock_timeout // timedelta(milliseconds=1))
    for attempt in range(1, limits.tries + 1):
        try:
            async with transaction(adapter) as tx:
                await lift_timeouts(tx)
                await tx.execute(Sql(f"SET LOCAL lock_timeout = {milliseconds}"))
                await work(tx)
            return
        except (Timeout, SerializationFailure) as error:
            if isinstance(error, Timeout) and error.limit != "lock_timeout":
                raise
            if attempt == limits.tries:
                raise LockNotFree(
                    f"another session held the lock of a table in all {attempt} tries of {milliseconds} ms;"
                    " this step changed nothing. Find it in pg_stat_activity, and begin again"
                ) from error
        if on_wait is not None:
            on_wait(attempt)
        await asyncio.sleep(random.uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE))


async def lift_timeouts(tx: Tx) -> None:
    """Let this transaction take as long as it needs."""
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        await tx.execute(Sql(f"SET LOCAL {name} = 0"))
