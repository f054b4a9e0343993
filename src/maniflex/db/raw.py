"""SQL written by the application: `?` placeholders on every database, in the open transaction if any."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from maniflex._json import encode_json
from maniflex.db.current import executor, transaction
from maniflex.db.port import Adapter, Tx
from maniflex.errors import DatabaseError
from maniflex.sql.codec import encode_any
from maniflex.sql.statement import Dialect, Sql, by_dialect

# Everything a "?" may stand in without being a placeholder, and the placeholder itself last.
_TOKENS = re.compile(
    r"""
      (?P<literal>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
        | --[^\n]* | /\*.*?\*/ | (?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag))
    | (?P<escaped>\?\?)
    | (?P<placeholder>\?)
    """,
    re.VERBOSE | re.DOTALL,
)

_WRITE = re.compile(r"\b(?:INSERT|UPDATE|DELETE|REPLACE|MERGE)\b", re.IGNORECASE)
_RETURNING = re.compile(r"\bRETURNING\b", re.IGNORECASE)


async def query_raw(adapter: Adapter, text: str, args: Sequence[Any]) -> list[dict[str, Any]]:
    """The rows of a SELECT or of a write with RETURNING, by column name."""
    statement = _statement(adapter.dialect, text, args)
    if not returns_written_rows(text):
        return await executor(adapter).fetch_named(statement)
    async with transaction(adapter) as tx:  # outside one, reads go where nothing can be written
        return await tx.fetch_named(statement)


async def execute_raw(adapter: Adapter, text: str, args: Sequence[Any], tx: Tx | None = None) -> int:
    """How many rows a statement touched, in the transaction `tx` or else in the open one."""
    return await executor(adapter, tx).execute(_statement(adapter.dialect, text, args))


def _statement(dialect: Dialect, text: str, args: Sequence[Any]) -> Sql:
    own_text, count = translate(dialect, text)
    if count != len(args):
        raise DatabaseError(f"the statement has {count} placeholders and got {len(args)} values")
    encode = by_dialect(dialect, sqlite=encode_any, postgres=_json_as_text)
    return Sql(own_text, tuple(map(encode, args)))


def _json_as_text(value: Any) -> Any:
    return encode_json(value) if isinstance(value, dict) else value


@lru_cache(maxsize=512)
def returns_written_rows(text: str) -> bool:
    """Whether the statement writes and gives back what it wrote.

    >>> returns_written_rows("DELETE FROM posts RETURNING id"), returns_written_rows("SELECT 'RETURNING'")
    (True, False)
    """
    plain = _TOKENS.sub(" ", text)
    return _WRITE.search(plain) is not None and _RETURNING.search(plain) is not None


@lru_cache(maxsize=512)
def translate(dialect: Dialect, text: str) -> tuple[str, int]:
    """The statement in the dialect's placeholders, and how many there are; `??` is a literal `?`.

    >>> translate(Dialect.POSTGRES, "SELECT '?' WHERE a = ? AND b ?? ?")
    ("SELECT '?' WHERE a = $1 AND b ? $2", 2)
    """
    count = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        if match["literal"] is not None:
            return match[0]
        if match["escaped"] is not None:
            return "?"
        count += 1
        return by_dialect(dialect, sqlite="?", postgres=f"${count}")

    return _TOKENS.sub(replace, text), count
