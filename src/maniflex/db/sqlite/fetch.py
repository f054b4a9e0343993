"""The rows of a SQLite read, within a budget."""

from __future__ import annotations

from sqlite3 import Cursor
from time import perf_counter

from maniflex.db.budget import Budget, rows_size
from maniflex.db.port import Row
from maniflex.errors import AnswerTooLarge

FIRST_ROWS = 4  # tell whether rows are large
QUICK_ROWS = 24
SLOW_BYTES = 64 * 1024  # of rows that were counted, as many at a time as hold so much; two at least
# Looking at every value would cost a list more than a twentieth of its time. Rows that were read within
# this time cannot hold more than a few megabytes: memory is no faster. Only others are counted.
QUICK = 0.0005  # seconds


def fetch_within(budget: Budget, cursor: Cursor) -> list[Row]:
    """All rows, or `AnswerTooLarge` a few rows after they exceed the budget; runs on a thread."""
    rows: list[Row] = []
    try:
        _fetch(budget, cursor, rows)
    except AnswerTooLarge:
        rows.clear()  # the traceback would keep them
        cursor.close()
        raise
    return rows


def _fetch(budget: Budget, cursor: Cursor, rows: list[Row]) -> None:
    started_at, amount = perf_counter(), FIRST_ROWS
    while True:
        some = cursor.fetchmany(amount)
        rows += some
        now = perf_counter()
        complete, amount = len(some) < amount, QUICK_ROWS
        if now - started_at > QUICK:
            size = rows_size(some)
            budget.spend(size)
            now, amount = perf_counter(), max(2, SLOW_BYTES * len(some) // (size + 1024))
        if complete:
            return
        started_at = now
