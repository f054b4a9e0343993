"""A few opened values of this process, so that a page that is read again is not opened again.

A value is found by its field and its record, and is given only for the whole stored text that it was opened
from: what was copied to another row or column, or changed by a letter, is opened as ever, and fails. The
memory is bounded by values and by bytes, is forgotten as a whole, and shows nothing of itself.
"""

from __future__ import annotations

from collections.abc import Hashable

MOST_BYTES = 4 << 20  # of stored texts and values together
LONGEST = 4096  # bytes; a longer value is opened each time


class OpenedValues:
    """Opened values of all fields, in two generations: the older one goes as a whole."""

    __slots__ = ("_bytes", "_fields", "_recent", "most")

    def __init__(self, most: int) -> None:
        self._fields: dict[Hashable, OpenedField] = {}
        self.most = most
        self._recent = 0  # values of the recent generation
        self._bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._fields.values()))

    def __repr__(self) -> str:
        return f"<{len(self)} values>"

    def of(self, label: Hashable) -> OpenedField:
        """What is remembered of the field with this label."""
        return self._fields.setdefault(label, OpenedField(self))

    def make_room(self, size: int) -> bool:
        """Let the older generation go if a value of this size needs it; False where none may be kept."""
        if not self.most or size > LONGEST:
            return False
        if self._recent >= self.most // 2 or self._bytes + size > MOST_BYTES // 2:
            for one in self._fields.values():
                one.grow_old()
            self._recent = self._bytes = 0
        self._recent += 1
        self._bytes += size
        return True

    def forget(self) -> None:
        """Keep nothing."""
        for one in self._fields.values():
            one.grow_old()
            one.grow_old()
        self._recent = self._bytes = 0


class OpenedField:
    """Opened values of one field: by the id of its record, what was opened and what it was opened from."""

    __slots__ = ("_all", "_older", "recent")

    def __init__(self, every: OpenedValues) -> None:
        self._all = every
        self.recent: dict[str, tuple[str, str]] = {}  # stored text and value
        self._older: dict[str, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def find(self, stored: str, record_id: str) -> str | None:
        """The value that was opened from this text of this record."""
        known = self.recent.get(record_id)
        if known is not None and known[0] == stored:
            return known[1]
        known = self._older.get(record_id)
        if known is None or known[0] != stored:
            return None
        self.note(stored, record_id, known[1])
        return known[1]

    def note(self, stored: str, record_id: str, value: str) -> None:
        """Keep a value that has just been opened, in the place of an earlier one of its record."""
        self.recent.pop(record_id, None)
        self._older.pop(record_id, None)
        if self._all.make_room(len(stored) + 4 * len(value)):
            self.recent[record_id] = (stored, value)

    def grow_old(self) -> None:
        """Drop the older values, and let the recent ones be those."""
        self._older, self.recent = self.recent, {}
