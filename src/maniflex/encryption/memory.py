"""A few opened values of this process, so that a page that is read again is not opened again.

A value is found by the whole stored text, which is its envelope, and only for the label and the record that
it was opened with: what was copied to another row or column, or changed by a letter, is opened as ever, and
fails. It is bounded by values and by bytes, is forgotten as a whole, and shows nothing of itself.
"""

from __future__ import annotations

from typing import TypeAlias

MOST_BYTES = 4 << 20  # of stored texts and values together
LONGEST = 4096  # bytes; a longer value is opened each time

Known: TypeAlias = tuple[str, object, str]  # the id of the record, the label, the value


class OpenedValues:
    """Opened values by their stored texts, in two generations: the older one goes as a whole."""

    __slots__ = ("_bytes", "_most", "_older", "recent")

    def __init__(self, most: int) -> None:
        self.recent: dict[str, Known] = {}
        self._older: dict[str, Known] = {}
        self._most = most
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def __repr__(self) -> str:
        return f"<{len(self)} values>"

    def find(self, stored: str, record_id: str, label: object) -> str | None:
        """A value that was not asked for lately."""
        known = self._older.pop(stored, None)
        if known is None or known[0] != record_id or known[1] != label:
            return None
        self.note(stored, record_id, label, known[2])
        return known[2]

    def note(self, stored: str, record_id: str, label: object, value: str) -> None:
        """Keep a value that has just been opened."""
        size = len(stored) + 4 * len(value)
        if not self._most or size > LONGEST:
            return
        if len(self.recent) >= self._most // 2 or self._bytes + size > MOST_BYTES // 2:
            self._older = self.recent.copy()
            self.recent.clear()  # the dict stays, which ciphers ask
            self._bytes = 0
        self.recent[stored] = (record_id, label, value)
        self._bytes += size

    def forget(self) -> None:
        """Keep nothing."""
        self.recent.clear()
        self._older = {}
        self._bytes = 0
