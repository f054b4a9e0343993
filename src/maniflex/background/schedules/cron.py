"""When a schedule is due: a cron expression read in a zone of its own.

The only home of cron. `Cron.parse` takes five fields or a name such as `@daily` and the name of an
IANA zone; what it cannot read, or what would never be due, is `InvalidSchedule` with the reason.
`@every 1h` is an interval (`every.py`), and a field of `?` is one of `*`.
Matching is cronsim's. A time of day that a clock change leaves out is due at the first moment after
the gap and one that comes twice is due the first time; with `*` in minute or hour it is real time
that counts, as in Debian's cron.

>>> Cron.parse("30 2 * * *", "Europe/Berlin").after(datetime(2026, 3, 29, tzinfo=UTC))
datetime.datetime(2026, 3, 29, 1, 0, tzinfo=datetime.timezone.utc)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from maniflex.errors import InvalidSchedule

# When a schedule is due that has an interval instead of times: `@every 1h30m`.
#
# The intervals follow each other from the moment the schedule was made, changed or switched on, in real
# time: zones and clock changes do not move them.


PREFIX = "@every"
LONGEST = timedelta(days=18262)  # fifty years, as far as a cron expression looks
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|m|s)")
_SECONDS = {"h": 3600, "m": 60, "s": 1}


@dataclass(frozen=True, slots=True)
class Every:
    """An interval of whole seconds.

    >>> Every.parse("@every 90m").after(datetime(2026, 3, 29, tzinfo=UTC))
    datetime.datetime(2026, 3, 29, 1, 30, tzinfo=datetime.timezone.utc)
    """

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


NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_REFERENCE = datetime(2000, 1, 1)
_NOT_ZONES = ("posix/", "right/", "localtime", "posixrules", "Factory")


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression and the zone it is read in."""

    fields: str
    zone: ZoneInfo
    real_time: bool  # due by the hour or more often: clock changes do not move it

    @staticmethod
    def parse(expression: str, timezone: str = "UTC") -> Times:
        """The schedule of an expression, or `InvalidSchedule`."""
        return _parse(expression, timezone)

    def after(self, moment: datetime) -> datetime | None:
        """The first due time later than `moment`, in UTC; None when there is none within fifty years."""
        if moment.tzinfo is None:
            raise ValueError("a due time is found from an aware datetime")
        try:
            return self._by_real_time(moment) if self.real_time else self._by_the_clock(moment)
        except (StopIteration, OverflowError):  # not within what cronsim, or the calendar, looks through
            return None

    def around(self, since: datetime, until: datetime) -> tuple[datetime, datetime | None]:
        """The last due time from `since`, which is one, to `until`, and the one after it."""
        due, following = since, self.after(since)
        if following is None or following > until:  # nearly always: nothing was missed
            return due, following
        reach = following - since
        # Widening steps from the end, so that a year of missed minutes is not walked through.
        while until - reach > following:
            candidate = self.after(until - reach)
            if candidate is not None and candidate <= until:
                following = candidate
                break
            reach *= 2
        while following is not None and following <= until:
            due, following = following, self.after(following)
        return due, following

    def _by_the_clock(self, moment: datetime) -> datetime:
        """cronsim walks over wall times here, and may begin with one whose second pass we are in."""
        for due in CronSim(self.fields, moment.astimezone(self.zone)):
            instant = due.astimezone(UTC)
            if instant > moment:
                return instant
        raise StopIteration

    def _by_real_time(self, moment: datetime) -> datetime:
        """The next match at the present offset, or after the clock changes if it does so before.

        cronsim steps by whole hours, which a change of half an hour (Lord Howe) puts off beat, so it
        is asked only within stretches of one offset.
        """
        start, at_start = moment.astimezone(UTC).replace(microsecond=0), False
        while True:
            offset = self._offset(start)
            wall = (start + offset).replace(tzinfo=None)
            wall_due = next(CronSim(self.fields, wall - _SECOND if at_start else wall))
            due = wall_due.replace(tzinfo=UTC) - offset
            change = self._change(start, due)
            if change is None:
                return due
            start, at_start = change, True

    def _offset(self, instant: datetime) -> timedelta:
        offset = instant.astimezone(self.zone).utcoffset()
        assert offset is not None
        return offset

    def _change(self, start: datetime, end: datetime) -> datetime | None:
        """The first moment after `start`, up to `end`, at which the zone's offset is another."""
        offset = self._offset(start)
        low = start
        while low < end:
            high = min(low + _DAY, end)
            if self._offset(high) != offset:
                return self._turn(low, high, offset)
            low = high
        return None

    def _turn(self, low: datetime, high: datetime, offset: timedelta) -> datetime:
        while high - low > _SECOND:
            middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
            if self._offset(middle) == offset:
                low = middle
            else:
                high = middle
        return high


Times: TypeAlias = Cron | Every


@lru_cache(maxsize=4096)
def _parse(expression: Any, timezone: Any) -> Times:
    if isinstance(expression, str) and expression.lower().split()[:1] == [PREFIX]:
        _zone(timezone)
        return Every.parse(expression)
    fields = _fields(expression)
    minute, hour, *_ = fields.split()
    return Cron(fields, _zone(timezone), minute.startswith("*") or hour.startswith("*"))


def _fields(expression: Any) -> str:
    """Five fields that are due some time."""
    if not isinstance(expression, str) or not expression.isascii() or not expression.strip():
        raise InvalidSchedule("cron", "it is a text such as '0 2 * * *' or '@daily'")
    name = expression.strip().lower()
    if name.startswith("@"):
        if name not in NAMED:
            names = ", ".join((*NAMED, f"{PREFIX} 1h30m"))
            raise InvalidSchedule("cron", f"there is no {name!r}; there are {names}")
        return NAMED[name]
    count = len(name.split())
    if count != 5:
        has = "1 field" if count == 1 else f"{count} fields"
        raise InvalidSchedule(
            "cron", f"it has {has}; five are wanted: minute hour day-of-month month day-of-week"
        )
    fields = " ".join(map(_any, expression.split()))
    try:
        next(CronSim(fields, _REFERENCE))
    except StopIteration:
        raise InvalidSchedule("cron", f"{expression!r} is never due") from None
    except (CronSimError, AssertionError, ValueError) as error:
        raise InvalidSchedule("cron", _why(fields, str(error))) from None
    return fields


def _any(field: str) -> str:
    """`?`, the word of other crons for a day that is left open, as `*`."""
    return f"*{field[1:]}" if field == "?" or field.startswith("?/") else field


def _why(expression: str, error: str) -> str:
    """The reason of a refusal; cronsim names the field, and calls 30 February a bad day of the month."""
    minute, hour, day, _, weekday = expression.split()
    part = error.removeprefix("Bad ")
    if part == "day-of-month":
        try:
            CronSim(f"{minute} {hour} {day} * {weekday}", _REFERENCE)
        except (CronSimError, AssertionError, ValueError):
            pass
        else:
            return f"{expression!r} is never due"
    return f"{expression!r} has a {part} that cannot be read"


def _zone(timezone: Any) -> ZoneInfo:
    is_name = isinstance(timezone, str) and timezone.isascii() and not timezone.startswith(_NOT_ZONES)
    if not is_name or not timezone:
        raise InvalidSchedule("timezone", f"{timezone!r} is not the name of a zone such as 'Europe/Berlin'")
    try:
        return ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):  # unknown, not a name, or a directory of zones
        raise InvalidSchedule(
            "timezone", f"there is no zone {timezone!r}; a name is written like 'Europe/Berlin' or 'UTC'"
        ) from None


# The times of a schedule in words: "every day at 02:00 Europe/Berlin"; where there are none, the
# expression.


_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_SHORT_DAYS = {name[:3].upper(): place for place, name in enumerate(_DAYS)}
_STEP = re.compile(r"\*/(\d+)")


def describe(cron: str, timezone: str = "UTC") -> str:
    """The times in words, in the zone they are meant in.

    >>> describe("0 2 * * *", "Europe/Berlin")
    'every day at 02:00 Europe/Berlin'
    """
    words = _words(cron)
    return f"{cron} {timezone}" if words is None else f"{words} {timezone}"


def _words(cron: str) -> str | None:
    fields = NAMED.get(cron.strip().lower(), cron).split()
    if len(fields) != 5:
        return None
    minute, hour, day, month, weekday = fields
    if month != "*":
        return None
    if day == weekday == "*":
        return _within_a_day(minute, hour)
    if not (minute.isdigit() and hour.isdigit()):
        return None
    time = f"at {int(hour):02}:{int(minute):02}"
    if day == "*" and (days := _days(weekday)) is not None:
        return f"every {days} {time}"
    return f"on day {int(day)} of every month {time}" if weekday == "*" and day.isdigit() else None


def _within_a_day(minute: str, hour: str) -> str | None:
    minutes, hours = _STEP.fullmatch(minute), _STEP.fullmatch(hour)
    if hour == "*":
        if minute in ("*", "*/1"):
            return "every minute"
        if minutes is not None and 60 % int(minutes[1]) == 0:
            return f"every {minutes[1]} minutes"
        return f"every hour at minute {int(minute)}" if minute.isdigit() else None
    if not minute.isdigit():
        return None
    if hours is not None and int(hours[1]) > 0 and 24 % int(hours[1]) == 0:
        return f"every {hours[1]} hours at minute {int(minute)}"
    if hour.isdigit():
        return f"every day at {int(hour):02}:{int(minute):02}"
    return None


def _days(weekday: str) -> str | None:
    if weekday.upper() in ("1-5", "MON-FRI"):
        return "working day"
    places = [_SHORT_DAYS.get(one.upper(), int(one) if one.isdigit() else None) for one in weekday.split(",")]
    if any(place is None or place > 7 for place in places):
        return None
    names = [_DAYS[place % 7] for place in places if place is not None]
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" and {names[-1]}"
