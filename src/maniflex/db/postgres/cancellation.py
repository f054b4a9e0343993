"""Cancel on the server what is cancelled here, but never a commit.

A commit that waits for a synchronous standby cannot be undone any more. Cancelled there, it stops to wait:
what was written is shown, and who sends a request again is told that it happened, although it is lost with
the server. So a commit goes on, and its connection comes back when it has ended, or is closed. A write that
commits by itself is cancelled only while it does not wait for a standby; the server is asked for that, by a
connection of its own, in the moment of the cancellation: a standby may have come since the connection was
opened. Where no such connection can be had, the write goes on to the end of its time. A pooler hides which
process of the server is ours; behind one, such a write is just cancelled.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection

_WRITES = re.compile(r"\b(?:insert|update|delete|merge)\b", re.IGNORECASE)
# By its text too: through a balancer the new connection may lead to another server.
_CANCEL = (
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1"
    " AND left(query, 200) = left($2, 200) AND wait_event IS DISTINCT FROM 'SyncRep'"
)
_WITHIN = 5.0


class ServerConnection(_Base):
    """A connection that knows when it commits."""

    __slots__ = ("connect_again", "is_committing", "text")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.connect_again: Callable[[], Awaitable[ServerConnection]] | None = None  # not behind a pooler
        self.is_committing = False
        self.text = ""  # of the statement that runs, or ran last

    def _cancel_current_command(self, sent: asyncio.Future[None], *more: Any) -> None:
        """The driver's way to cancel a statement; `sent` is done when the server was told."""
        if self.is_committing:
            sent.set_result(None)
        elif self.connect_again is None or self.is_in_transaction() or not _WRITES.search(self.text):
            super()._cancel_current_command(sent, *more)  # type: ignore[misc]  # the driver does not declare it
        else:
            inner: Any = self
            connecting = self.connect_again()
            cancelling = self._loop.create_task(self._cancel_unless_committing(sent, connecting))  # type: ignore[attr-defined]
            inner._cancellations.add(cancelling)
            cancelling.add_done_callback(inner._cancellations.discard)

    async def _cancel_unless_committing(
        self, sent: asyncio.Future[None], connecting: Awaitable[ServerConnection]
    ) -> None:
        pid, text = self.get_server_pid(), self.text
        try:
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                async with asyncio.timeout(_WITHIN):
                    other = await connecting
                    try:
                        await other.execute(_CANCEL, pid, text)
                    finally:
                        other.terminate()
        finally:
            if not sent.done():
                sent.set_result(None)
