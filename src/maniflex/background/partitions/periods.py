"""The periods that partitions are cut by, in UTC, and the names of their tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum

_MONDAY = datetime(2024, 1, 1, tzinfo=UTC)


class Period(Enum):
    """How much time one partition holds."""

    HOUR = timedelta(hours=1)
    DAY = timedelta(days=1)
    WEEK = timedelta(weeks=1)

    @classmethod
    def of_name(cls, word: str) -> Period:
        return cls[word.upper()]

    @classmethod
    def lasting(cls, length: timedelta) -> Period:
        """The period of that length, or the longest that is not longer."""
        return max((one for one in cls if one.value <= length), key=lambda one: one.value, default=cls.HOUR)

    def next_start(self, moment: datetime) -> datetime:
        """When the next period begins; weeks begin on Mondays."""
        return _MONDAY + ((moment - _MONDAY) // self.value + 1) * self.value


def partition_name(table: str, start: datetime) -> str:
    """The name of the partition that begins at this moment."""
    return f"{table}_p{start:%Y%m%d}" + (f"{start:%H}" if start.hour else "")
