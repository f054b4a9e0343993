"""The bytes of a database as they lie on its disk: rows that were changed or deleted included."""

from __future__ import annotations

from pathlib import Path

from maniflex.config import sqlite_path
from tests.kit.postgres import execute, fetch_value

_FILES = """
SELECT string_agg(pg_read_binary_file(pg_relation_filepath(c.oid)), ''::bytea)
  FROM pg_class c WHERE c.oid >= 16384 AND pg_relation_filepath(c.oid) IS NOT NULL
"""
_ROWS = "SELECT string_agg(t::text, E'\\n') FROM {} t"
_TABLES = "SELECT array_agg(quote_ident(tablename)) FROM pg_tables WHERE schemaname = 'public'"


async def stored_bytes(url: str) -> bytes:
    """Everything in the files of a database: tables, indexes, what is kept beside them, SQLite's log."""
    if not url.startswith("postgres"):
        path = Path(sqlite_path(url))
        return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    await execute(url, "CHECKPOINT")  # before it, changes are in the memory of the server
    files: bytes = await fetch_value(url, _FILES)
    # Long values are compressed in the files, so the rows are searched as the server tells them too.
    rows = [await fetch_value(url, _ROWS.format(table)) for table in await fetch_value(url, _TABLES)]
    return files + "\n".join(filter(None, rows)).encode()
