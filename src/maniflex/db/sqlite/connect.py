"""Open SQLite connections: the only home of our pragmas, the `decimal` collation and private files."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from decimal import (
    MAX_EMAX,
    MAX_PREC,
    MIN_EMIN,
    ROUND_HALF_UP,
    Context,
    Decimal,
    InvalidOperation,
    localcontext,
)
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from maniflex.db.sqlite.checkpoints import LONG_BYTES
from maniflex.errors import ConfigError, DatabaseError
from maniflex.sql.decimal_order import order_key

# Sums, averages and JSON texts that SQLite cannot make itself: exact ones.
#
# Its own SUM fails on integers beyond 64 bits and turns decimals, which are text here, into floats. These
# take whole numbers, floats and decimal text, and give decimal text. `exact_sum` takes them all;
# `whole_sum` is the faster way for a column that holds nothing but integers. `decimal_order` is the order
# key of such a number, by which groups are sorted and compared.

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
    for function in (decimal_order, float_json, decimal_json, bytes_json):
        connection.create_function(function.__name__, 1, function, deterministic=True)


MEMORY = ":memory:"
_SHARED_MEMORY = "/dev/shm"
_CACHE_KIB = 8 * 1024


class ReadOnlyConnection(sqlite3.Connection):
    """A connection that was opened for reading alone."""


@dataclass(frozen=True, slots=True)
class ConnectionSource:
    """A database file and how its connections behave."""

    path: str
    synchronous: str
    lock_timeout: timedelta
    cache_statements: int
    read_only: bool = False

    def writer(self) -> sqlite3.Connection:
        connection = self._connect()
        if self.read_only:
            return connection
        try:
            self._use_wal(connection)
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute(f"PRAGMA journal_size_limit = {LONG_BYTES}")
        except BaseException:
            connection.close()
            raise
        return connection

    def reader(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def watcher(self) -> sqlite3.Connection:
        """A connection that only looks whether there was a change; it waits for no lock and makes no file."""
        connection = sqlite3.connect(self._location("rw"), timeout=0, isolation_level=None, uri=True)
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._location(self._reading_mode()) if self.read_only else self.path,
            uri=self.read_only,
            timeout=self.lock_timeout.total_seconds(),
            isolation_level=None,
            # Only `interrupt` is ever called from another thread.
            check_same_thread=False,
            cached_statements=self.cache_statements,
            factory=ReadOnlyConnection if self.read_only else sqlite3.Connection,
        )
        if self.read_only:
            # A file that is attached is opened for writing, even the one that is open already.
            # VACUUM needs one too.
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.create_collation("decimal", compare_decimals)
        install(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        return connection

    def _location(self, mode: str) -> str:
        return f"{Path(self.path).absolute().as_uri()}?mode={mode}"

    def _reading_mode(self) -> str:
        # To read a file with write-ahead logging, SQLite makes two others beside it, and leaves them there
        # when it may not write. A file without a log is in nobody's use; as immutable it is read alone.
        is_unused = has_wal_mode(self.path) and not Path(f"{self.path}-wal").exists()
        return "ro&immutable=1" if is_unused else "ro"

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        # Switching the journal mode ignores the busy timeout, so two processes that start on a
        # new file at once would otherwise fail each other.
        deadline = time.monotonic() + self.lock_timeout.total_seconds()
        while True:
            try:
                [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
                continue
            if mode != "wal":
                raise DatabaseError("the file system of this database does not support write-ahead logging")
            return


def has_wal_mode(path: str) -> bool:
    """Whether the file says of itself that it has write-ahead logging."""
    try:
        with open(path, "rb") as file:
            return file.read(20)[18:20] == b"\x02\x02"
    except OSError:
        return False


def check_location(path: str) -> None:
    """Refuse a path no database file can be made at."""
    parent = Path(path).absolute().parent
    if not parent.is_dir():
        raise ConfigError(f"{cannot_open(path)}: there is no directory {str(parent)!r}")
    if Path(path).is_dir():
        raise ConfigError(f"{cannot_open(path)}: it is a directory")


def cannot_open(path: str) -> str:
    return f"the SQLite database {path!r} cannot be opened"


def private_file() -> str:
    """An empty file that no other adapter uses: the home of a `:memory:` database.

    A real in-memory database belongs to one connection; shared by name it would also be shared
    between adapters.
    """
    in_memory = os.path.isdir(_SHARED_MEMORY) and os.access(_SHARED_MEMORY, os.W_OK | os.X_OK)
    handle, path = tempfile.mkstemp(".db", "maniflex-", _SHARED_MEMORY if in_memory else None)
    os.close(handle)
    return path


def remove_file(path: str) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        with suppress(OSError):
            os.unlink(path + suffix)


def compare_decimals(left: str, right: str) -> int:
    """Order decimal texts by value; anything that is no number comes last, as text."""
    a, b = _order_key(left), _order_key(right)
    # An exception here would make SQLite believe that the two are equal, so nothing may raise.
    return (a > b) - (a < b)


@lru_cache(maxsize=4096)
def _order_key(text: str) -> tuple[int, Decimal, str]:
    try:
        number = Decimal(text)
    except (InvalidOperation, ValueError):
        return 1, _ZERO, text
    return (1, _ZERO, text) if number.is_nan() else (0, number, "")
