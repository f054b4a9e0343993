"""Sums, averages and JSON texts that SQLite cannot make itself: exact ones.

Its own SUM fails on integers beyond 64 bits and turns decimals, which are text here, into floats.
These take whole numbers, floats and decimal text, and give decimal text. `exact_sum` takes them all;
`whole_sum` is the faster way for a column that holds nothing but integers. `decimal_order` is the order
key of such a number, by which groups are sorted and compared.
"""

from __future__ import annotations

import sqlite3
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import msgspec

from maniflex.sql.decimal_order import order_key

# Nothing is ever rounded or refused by it: addition needs no more digits than there are.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_HALF_UP, traps=[])
_ZERO = Decimal(0)
_AT_ONCE = 1024  # adding up a list costs a fraction of as many single additions


class ExactSum:
    """`exact_sum(x)`: null over no rows."""

    def __init__(self) -> None:
        self.count = 0
        self._total = _ZERO
        self._waiting: list[int | float | str] = []

    def step(self, value: int | float | str | None) -> None:
        if value is not None:
            self._waiting.append(value)
            if len(self._waiting) == _AT_ONCE:
                self._add_up()

    def _add_up(self) -> None:
        with localcontext(_EXACT):
            numbers = [Decimal(repr(v)) if type(v) is float else Decimal(v) for v in self._waiting]
            self._total = sum(numbers, self._total)
        self.count += len(numbers)
        self._waiting.clear()

    def total(self) -> Decimal:
        self._add_up()
        return self._total

    def finalize(self) -> str | None:
        total = self.total()
        return format(total, "f") if self.count else None


class ExactAvg:
    """`exact_avg(x, digits)`: rounded to so many digits behind the point, halves away from zero."""

    def __init__(self) -> None:
        self._sum = ExactSum()
        self._digits = 0

    def step(self, value: int | float | str | None, digits: int) -> None:
        self._digits = digits
        self._sum.step(value)

    def finalize(self) -> str | None:
        total = self._sum.total()
        if not self._sum.count:
            return None
        return format(average(total, self._sum.count, self._digits), "f") if total.is_finite() else str(total)


def average(total: Decimal, count: int, digits: int) -> Decimal:
    """The quotient, as if divided exactly and then rounded once.

    >>> average(Decimal("-1"), 3, 4), average(Decimal(1), 8, 2)
    (Decimal('-0.3333'), Decimal('0.13'))
    """
    fraction = abs(Fraction(total)) * 10**digits / count
    whole = (2 * fraction.numerator + fraction.denominator) // (2 * fraction.denominator)
    return _EXACT.scaleb(Decimal(-whole if total < 0 else whole), -digits)


def whole_sum(high: int | None, low: int | None) -> str | None:
    """`whole_sum(sum(x >> 32), sum(x & 0xffffffff))`: integers in two halves, which SQLite adds itself."""
    return None if high is None or low is None else str((high << 32) + low)


def whole_avg(high: int | None, low: int | None, count: int, digits: int) -> str | None:
    """The same, divided."""
    if high is None or low is None:
        return None
    return format(average(Decimal((high << 32) + low), count, digits), "f")


def decimal_order(text: str | None) -> str | None:
    """`decimal_order(x)`: the order key of a sum or an average."""
    if text is None:
        return None
    number = Decimal(text)
    return order_key(number) if number.is_finite() else f"c{text}"


def float_json(value: float) -> str:
    """`float_json(x)`: a float as JSON, with as many digits as it has."""
    return msgspec.json.encode(float(value)).decode()


def decimal_json(text: str) -> str:
    """`decimal_json(x)`: decimal text as it stands in JSON."""
    return msgspec.json.encode(Decimal(text)).decode()


def bytes_json(value: bytes) -> str:
    """`bytes_json(x)`: bytes as they stand in JSON."""
    return msgspec.json.encode(value).decode()


def install(connection: sqlite3.Connection) -> None:
    """Make the functions known to a connection."""
    makers: Any = (("exact_sum", 1, ExactSum), ("exact_avg", 2, ExactAvg))  # they give text, not ints
    for name, arguments, maker in makers:
        connection.create_aggregate(name, arguments, maker)
    connection.create_function("whole_sum", 2, whole_sum, deterministic=True)
    connection.create_function("whole_avg", 4, whole_avg, deterministic=True)
    connection.create_function("decimal_order", 1, decimal_order, deterministic=True)
    for function in (float_json, decimal_json, bytes_json):
        connection.create_function(function.__name__, 1, function, deterministic=True)
