"""An order key sorts as its number does, gives it back, and SQLite makes the same one."""

from __future__ import annotations

import sqlite3
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from maniflex.sql.decimal_order import number_of, order_expression, order_key

numbers = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False, places=None),
    st.decimals(min_value=-1000, max_value=1000, places=2),
    st.sampled_from([Decimal(t) for t in ("0", "-0", "0.00", "-0.0", "1E+30", "-1E-30", "10", "100", "-10")]),
).filter(lambda number: abs(number.adjusted()) < 400)


@given(numbers, numbers)
def test_keys_compare_as_their_numbers(one: Decimal, other: Decimal) -> None:
    assert (order_key(one) < order_key(other)) is (one < other)
    assert (order_key(one) == order_key(other)) is (one == other)


@given(numbers)
def test_a_key_gives_its_number_back(number: Decimal) -> None:
    assert number_of(order_key(number)) == number


@given(st.lists(numbers, min_size=1, max_size=20))
def test_sqlite_makes_the_same_key_of_the_stored_text(values: list[Decimal]) -> None:
    database = sqlite3.connect(":memory:")
    texts = [(format(value, "f"),) for value in values]
    database.execute("CREATE TABLE t (x TEXT)")
    database.executemany("INSERT INTO t VALUES (?)", texts)

    made = [key for (key,) in database.execute(f"SELECT {order_expression('x')} FROM t ORDER BY rowid")]

    assert made == [order_key(value) for value in values]
    database.close()


def test_null_has_no_key_and_what_is_no_number_sorts_last() -> None:
    database = sqlite3.connect(":memory:")
    texts = ["12", None, "abc", "-5", "1e3"]
    rows = [database.execute(f"SELECT {order_expression('?1')}", (text,)).fetchone()[0] for text in texts]
    database.close()

    assert rows[1] is None
    assert sorted(key for key in rows if key) == [rows[3], rows[0], rows[4], rows[2]]
