"""The write seam: listeners are told of every stored change inside the transaction of the write.

They are told of writes by requests, code, runs, cascades, circles that are restored together and
scheduled fields; not of raw SQL and migrations. What a listener raises rolls the write back. Rows
that were changed together come in batches, so memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from maniflex._caller import Source, caller
from maniflex.db.port import AfterCommit, Row, Tx
from maniflex.model.meta import ModelMeta
from maniflex.sql import cascade
from maniflex.sql.model import ModelSql

BATCH = 500  # rows that are in memory at once


class ChangeKind(StrEnum):
    """What was done to a row."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one row; without an id, of rows that no listener looks at.

    `before` is the row under the lock of this write, None for a new one; `after` is the row as it is
    stored now, None for one that was removed. Both are in the order of `meta.fields`, decoded.
    """

    meta: ModelMeta
    operation: ChangeKind
    id: str | None = None
    before: Row | None = None
    after: Row | None = None
    source: Source = Source.CODE


class ChangeListener(Protocol):
    """Something that is told of changes."""

    @property
    def needs_rows(self) -> bool:
        """Whether it looks at `id`, `before` and `after`; a model without such a listener reads none."""

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        """These changes of one model were written in this transaction, which has not ended."""


class Listened(Protocol):
    """The store of a model, as far as its listeners are concerned."""

    meta: ModelMeta
    sql: ModelSql
    decode: Callable[[Sequence[Any]], Sequence[Any]] | None
    listeners: Sequence[ChangeListener]
    needs_rows: bool


async def tell(
    store: Listened,
    operation: ChangeKind,
    tx: Tx,
    record_id: str | None = None,
    *,
    before: Row | None = None,
    after: Row | None = None,
    source: Source | None = None,
) -> None:
    """Tell the listeners of a model of one change; without a source, it is the caller's."""
    change = Change(store.meta, operation, record_id, before, after, source or caller().source)
    for listener in store.listeners:
        await listener.note_changes((change,), tx)


async def tell_rows(
    store: Listened,
    operation: ChangeKind,
    tx: Tx,
    rows: Sequence[Row],
    stamps: Mapping[str, Any] | None,
    source: Source | None = None,
) -> None:
    """Tell the listeners of rows that were all given `stamps`, or removed if that is None."""
    names, source = store.sql.names, source or caller().source
    id_place = names.index("id")
    changes = []
    for row in rows:
        after = None if stamps is None else [stamps.get(n, v) for n, v in zip(names, row, strict=True)]
        changes.append(Change(store.meta, operation, row[id_place], row, after, source))
    for listener in store.listeners if changes else ():
        await listener.note_changes(changes, tx)


async def images(store: Listened, tx: Tx, ids: Sequence[str]) -> list[Row]:
    """The rows of these ids, marked ones too, locked until the transaction ends."""
    rows = await tx.fetch(cascade.rows(store.sql, ids))
    return rows if store.decode is None else [store.decode(row) for row in rows]


def after_commit_once(tx: Tx, call: AfterCommit) -> None:
    """Run `call` after the commit, unless an equal one waits for it already."""
    if call not in getattr(tx, "_after_commit", ()):
        tx.after_commit(call)
