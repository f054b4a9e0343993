"""The next times of a schedule, in its zone and in the reader's, with changes of the clock marked. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from maniflex.background.parameters import span
from maniflex.background.schedules.cron import Cron

HOW_MANY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTime:
    """One time to come."""

    instant: str
    own: str  # in the zone of the schedule
    theirs: str  # in the zone of the reader; empty when that is the same
    until: str  # from now on
    change: str  # the new offset, when the clock changes before it


def next_times(
    cron: str, timezone: str, zone: ZoneInfo, now: datetime, count: int = HOW_MANY
) -> list[DueTime]:
    """The next times; `InvalidSchedule` when the expression or the zone is wrong."""
    times = Cron.parse(cron, timezone)
    own_zone = ZoneInfo(timezone)
    offset = now.astimezone(own_zone).utcoffset()
    moment: datetime | None = now
    rows: list[DueTime] = []
    while len(rows) < count and moment is not None:
        moment = times.after(moment)
        if moment is None:
            break
        own = moment.astimezone(own_zone)
        is_changed, offset = own.utcoffset() != offset, own.utcoffset()
        rows.append(
            DueTime(
                instant=moment.isoformat(),
                own=_write(own),
                theirs="" if zone.key == timezone else _write(moment.astimezone(zone)),
                until=span(moment - now),
                change=own.strftime("UTC%z") if is_changed else "",
            )
        )
    return rows


def _write(moment: datetime) -> str:
    return moment.strftime("%a %Y-%m-%d %H:%M:%S" if moment.second else "%a %Y-%m-%d %H:%M")
