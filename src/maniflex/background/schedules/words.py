"""The times of a schedule in words: "every day at 02:00 Europe/Berlin"; where there are none, the expression.

>>> describe("0 2 * * *", "Europe/Berlin")
'every day at 02:00 Europe/Berlin'
"""

from __future__ import annotations

import re

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_SHORT_DAYS = {name[:3].upper(): place for place, name in enumerate(_DAYS)}
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_STEP = re.compile(r"\*/(\d+)")


def describe(cron: str, timezone: str = "UTC") -> str:
    """The times in words, in the zone they are meant in."""
    words = _words(cron)
    return f"{cron} {timezone}" if words is None else f"{words} {timezone}"


def _words(cron: str) -> str | None:
    fields = _NICKNAMES.get(cron.strip().lower(), cron).split()
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
