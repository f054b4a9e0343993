"""Entries of the feed that end streams.

A revocation is an entry like any other, so that it has a place among the events: none behind it reaches those
whom it names, on any replica.
"""

from __future__ import annotations

from maniflex.background.feed.capture import EventWriter
from maniflex.background.feed.groups import draft_of
from maniflex.db.current import current_tx
from maniflex.db.port import Executor, Tx
from maniflex.db.write_seam import after_commit_once
from maniflex.events.event import CONTROL, Event

REVOKED = f"{CONTROL}revoked"  # entries that end the streams of those whom they name


class Revocations:
    """Ends the streams of those whose leave is taken back; where there are no streams, nothing is written."""

    def __init__(self) -> None:
        self.is_used = False
        self._writer: EventWriter | None = None

    def attach(self, writer: EventWriter) -> None:
        """The feed is there."""
        self._writer = writer

    async def note(self, *, tx: Tx | None = None, **who: str | float | None) -> None:
        """Name those by `token_id`, `session_id`, `user_id` or `tenant_id`; several mean all of them.

        With `before`, a time stamp, tokens that were issued since are not meant. It joins the open
        transaction, or the one handed over.
        """
        writer = self._writer
        if not self.is_used or writer is None:
            return
        values = {name: value for name, value in who.items() if value is not None}
        event = Event.restore(type=REVOKED, data=values, source=writer.source, time=writer.now())
        adapter = writer.store.adapter
        open_tx = tx or current_tx(adapter)
        run: Executor = open_tx or adapter
        await run.write(writer.store.append(draft_of(event, writer.source)))
        if writer.notifies:
            await writer.store.notify(run)
        if open_tx is None:
            writer.wake()
        else:
            after_commit_once(open_tx, writer.wake)
