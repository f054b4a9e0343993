"""When a schedule is due that has an interval instead of times: `@every 1h30m`.

The intervals follow each other from the moment the schedule was made, changed or switched on, in real time:
zones and clock changes do not move them.

>>> Every.parse("@every 90m").after(datetime(2026, 3, 29, tzinfo=UTC))
datetime.datetime(2026, 3, 29, 1, 30, tzinfo=datetime.timezone.utc)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from maniflex.errors import InvalidSchedule

PREFIX = "@every"
LONGEST = timedelta(days=18262)  # fifty years, as far as a cron expression looks
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|m|s)")
_SECONDS = {"h": 3600, "m": 60, "s": 1}


@dataclass(frozen=True, slots=True)
class Every:
    """An interval of whole seconds."""

    interval: timedelta

    @staticmethod
    def parse(expression: str) -> Every:
        """The interval of `@every 1h30m`, or `InvalidSchedule`."""
        text = "".join(expression.strip().lower().removeprefix(PREFIX).split())
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise InvalidSchedule("cron", f"{expression!r} is no interval such as '@every 1h30m'")
        seconds = sum(Decimal(number) * _SECONDS[unit] for number, unit in parts)
        if not 1 <= seconds <= LONGEST.total_seconds() or seconds % 1:
            raise InvalidSchedule("cron", "an interval is a whole number of seconds, up to fifty years")
        return Every(timedelta(seconds=int(seconds)))

    def after(self, moment: datetime) -> datetime | None:
        """The first due time later than `moment`, in UTC; None when the calendar ends before."""
        if moment.tzinfo is None:
            raise ValueError("a due time is found from an aware datetime")
        try:
            return moment.astimezone(UTC).replace(microsecond=0) + self.interval
        except OverflowError:
            return None

    def around(self, since: datetime, until: datetime) -> tuple[datetime, datetime | None]:
        """The last due time from `since`, which is one, to `until`, and the one after it."""
        due = since + max((until - since) // self.interval, 0) * self.interval
        return due, self.after(due)
