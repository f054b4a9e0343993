"""What a PostgreSQL failure means to us: SQLSTATE in, a member of `maniflex.errors` out.

The only place that knows SQLSTATEs. Neither values nor driver text leave it: of the server's
DETAIL only the column names are read, and the driver's exception travels as `__cause__`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import asyncpg

from maniflex.errors import (
    ConstraintViolation,
    DatabaseError,
    ForeignKeyViolation,
    RequestError,
    SerializationFailure,
    Timeout,
    Unavailable,
    ValidationFailed,
)

READ_ONLY = "25006"

# The statement was refused while it was being planned, so it certainly did not run.
STALE_STATEMENT = (asyncpg.InvalidCachedStatementError, asyncpg.InvalidSQLStatementNameError)

_KEY = re.compile(r"\((.*?)\)=\(", re.DOTALL)
_KEY_TOKEN = re.compile(
    r"""'(?:[^']|'')*'                                  # a literal inside an expression
      | ::\s*"?\w+"?(?:\s(?:varying|precision|with(?:out)?\stime\szone))?   # a cast
      | [A-Za-z_][\w$]*(?=\s*\()                        # a function
      | "(?P<quoted>(?:[^"]|"")+)"
      | (?P<plain>[^\W\d][\w$]*)
    """,
    re.VERBOSE,
)


def translate(
    error: Exception, *, lost: bool = False, read_only: bool = False, in_transaction: bool = False
) -> RequestError:
    """The error a caller sees instead of `error`; `lost` means the connection was already gone."""
    if isinstance(error, RequestError):
        return error
    if lost:
        return Unavailable()
    if isinstance(error, TimeoutError):
        return Timeout("the statement took too long", limit="statement_timeout")
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error, read_only=read_only, in_transaction=in_transaction)
    if isinstance(error, UnicodeError) or isinstance(error.__cause__, UnicodeError):
        return ValidationFailed("a text contains characters the database cannot store")
    # The driver calls it an internal error when the server has said farewell but not yet hung up.
    if isinstance(error, OSError) or type(error) is asyncpg.InternalClientError:
        return _cut_off(error)
    return DatabaseError()


_ONLY_READS = "this statement writes, and only reads are allowed here"


def _from_server(error: asyncpg.PostgresError, *, read_only: bool, in_transaction: bool) -> RequestError:
    state = str(error.sqlstate or "")
    if state == READ_ONLY:
        # Outside a read-only transaction this is a primary that became a replica.
        return DatabaseError(_ONLY_READS) if read_only else Unavailable()
    if in_transaction and isinstance(error, STALE_STATEMENT):
        return SerializationFailure()  # a migration ran in between: sent again, it succeeds
    make = _BY_STATE.get(state) or _BY_CLASS.get(state[:2])
    return make(error) if make is not None else DatabaseError()


def key_columns(detail: str | None) -> tuple[str, ...]:
    """The columns named by `Key (a, b)=(…) …`; of an expression, the columns inside it.

    >>> key_columns("Key (tenant_id, lower((email)::text))=(7, a@b.c) already exists.")
    ('tenant_id', 'email')
    """
    key = _KEY.search(detail or "")
    if key is None:
        return ()
    names = (
        token["plain"] or (token["quoted"] or "").replace('""', '"') for token in _KEY_TOKEN.finditer(key[1])
    )
    return tuple(dict.fromkeys(name for name in names if name))


def _text(error: asyncpg.PostgresError, attribute: str) -> str:
    return str(getattr(error, attribute, None) or "")


def _duplicate(error: asyncpg.PostgresError) -> RequestError:
    columns = key_columns(_text(error, "detail"))
    return ConstraintViolation(
        _text(error, "table_name"), columns, constraint=_text(error, "constraint_name")
    )


def _missing_value(error: asyncpg.PostgresError) -> RequestError:
    column = _text(error, "column_name")
    columns = (column,) if column else ()
    return ConstraintViolation(_text(error, "table_name"), columns, ConstraintViolation.MISSING)


def _check(error: asyncpg.PostgresError) -> RequestError:
    table, name = _text(error, "table_name"), _text(error, "constraint_name")
    return ConstraintViolation(table, (), ConstraintViolation.BROKEN_RULE, name)


def _foreign_key(error: asyncpg.PostgresError) -> RequestError:
    table, detail = _text(error, "table_name"), _text(error, "detail")
    # "… is still referenced from table <table>" names the key of the other table, not ours.
    still_used = f'"{table}"' in detail.rpartition(")")[2] and "not present" not in detail
    return ForeignKeyViolation(table, () if still_used else key_columns(detail))


def _bad_value(_: Exception) -> RequestError:
    return ValidationFailed("a value cannot be stored in its column")


def _too_large(_: Exception) -> RequestError:
    return ValidationFailed("a value is too large for an index")


def _timeout(error: asyncpg.PostgresError) -> RequestError:
    return Timeout("the statement took too long", limit=_LIMITS.get(str(error.sqlstate), ""))


def _collision(_: Exception) -> RequestError:
    return SerializationFailure()


def _unavailable(_: Exception) -> RequestError:
    return Unavailable()


def _cut_off(_: Exception) -> RequestError:
    error = Unavailable("the connection to the database was lost")
    error.retryable = False  # the statement may have run
    return error


def _dead_transaction(_: Exception) -> RequestError:
    return DatabaseError("the transaction has failed; roll it back")


def _database_error(_: Exception) -> RequestError:
    return DatabaseError()


_LIMITS = {
    "55P03": "lock_timeout",
    "57014": "statement_timeout",
    "25P03": "idle_in_transaction_timeout",
}
_Make = Callable[[asyncpg.PostgresError], RequestError]

_BY_STATE: dict[str, _Make] = {
    "23505": _duplicate,
    "23P01": _duplicate,
    "23502": _missing_value,
    "23514": _check,
    "23503": _foreign_key,
    "23001": _foreign_key,
    "40001": _collision,
    "40P01": _collision,
    "55P03": _timeout,
    "57014": _timeout,
    "25P03": _timeout,
    "25P02": _dead_transaction,
    "22012": _database_error,  # division by zero is the statement's fault, not the caller's
    "54000": _too_large,
    "57P01": _cut_off,
    "57P02": _cut_off,
    "57P03": _unavailable,
    "57P05": _unavailable,
}
_BY_CLASS: dict[str, _Make] = {"08": _cut_off, "22": _bad_value, "53": _unavailable}
