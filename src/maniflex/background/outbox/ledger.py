"""The outcomes of a batch as they come in, to be written down in parts."""

from __future__ import annotations

from collections.abc import Iterable

from maniflex.background.outbox.rows import Batch, ClaimedMessage, MessageChange, Settlement


class Ledger:
    """The outcomes of the messages of one batch; messages without an outcome are open."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._open = {message.id: message for message in batch.messages}
        self._delivered: list[str] = []
        self._changes: list[MessageChange] = []

    def deliver(self, message: ClaimedMessage) -> None:
        """The message was delivered."""
        self._delivered.append(message.id)

    def change(self, change: MessageChange) -> None:
        """The message was not delivered and its row changes like this."""
        self._changes.append(change)

    @property
    def unsettled_count(self) -> int:
        """How many outcomes are not part of any settlement yet."""
        return len(self._delivered) + len(self._changes)

    @property
    def is_done(self) -> bool:
        """Whether every message has an outcome that is part of a settlement."""
        return not self._open

    def without_outcome(self, under_way: Iterable[ClaimedMessage] = ()) -> list[ClaimedMessage]:
        """The messages without an outcome, except for those that are being delivered."""
        if self.unsettled_count == len(self._open):
            return []
        excluded_ids = {*self._delivered, *(change.id for change in self._changes)}
        excluded_ids.update(message.id for message in under_way)
        return [message for id, message in self._open.items() if id not in excluded_ids]

    def cut(self) -> Settlement | None:
        """The outcomes since the last cut; a key is free when no message of it is open any more."""
        if not self.unsettled_count:
            return None
        delivered_ids, self._delivered = self._delivered, []
        changes, self._changes = self._changes, []
        messages = [self._open.pop(id) for id in (*delivered_ids, *(change.id for change in changes))]
        keys = {message.key for message in messages} - {message.key for message in self._open.values()}
        return Settlement(
            self.batch, delivered_ids, changes, messages, [key for key in keys if key is not None]
        )
