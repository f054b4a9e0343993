"""The outcomes of a batch as they come in, to be written down in parts."""

from __future__ import annotations

from collections.abc import Iterable

from maniflex.background.outbox.store import Batch, Change, Claimed, Settlement


class Ledger:
    """What is known of the messages of one batch; those without an outcome are open."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._open = {message.id: message for message in batch.messages}
        self._delivered: list[str] = []
        self._changes: list[Change] = []

    def deliver(self, message: Claimed) -> None:
        """The message was delivered."""
        self._delivered.append(message.id)

    def change(self, made: Change) -> None:
        """The message was not delivered and becomes this."""
        self._changes.append(made)

    @property
    def unsaid(self) -> int:
        """How many outcomes are not part of any settlement yet."""
        return len(self._delivered) + len(self._changes)

    @property
    def is_done(self) -> bool:
        """Whether every message has an outcome that is part of a settlement."""
        return not self._open

    def without_outcome(self, under_way: Iterable[Claimed] = ()) -> list[Claimed]:
        """The messages nothing came of yet, except for those that are being delivered."""
        if self.unsaid == len(self._open):
            return []
        known = {*self._delivered, *(made.id for made in self._changes)}
        known.update(message.id for message in under_way)
        return [message for id, message in self._open.items() if id not in known]

    def cut(self) -> Settlement | None:
        """The outcomes since the last cut; keys are free of which nothing is open any more."""
        if not self.unsaid:
            return None
        delivered, self._delivered = self._delivered, []
        changes, self._changes = self._changes, []
        said = [self._open.pop(id) for id in (*delivered, *(made.id for made in changes))]
        keys = {message.key for message in said} - {message.key for message in self._open.values()}
        return Settlement(self.batch, delivered, changes, said, [key for key in keys if key is not None])
