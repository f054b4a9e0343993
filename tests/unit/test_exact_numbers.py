"""The sums and averages SQLite is taught."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

from maniflex.db.sqlite.connect import average, install
from maniflex.sql.select import plain


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    install(connection)
    connection.execute("CREATE TABLE t (x)")
    yield connection
    connection.close()


def summed(connection: sqlite3.Connection, values: Sequence[Any]) -> tuple[Any, Any]:
    connection.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
    found: tuple[Any, Any] = connection.execute("SELECT exact_sum(x), exact_avg(x, 4) FROM t").fetchone()
    return found


@pytest.mark.parametrize(
    ("values", "total", "average_"),
    [
        ([], None, None),
        ([None], None, None),
        ([1, None, 2], "3", "1.5000"),
        ([2**63 - 1, 2**63 - 1], "18446744073709551614", "9223372036854775807.0000"),
        (["0.10", "0.2"], "0.30", "0.1500"),
        ([0.1, 0.2], "0.3", "0.1500"),
        ([1e300, 1.0, -1e300], "1.0", "0.3333"),
        ([1, "0.5", 0.25], "1.75", "0.5833"),
        (["9" * 60, "1"], "1" + "0" * 60, "5" + "0" * 59 + ".0000"),
    ],
)
def test_numbers_of_every_kind_add_up_exactly(
    connection: sqlite3.Connection, values: list[Any], total: str | None, average_: str | None
) -> None:
    assert summed(connection, values) == (total, average_)


@pytest.mark.parametrize("values", [[], [5], [-1], [2**63 - 1] * 3, [-(2**63)] * 5, [1, -1, -(2**40), None]])
def test_integers_added_in_halves_are_the_same_integers(
    connection: sqlite3.Connection, values: list[int | None]
) -> None:
    halves = "sum(x >> 32), sum(x & 4294967295)"
    expected = summed(connection, values)

    found = connection.execute(f"SELECT whole_sum({halves}), whole_avg({halves}, count(x), 4) FROM t")

    assert found.fetchone() == expected


def test_more_numbers_than_are_added_at_once_add_up_too(connection: sqlite3.Connection) -> None:
    assert summed(connection, ["0.1"] * 5000) == ("500.0", "0.1000")


def test_what_is_no_finite_number_does_not_end_the_statement(connection: sqlite3.Connection) -> None:
    assert summed(connection, [float("inf"), float("-inf"), 1])[0] == "NaN"


@pytest.mark.parametrize(
    ("total", "count", "digits", "found"),
    [
        ("1", 8, 2, "0.13"),
        ("-1", 8, 2, "-0.13"),
        ("1", 3, 4, "0.3333"),
        ("-2", 3, 4, "-0.6667"),
        ("0", 9, 2, "0.00"),
    ],
)
def test_an_average_is_rounded_once_and_halves_go_away_from_zero(
    total: str, count: int, digits: int, found: str
) -> None:
    assert str(average(Decimal(total), count, digits)) == found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1.50", "1.5"),
        ("200", "200"),
        ("-0.00", "0"),
        (Decimal("1E+3"), "1000"),
        (Decimal("0.0"), "0"),
        ("0.10", "0.1"),
    ],
)
def test_a_decimal_loses_the_zeros_at_its_end_and_nothing_else(value: Any, text: str) -> None:
    assert str(plain(value)) == text
