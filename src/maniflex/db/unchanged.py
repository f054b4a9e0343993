"""Writes of rows that the same transaction has read: only if no other has changed them since.

A row this transaction wrote itself after it read it may be written again, and so may one that it
locked, provided that no other transaction changed it between the read and that write or lock. On a
database or in a transaction where no versions are noted, a write is just a write.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from maniflex.db.port import Tx
from maniflex.errors import SerializationFailure, TransactionError
from maniflex.sql import select
from maniflex.sql.model import ModelSql
from maniflex.sql.where import Scope

if TYPE_CHECKING:
    from maniflex.db.port import Executor, Row

T = TypeVar("T")


def versions_read(model: ModelSql, run: Executor) -> TableVersions | None:
    """The versions of the model's rows that were read here; None where none are noted."""
    versions = run.read_versions
    return None if versions is None or not model.versioned else versions.of(model.meta.table)


def forget_version(model: ModelSql, record_id: str, run: Executor) -> None:
    """The row was written or locked here: no other transaction can change it until this one ends."""
    versions = versions_read(model, run)
    if versions is not None:
        versions.forget(record_id)


async def write_unchanged(
    model: ModelSql, record_id: str, run: Executor, write: Callable[[int | None], Awaitable[T]]
) -> T:
    """Call `write` with the version the row must have, or None; its result says whether it had it."""
    versions = versions_read(model, run)
    if versions is None:
        return await write(None)
    version = await _version_to_match(model, record_id, run, versions)
    outcome = await write(version)
    if not outcome and version is not None and await _hold_unchanged(model, record_id, run, version):
        outcome = await write(None)
    if outcome:
        versions.forget(record_id)
    return outcome


async def lock_unchanged(model: ModelSql, record_id: str, tx: Tx, scope: Scope) -> Row | None:
    """The live row, locked until the transaction ends, provided that it is as this transaction read it."""
    versions = versions_read(model, tx)
    version = None if versions is None else await _version_to_match(model, record_id, tx, versions)
    if versions is not None and version is not None:
        row = await tx.fetch_one(select.one(model, record_id, scope, for_update=True, versioned=True))
        if row is not None and row[-1] == version:
            versions.forget(record_id)
            return row[:-1]
        if not await _hold_unchanged(model, record_id, tx, version):
            return None
        versions.forget(record_id)
    return await tx.fetch_one(select.one(model, record_id, scope, for_update=True))


async def lock_as_read(model: ModelSql, record_id: str, tx: Tx, scope: Scope) -> Row | None:
    """The live row, locked until the transaction ends; waits for a transaction that holds it.

    `SerializationFailure` if another transaction has changed it since this one read it: the code has two
    records in hand then, and we cannot know from which of them it computes what it writes.
    """
    versions = versions_read(model, tx)
    version = None if versions is None else versions.get(record_id)
    if versions is None or version is None:
        return await tx.fetch_one(select.one(model, record_id, scope, for_update=True))
    if version == CHANGED:
        raise _collision(model, record_id, tx)
    row = await tx.fetch_one(select.one(model, record_id, scope, for_update=True, versioned=True, wait=True))
    if row is None:
        return None
    if row[-1] != version:
        await _hold_unchanged(model, record_id, tx, version)
    versions.forget(record_id)
    return row[:-1]


async def hold_changed(model: ModelSql, record_id: str, run: Executor, *, live: bool = True) -> bool:
    """Lock a row that this transaction has read, and say whether another has changed it since.

    Nothing is locked, and nothing said, of a row that was not read or is not there.
    """
    versions = versions_read(model, run)
    version = None if versions is None else versions.get(record_id)
    if versions is None or version is None:
        return False
    row = await run.fetch_one(select.version(model, record_id, hold=True, wait=True, live=live))
    if row is None:
        return False
    versions.forget(record_id)
    return not (row[0] == version or (row[1] and version != CHANGED))


def mark_changed(model: ModelSql, record_ids: Sequence[str], run: Executor) -> None:
    """A later write of these rows from what this transaction has read of them is a collision."""
    versions = versions_read(model, run)
    for record_id in record_ids if versions is not None else ():
        cast(TableVersions, versions).mark_changed(record_id)


def changed_rows(model: ModelSql, rows: Sequence[Row], run: Executor) -> list[str]:
    """Of rows that are locked here (id, version, whether this transaction wrote it), those that another
    transaction has changed since this one read them."""
    versions = versions_read(model, run)
    if versions is None:
        return []
    rows_read = [(row, version) for row in rows if (version := versions.get(row[0])) is not None]
    return [r[0] for r, version in rows_read if not (r[1] == version or (r[2] and version != CHANGED))]


def has_read(model: ModelSql, run: Executor) -> bool:
    """Whether this transaction has read rows of the model whose versions count."""
    return bool(versions_read(model, run))


def refuse_changed(model: ModelSql, record_ids: Sequence[str], run: Executor) -> None:
    """`SerializationFailure` if there is any of these rows, which have changed since they were read."""
    for record_id in record_ids:
        raise _collision(model, record_id, run)


def _collision(model: ModelSql, record_id: str, run: Executor) -> SerializationFailure:
    # As after a collision that the database notices, nothing of this transaction may be kept.
    cast(Tx, run).doom()
    message = "the record has changed since this transaction read it; try again"
    return SerializationFailure(message, model=model.meta.name, record_id=record_id)


async def _version_to_match(
    model: ModelSql, record_id: str, run: Executor, versions: TableVersions
) -> int | None:
    """The version a write has to ask for; None when this transaction has not read the row."""
    version = versions.get(record_id)
    if version == CHANGED:
        raise _collision(model, record_id, run)
    if version is None and not versions.complete:
        row = await run.fetch_one(select.version(model, record_id))
        if row is not None and not row[1]:
            raise TransactionError(
                "TX_TOO_MANY_READS",
                f"this transaction has read more than {KEPT} records of {model.meta.name} and does not"
                f" know any more whether {record_id} has changed since; lock it with lock_for_update"
                " before you write it, or use smaller transactions",
            )
    return version


async def _hold_unchanged(model: ModelSql, record_id: str, run: Executor, version: int) -> bool:
    """Lock a row that is of that version, or of one this transaction wrote; False if there is no such row.

    `SerializationFailure` if another transaction has changed it, or holds it and is about to.
    """
    row = await run.fetch_one(select.version(model, record_id, hold=True))
    if row is None and await run.fetch_one(select.version(model, record_id)) is None:
        return False
    if row is None or not (row[0] == version or row[1]):
        raise _collision(model, record_id, run)
    return True


# The versions of the rows that a transaction has read, so that it overwrites no change it has not seen.
#
# Under READ COMMITTED another transaction may change a row between our read and our write, and a value
# computed from that read would undo its change. PostgreSQL gives every version of a row a number
# (`xmin`): a transaction notes the number of each row that it reads without a lock, and its write of that
# row asks for the same number. SQLite has one writer at a time, so nothing is noted there.


CHANGED = -1  # no version: another transaction has changed the row since it was read here
KEPT = 50_000  # rows of one table; between one and two times as many are remembered


class TableVersions:
    """The versions of rows of one table, by id; those read longest ago are dropped first."""

    __slots__ = ("_earlier", "_recent", "complete")

    def __init__(self) -> None:
        self._earlier: dict[str, int] = {}
        self._recent: dict[str, int] = {}
        self.complete = True  # no version was dropped: a row that is not here was not read

    def note(self, record_id: str, version: int) -> None:
        """Remember the version of a row; of one that was read before, the first version stays."""
        self._recent.setdefault(record_id, version)
        self._drop_oldest()

    def note_rows(self, rows: Sequence[Sequence[Any]], id_place: int, version_place: int) -> None:
        """Remember the versions of rows that have their id and their version in these places."""
        for start in range(0, len(rows), KEPT):
            first = self._recent.setdefault
            for row in rows[start : start + KEPT] if len(rows) > KEPT else rows:
                first(row[id_place], row[version_place])
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        if len(self._recent) > KEPT:
            self.complete = self.complete and not self._earlier
            self._earlier, self._recent = self._recent, {}

    def get(self, record_id: str) -> int | None:
        """The version that was read; None when the row was not read, or its version was dropped."""
        version = self._earlier.get(record_id)
        return self._recent.get(record_id) if version is None else version

    def mark_changed(self, record_id: str) -> None:
        """Another transaction has changed the row since: what was computed from it must not be written."""
        self.forget(record_id)
        self.note(record_id, CHANGED)

    def forget(self, record_id: str) -> None:
        """The row is locked or written by this transaction: no other can change it any more."""
        self._recent.pop(record_id, None)
        self._earlier.pop(record_id, None)

    def __bool__(self) -> bool:
        return bool(self._recent or self._earlier)


class ReadVersions:
    """The versions of all rows that one transaction has read without a lock."""

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: dict[str, TableVersions] = {}

    def of(self, table: str) -> TableVersions:
        versions = self._tables.get(table)
        if versions is None:
            versions = self._tables[table] = TableVersions()
        return versions
