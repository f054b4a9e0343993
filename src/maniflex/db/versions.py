"""The versions of the rows that a transaction has read, so that it overwrites no change it has not seen.

Under READ COMMITTED another transaction may change a row between our read and our write, and a value
computed from that read would undo its change. PostgreSQL gives every version of a row a number
(`xmin`): a transaction notes the number of each row that it reads without a lock, and its write of
that row asks for the same number. SQLite has one writer at a time, so nothing is noted there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
