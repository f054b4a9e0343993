"""What SQLite says went wrong → a member of `maniflex.errors`.

The driver's exception stays reachable as `__cause__`; none of its words get into a message.
"""

from __future__ import annotations

import re
import sqlite3
from functools import lru_cache

from maniflex.db.port import ReadOnlyDatabase
from maniflex.db.sqlite.connect import ReadOnlyConnection
from maniflex.errors import (
    Conflict,
    ConstraintViolation,
    DatabaseError,
    ForeignKeyViolation,
    ManiflexError,
    Timeout,
    TransactionError,
    Unavailable,
    ValidationFailed,
)
from maniflex.sql.decimal_order import decimal_column

_UNAVAILABLE = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
    }
)
_WAITED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_UNIQUE = frozenset(
    {sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_ROWID}
)
_INDEX = re.compile(r"index '(.+)'$")
_SPACE = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_NAME = r"""(?:"((?:[^"]|"")+)"|`([^`]+)`|\[([^\]]+)\]|(\w+))"""
_TARGET = re.compile(
    rf"\b(?:INSERT\s+(?:OR\s+\w+\s+)?INTO|REPLACE\s+INTO|UPDATE(?:\s+OR\s+\w+)?|DELETE\s+FROM)\s+{_NAME}(?:\s*\.\s*{_NAME})?",
    re.IGNORECASE,
)
_FLAGS = re.IGNORECASE | re.DOTALL
_CONTROL = re.compile(rf"{_SPACE}(?:BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE)\b", _FLAGS)
_SOLITARY = re.compile(rf"{_SPACE}(?:VACUUM|PRAGMA|ATTACH|DETACH)\b", _FLAGS)
_WITH_WRITE = re.compile(rf"{_SPACE}WITH\b.*\b(?:INSERT|UPDATE|DELETE|REPLACE)\b", _FLAGS)


@lru_cache(maxsize=2048)
def controls_transaction(text: str) -> bool:
    """Whether the statement would begin or end a transaction behind our back."""
    return _CONTROL.match(text) is not None


@lru_cache(maxsize=2048)
def stands_alone(text: str) -> bool:
    """Whether SQLite refuses, or ignores, the statement inside a transaction."""
    return _SOLITARY.match(text) is not None


@lru_cache(maxsize=2048)
def writes_after_with(text: str) -> bool:
    """Whether this is `WITH … UPDATE` or the like, whose rows the driver does not count."""
    return _WITH_WRITE.match(text) is not None


def translate(
    error: Exception, connection: sqlite3.Connection | None = None, text: str = "", *, reading: bool = False
) -> ManiflexError:
    """Our exception for what was raised while `text` ran, with `error` as its cause."""
    if isinstance(error, ManiflexError):
        return error
    ours = _find(error, connection, text, reading)
    ours.__cause__ = error
    return ours


def _find(error: Exception, connection: sqlite3.Connection | None, text: str, reading: bool) -> ManiflexError:
    match error:
        case OverflowError():
            return ValidationFailed("a number is outside the range the database can store")
        case UnicodeError():
            return ValidationFailed("a text contains characters the database cannot store")
        case sqlite3.IntegrityError():
            return _constraint(error, connection, text)
        case sqlite3.DataError():
            return ValidationFailed("a value is too large for the database")
        case sqlite3.Error() if isinstance(connection, ReadOnlyConnection) and _would_write(error):
            return ReadOnlyDatabase()
        case sqlite3.Error():
            return _failure(getattr(error, "sqlite_errorcode", None) or 0, reading)
        case _:
            return DatabaseError()


def _would_write(error: sqlite3.Error) -> bool:
    """Whether a connection for reading refused a statement, or another file for it to write to."""
    code = getattr(error, "sqlite_errorcode", None) or 0
    return code & 0xFF == sqlite3.SQLITE_READONLY or str(error).startswith("too many attached databases")


def _failure(code: int, reading: bool) -> ManiflexError:
    primary = code & 0xFF
    if primary in _WAITED:
        return Timeout("the database is busy with another write", limit="lock_timeout")
    if primary == sqlite3.SQLITE_INTERRUPT:
        return Timeout("the statement was interrupted")
    if primary == sqlite3.SQLITE_READONLY and reading:
        return DatabaseError("this statement writes, and only reads are allowed here")
    if primary in _UNAVAILABLE:
        return Unavailable()
    return DatabaseError()


def _constraint(
    error: sqlite3.IntegrityError, connection: sqlite3.Connection | None, text: str
) -> ManiflexError:
    code = error.sqlite_errorcode
    subject = str(error).partition("failed: ")[2]
    if code in _UNIQUE:
        return ConstraintViolation(*_unique(subject, connection, text))
    if code == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        return ForeignKeyViolation(_target(text))
    if code == sqlite3.SQLITE_CONSTRAINT_NOTNULL:
        return ConstraintViolation(*_columns(subject), ConstraintViolation.MISSING)
    return ConstraintViolation(_target(text), (), ConstraintViolation.BROKEN_RULE)


def _unique(subject: str, connection: sqlite3.Connection | None, text: str) -> tuple[str, tuple[str, ...]]:
    match = _INDEX.match(subject)
    if match is None:
        return _columns(subject)
    return _target(text), _index_columns(match[1], connection)


def _columns(subject: str) -> tuple[str, tuple[str, ...]]:
    """`posts.slug, posts.lang` → the table and its columns."""
    pairs = [name.rpartition(".") for name in subject.split(", ")]
    return pairs[0][0], tuple(decimal_column(column) for _, _, column in pairs)


def _index_columns(index: str, connection: sqlite3.Connection | None) -> tuple[str, ...]:
    if connection is None:
        return ()
    try:
        rows = connection.execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", (index,)).fetchall()
    except sqlite3.Error:
        return ()
    return tuple(decimal_column(name) for (name,) in rows if name is not None)


def _target(text: str) -> str:
    """The table a write names; SQLite's own message leaves it out."""
    match = _TARGET.search(text)
    if match is None:
        return ""
    names = [name for name in match.groups() if name is not None]
    return names[-1].replace('""', '"')


def begin_error(error: ManiflexError) -> ManiflexError:
    """An error of BEGIN as the caller of a transaction sees it."""
    if type(error) is not DatabaseError:
        return error
    ours = TransactionError("TX_BEGIN_ERROR", "the transaction could not be begun")
    ours.__cause__ = error
    return ours


def commit_error(error: ManiflexError) -> ManiflexError:
    """An error of COMMIT as the caller of a transaction sees it."""
    if isinstance(error, Conflict):
        return error
    ours = TransactionError("TX_COMMIT_ERROR", "the transaction could not be committed")
    ours.__cause__ = error
    return ours
