"""The write seam: listeners are told of stored changes inside the transaction of the write.

A listener is told of writes by requests, code, cascades, circles that are restored together and scheduled
fields; not of raw SQL and migrations. What it raises rolls the write back. For now a change names its model
and what was done; `before` and `after` are for images of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from maniflex.db.port import AfterCommit, Row, Tx
from maniflex.model.meta import ModelMeta


class ChangeKind(StrEnum):
    """What was done to a row."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one row; without an id, of rows that were changed together."""

    meta: ModelMeta
    kind: ChangeKind
    id: str | None = None
    before: Row | None = None
    after: Row | None = None


class ChangeListener(Protocol):
    """Something that is told of changes."""

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        """These changes were written in this transaction, which has not ended."""


class Listened(Protocol):
    """The store of a model, as far as its listeners are concerned."""

    meta: ModelMeta
    listeners: Sequence[ChangeListener]


async def tell(
    store: Listened, kind: ChangeKind, tx: Tx, record_id: str | None = None, after: Row | None = None
) -> None:
    """Tell the listeners of a model of one change."""
    change = Change(store.meta, kind, record_id, after=after)
    for listener in store.listeners:
        await listener.note_changes((change,), tx)


def after_commit_once(tx: Tx, call: AfterCommit) -> None:
    """Run `call` after the commit, unless an equal one waits for it already."""
    if call not in getattr(tx, "_after_commit", ()):
        tx.after_commit(call)
