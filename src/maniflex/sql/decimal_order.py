"""Decimals on SQLite that the database compares by itself: an order key beside every decimal column.

SQLite has no exact decimals, so they are stored as text, and comparing such text by value needs a Python
function for every pair. The order key is a second text, made so that comparing keys byte by byte compares
the numbers: `price` is stored as a client sent it, `price$order` is what conditions, sorts, groups and
indexes look at. Equal numbers have equal keys (1.5 and 1.50), and a key gives its number back.

Key of a number: `b`, the number of integer digits, then all digits without zeros at either end. Of a
negative number: `a`, the same with every digit turned round, and a letter that sorts behind all digits.
Text that is no plain number (raw SQL can store it) has the key `c` and the text, so it sorts last.

>>> order_key(Decimal("12.50")), order_key(Decimal("-3")), order_key(Decimal("0.00"))
('b00002125', 'ajjjjig~', 'b00000')
>>> number_of(order_key(Decimal("12.50"))), number_of(order_key(Decimal("-3")))
(Decimal('12.5'), Decimal('-3'))
"""

from __future__ import annotations

from collections.abc import Container
from decimal import Decimal

from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.statement import Dialect, by_dialect

_SUFFIX = "$order"  # no attribute can be called like this
_WIDTH = 5
_DIGITS = "0123456789"
_REVERSED = "jihgfedcba"  # letters that sort the other way round
_TURN = str.maketrans(_DIGITS, _REVERSED)
_TURN_BACK = str.maketrans(_REVERSED, _DIGITS)


def has_order_key(field: FieldMeta, dialect: Dialect) -> bool:
    """Whether the column of the field has an order key beside it."""
    return field.kind is Kind.DECIMAL and by_dialect(dialect, sqlite=True, postgres=False)


def order_column(column: str) -> str:
    """The name of the column that holds the order keys of `column`."""
    return column + _SUFFIX


def decimal_column(column: str) -> str:
    """The column an order key belongs to; any other column is its own."""
    return column.removesuffix(_SUFFIX)


def is_order_column(column: str, beside: Container[str]) -> bool:
    """Whether it holds the order keys of one of the columns `beside` it."""
    return column.endswith(_SUFFIX) and decimal_column(column) in beside


def order_key(number: Decimal) -> str:
    """The text that sorts among other keys as the number does among numbers."""
    text = format(number, "f")
    digits = (text if "." in text else text + ".").strip("-0")
    whole, _, fraction = digits.partition(".")
    key = f"{len(whole):0{_WIDTH}d}{whole}{fraction}"
    if text.startswith("-") and digits != ".":
        return f"a{key.translate(_TURN)}~"
    return "b" + key


def number_of(key: str) -> Decimal:
    """The number of an order key, without zeros at its end."""
    if key.startswith("c"):
        return Decimal(key[1:])
    negative = key.startswith("a")
    digits = key[1:-1].translate(_TURN_BACK) if negative else key[1:]
    end = _WIDTH + int(digits[:_WIDTH])
    whole, fraction = digits[_WIDTH:end] or "0", digits[end:]
    text = f"{whole}.{fraction}" if fraction else whole
    return Decimal(f"-{text}" if negative else text)


def order_expression(text: str) -> str:
    """The same key as SQLite makes it from the SQL expression `text`, with nothing but its own functions."""
    digits = f"trim(CASE instr({text}, '.') WHEN 0 THEN {text} || '.' ELSE {text} END, '-0')"
    key = f"printf('%0{_WIDTH}d%s', instr({digits}, '.') - 1, replace({digits}, '.', ''))"
    reversed_key = key
    for digit, letter in zip(_DIGITS, _REVERSED, strict=True):
        reversed_key = f"replace({reversed_key}, '{digit}', '{letter}')"
    return (
        f"CASE WHEN {text} IS NULL THEN NULL WHEN {text} GLOB '*[^-.0-9]*' THEN 'c' || {text}"
        f" WHEN {text} GLOB '-*[1-9]*' THEN 'a' || {reversed_key} || '~' ELSE 'b' || {key} END"
    )
