"""When a schedule is due: against tables made by hand, and against looking at every single minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from maniflex.background.schedules.cron import NAMED, Cron, Times
from maniflex.background.schedules.model import FiringOutcome
from maniflex.background.schedules.store import Firing, plan
from maniflex.errors import InvalidSchedule

MINUTE = timedelta(minutes=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def dues(cron: Times, start: datetime, count: int) -> list[datetime]:
    """The first due times after `start`."""
    found = []
    for _ in range(count):
        due = cron.after(start)
        assert due is not None
        found.append(due)
        start = due
    return found


# Expression, zone, after, and the due times that follow; worked out from the dates of clock changes.
TABLE = [
    ("@daily", "UTC", "2026-03-28T00:00", ["2026-03-29T00:00", "2026-03-30T00:00"]),
    # Berlin, 29 March: 02:00 becomes 03:00. Due in the gap is due when the gap ends.
    (
        "30 2 * * *",
        "Europe/Berlin",
        "2026-03-28T00:00",
        ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"],
    ),
    ("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:00"]),
    (
        "30 2,3 * * *",
        "Europe/Berlin",
        "2026-03-28T12:00",
        ["2026-03-29T01:00", "2026-03-29T01:30", "2026-03-30T00:30"],
    ),
    ("0 * * * *", "Europe/Berlin", "2026-03-29T00:00", ["2026-03-29T01:00", "2026-03-29T02:00"]),
    ("*/30 2 * * *", "Europe/Berlin", "2026-03-28T02:00", ["2026-03-30T00:00", "2026-03-30T00:30"]),
    # Berlin, 25 October: 03:00 becomes 02:00. What comes twice is due the first time.
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
    ("50 2 * * *", "Europe/Berlin", "2026-10-25T01:10", ["2026-10-26T01:50"]),
    ("0 3 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T02:00", "2026-10-26T02:00"]),
    (
        "*/30 2 * * *",
        "Europe/Berlin",
        "2026-10-24T12:00",
        ["2026-10-25T00:00", "2026-10-25T00:30", "2026-10-25T01:00", "2026-10-25T01:30", "2026-10-26T01:00"],
    ),
    # New York, 8 March and 1 November.
    (
        "30 2 * * *",
        "America/New_York",
        "2026-03-07T00:00",
        ["2026-03-07T07:30", "2026-03-08T07:00", "2026-03-09T06:30"],
    ),
    ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["2026-11-01T05:30", "2026-11-02T06:30"]),
    # Lord Howe moves by half an hour: 4 October 02:00 becomes 02:30, 5 April 02:00 becomes 01:30.
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["2026-10-03T15:30", "2026-10-04T15:15"]),
    ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["2026-04-04T14:45", "2026-04-05T15:15"]),
    (
        "*/20 2 * * *",
        "Australia/Lord_Howe",
        "2026-04-04T12:00",
        ["2026-04-04T15:30", "2026-04-04T15:50", "2026-04-04T16:10"],
    ),
    (
        "*/20 3 * * *",
        "Australia/Lord_Howe",
        "2026-10-03T12:00",
        ["2026-10-03T16:00", "2026-10-03T16:20", "2026-10-03T16:40"],
    ),
    # Kolkata never changes and is half an hour off.
    ("0 6 * * *", "Asia/Kolkata", "2026-03-28T12:00", ["2026-03-29T00:30", "2026-03-30T00:30"]),
    # São Paulo used to change at midnight: 4 November 2018 began at 01:00, 17 February 2019 came late.
    ("15 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00", ["2018-11-04T03:00", "2018-11-05T02:15"]),
    ("30 23 * * *", "America/Sao_Paulo", "2019-02-16T12:00", ["2019-02-17T01:30", "2019-02-18T02:30"]),
    ("0 0 29 2 *", "UTC", "2026-01-01T00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
    ("0 9 * * MON#1", "UTC", "2026-01-01T00:00", ["2026-01-05T09:00", "2026-02-02T09:00"]),
    ("0 0 L * *", "UTC", "2026-02-01T00:00", ["2026-02-28T00:00", "2026-03-31T00:00"]),
]


@pytest.mark.parametrize(("expression", "zone", "after", "expected"), TABLE)
def test_due_times_are_those_of_the_table(
    expression: str, zone: str, after: str, expected: list[str]
) -> None:
    assert dues(Cron.parse(expression, zone), utc(after), len(expected)) == [utc(text) for text in expected]


CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Pacific/Chatham", "2026-04-05"),
    ("Pacific/Chatham", "2026-09-27"),
    ("Africa/Casablanca", "2026-03-22"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("America/Sao_Paulo", "2019-02-17"),
    ("Asia/Kolkata", "2026-03-29"),
]


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize(
    "expression", ["*/10 2 * * *", "*/10 3 * * *", "15 * * * *", "0 */2 * * *", "* 0 * * *"]
)
def test_by_real_time_every_matching_minute_is_due_and_no_other(zone: str, day: str, expression: str) -> None:
    local = ZoneInfo(zone)
    start = utc(f"{day}T00:00") - timedelta(days=1)
    matching = CronSim(expression, datetime(2000, 1, 1))
    minutes = [start + MINUTE * n for n in range(1, 60 * 48)]
    walls = [(minute, minute.astimezone(local)) for minute in minutes]

    expected = [m for m, wall in walls if wall.hour in matching.hours and wall.minute in matching.minutes]

    assert dues(Cron.parse(expression, zone), start, len(expected)) == expected


@pytest.mark.parametrize("zone", sorted({zone for zone, _ in CHANGES}))
def test_a_time_of_day_is_due_once_on_every_day_of_a_year(zone: str) -> None:
    cron, local = Cron.parse("30 2 * * *", zone), ZoneInfo(zone)
    start = datetime(2026, 1, 1, tzinfo=local)

    found = [due.astimezone(local).date() for due in dues(cron, start, 365)]

    assert found == [start.date() + timedelta(days=n) for n in range(365)]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("0 0 30 2 *", "never due"),
        ("0 0 31 4,6 *", "never due"),
        ("0 0 0 * * *", "6 fields"),
        ("* * * *", "4 fields"),
        ("@reboot", "there is no '@reboot'"),
        ("61 * * * *", "minute"),
        ("0 0 * 13 *", "month"),
        ("0 0 30 13 *", "month"),
        ("0 0 * * 8", "day-of-week"),
        ("*/0 * * * *", "minute"),
        ("a b c d e", "minute"),
        ("0 0 L-3 * *", "day-of-month"),
        ("", "it is a text"),
        ("٣ * * * *", "it is a text"),
        ("@every", "no interval"),
        ("@every hour", "no interval"),
        ("@every 1d", "no interval"),
        ("@every -1h", "no interval"),
        ("@every 1h 30", "no interval"),
        ("@every ٣h", "no interval"),
        ("@every 0s", "whole number of seconds"),
        ("@every 1.5s", "whole number of seconds"),
        ("@every 999999h", "up to fifty years"),
        ("@everything", "there is no '@everything'"),
        ("1? * * * *", "minute"),
        ("? ? 30 2 ?", "never due"),
    ],
)
def test_an_expression_that_cannot_be_kept_is_refused_with_the_reason(expression: str, reason: str) -> None:
    with pytest.raises(InvalidSchedule, match=reason) as refused:
        Cron.parse(expression, "UTC")

    assert (refused.value.status, refused.value.code) == (400, "INVALID_SCHEDULE")


@pytest.mark.parametrize(
    "zone",
    ["Europe/Berln", "../../etc/passwd", "Europe", "", "/etc/localtime", "localtime", "right/UTC", "a\0b"],
)
def test_a_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match="timezone"):
        Cron.parse("@daily", zone)


def test_names_are_short_for_five_fields() -> None:
    for name, fields in NAMED.items():
        assert Cron.parse(name.upper()) == Cron.parse(fields)


@pytest.mark.parametrize("expression", ["@daily", "@every 1h"])
def test_a_naive_moment_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="aware"):
        Cron.parse(expression).after(datetime(2026, 1, 1))


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("0 2 ? * *", "0 2 * * *"),
        ("0 2 1 * ?", "0 2 1 * *"),
        ("? ? ? ? ?", "* * * * *"),
        ("?/15 * * * *", "*/15 * * * *"),
        ("0  2 ?\t* 1", "0 2 * * 1"),
    ],
)
def test_a_question_mark_leaves_a_field_open(written: str, same: str) -> None:
    assert Cron.parse(written, "Europe/Berlin") == Cron.parse(same, "Europe/Berlin")


@pytest.mark.parametrize(
    ("expression", "seconds"),
    [
        ("@every 1h30m", 5400),
        ("@every 1.5h", 5400),
        ("@EVERY 90S", 90),
        ("@every 2m 30s", 150),
        ("@every 1s", 1),
    ],
)
def test_an_interval_follows_the_last_due_time(expression: str, seconds: int) -> None:
    step, start = timedelta(seconds=seconds), utc("2026-03-29T00:00")

    found = dues(Cron.parse(expression, "Europe/Berlin"), start + timedelta(microseconds=7), 3)

    assert found == [start + step, start + 2 * step, start + 3 * step]


def test_the_latest_of_missed_intervals_keeps_their_beat() -> None:
    cron, since = Cron.parse("@every 7m"), utc("2026-01-01T00:03")

    latest, following = cron.around(since, utc("2031-06-01T12:34"))

    assert (latest - since) % (MINUTE * 7) == timedelta(0)
    assert following == latest + MINUTE * 7
    assert latest <= utc("2031-06-01T12:34") < following
    assert cron.around(since, since) == (since, since + MINUTE * 7)


def test_an_interval_ends_with_the_calendar() -> None:
    assert Cron.parse("@every 1h").after(datetime(9999, 12, 31, 23, 30, tzinfo=UTC)) is None


@pytest.mark.parametrize("expression", ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 12 * * 1", "0 0 29 2 *"])
def test_the_latest_due_time_is_found_without_walking_there(expression: str) -> None:
    cron, until = Cron.parse(expression, "Europe/Berlin"), utc("2026-03-29T04:15")
    since = cron.after(utc("2020-02-01T00:00") if "29 2" in expression else utc("2026-03-20T00:00"))
    assert since is not None

    latest, following = cron.around(since, until)

    assert since <= latest <= until
    assert following == cron.after(latest)
    assert following is not None
    assert following > until


DUE, HOURLY = utc("2026-01-01T10:00"), Cron.parse("@hourly")
GRACE = timedelta(minutes=1)


def test_once_fires_the_latest_and_skips_the_rest() -> None:
    made = plan(HOURLY, "once", DUE, utc("2026-01-01T13:30"), grace=GRACE)

    latest = utc("2026-01-01T13:00")
    assert made.firings == (Firing(DUE, latest, FiringOutcome.SKIPPED), Firing(latest))
    assert made.next_run_at == utc("2026-01-01T14:00")


def test_all_fires_each_up_to_the_bound_and_goes_on_from_there() -> None:
    made = plan(HOURLY, "all", DUE, utc("2026-01-01T13:30"), grace=GRACE, most=3)

    assert [f.due_at.hour for f in made.firings] == [10, 11, 12]
    assert made.next_run_at == utc("2026-01-01T13:00")


@pytest.mark.parametrize(("late", "outcome"), [(0, "fired"), (60, "fired"), (61, "skipped")])
def test_skip_fires_only_within_its_grace(late: int, outcome: str) -> None:
    made = plan(HOURLY, "skip", DUE, DUE + timedelta(seconds=late), grace=GRACE)

    assert [f.outcome for f in made.firings] == [outcome]
    assert made.next_run_at == utc("2026-01-01T11:00")
