"""Which partitions of messages a statement of a relay looks into, and the statements narrowed to them.

PostgreSQL locks every partition that the plan of a statement has, used or not. Only bounds that are part of
the text keep a partition out of the plan. So the keeper finds the partitions where nothing is pending, and
the statements get a condition that leaves out the ids of those. It names no table, so it stays right when
partitions are made or dropped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence

from maniflex.background.partitions.layout import PartitionLayout
from maniflex.sql.statement_files import NamedStatement

FULL_LOOK_EVERY = 1.0  # seconds
MOST_RANGES = 16  # of ids in one condition; where more would be left out, statements look everywhere
_MOST_STATEMENTS = 100  # sets of partitions come and go
_OPEN = re.compile(r"/\* open (\w+) \*/")


class OpenPartitions:
    """What the keeper last saw, and the statements by name, each on all messages or the open partitions."""

    def __init__(self, statements: Mapping[str, NamedStatement]) -> None:
        self._whole = statements
        self._narrow: dict[str, NamedStatement] = {}
        self._closed: tuple[tuple[str, str], ...] = ()  # ranges of ids, from the first and below the second
        self._full_look_at = float("-inf")  # by the monotonic clock

    def learn(self, layout: PartitionLayout | None, open: Iterable[str]) -> None:
        """Take in how messages are partitioned now, and where some may be pending within seconds."""
        ranges = [] if layout is None else _closed_ranges(layout, set(open))
        self._close(tuple(ranges) if len(ranges) <= MOST_RANGES else ())

    def statement(self, name: str, ids: Sequence[str] = ()) -> NamedStatement:
        """The statement on the open partitions; on all messages when one of these is in another."""
        whole = self._whole[name]
        return self.narrow(whole) if self._closed and not self._has_closed(ids) else whole

    def narrow(self, whole: NamedStatement) -> NamedStatement:
        """The same statement on the open partitions."""
        if not self._closed:
            return whole
        statement = self._narrow.get(whole.text)
        if statement is None:
            if len(self._narrow) >= _MOST_STATEMENTS:
                self._narrow.clear()
            statement = NamedStatement(_OPEN.sub(self._condition, whole.text), whole.names)
            self._narrow[whole.text] = statement
        return statement

    def is_full_look_due(self) -> bool:
        """Whether a claim is to look at all messages: once a second, as one of long ago may be back."""
        if not self._closed:
            return True
        now = time.monotonic()
        if now - self._full_look_at < FULL_LOOK_EVERY:
            return False
        self._full_look_at = now
        return True

    def note_claimed(self, ids: Sequence[str]) -> None:
        """Look everywhere until the keeper has looked again, when one was found where nothing was pending."""
        if self._closed and self._has_closed(ids):
            self.look_everywhere()

    def look_everywhere(self) -> None:
        """Leave nothing out until the keeper has looked again."""
        self._close(())

    def _close(self, ranges: tuple[tuple[str, str], ...]) -> None:
        if ranges != self._closed:
            self._closed = ranges
            self._narrow.clear()

    def _has_closed(self, ids: Sequence[str]) -> bool:
        return any(lower <= id < upper for lower, upper in self._closed for id in ids)

    def _condition(self, place: re.Match[str]) -> str:
        column = f"{place[1]}.id"
        return " ".join(
            f"AND ({column} < '{lower}' OR {column} >= '{upper}')" for lower, upper in self._closed
        )


def _closed_ranges(layout: PartitionLayout, open: set[str]) -> list[tuple[str, str]]:
    """The ids of the partitions that are not open; those that touch are one range."""
    ranges: list[tuple[str, str]] = []
    for one in layout.partitions:
        if one.name in open:
            continue
        if ranges and ranges[-1][1] == one.lower:
            ranges[-1] = (ranges[-1][0], one.upper)
        else:
            ranges.append((one.lower, one.upper))
    return ranges
