"""The tables in which a database notes its migrations: Alembic's `alembic_version`, and our log beside it.

The layouts of histories, which migrations change too, have a table of their own (`history_schema.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from maniflex.db.port import Executor
from maniflex.sql.history_layouts import HISTORY_SCHEMA
from maniflex.sql.statement import Sql, by_dialect

VERSIONS = "alembic_version"
LOG = "maniflex_migration"
OWN_TABLES = frozenset({VERSIONS, LOG, HISTORY_SCHEMA})
VERSION_TABLES = (
    f"CREATE TABLE IF NOT EXISTS {VERSIONS} (version_num VARCHAR(32) NOT NULL,"
    f" CONSTRAINT {VERSIONS}_pkc PRIMARY KEY (version_num))",
    f"CREATE TABLE IF NOT EXISTS {LOG} (revision VARCHAR(32) NOT NULL PRIMARY KEY, digest TEXT NOT NULL,"
    " applied_at TEXT, seconds DOUBLE PRECISION, progress TEXT)",
)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One migration in the log; `progress` is set while it is applied or undone."""

    revision: str
    digest: str
    applied_at: str | None
    seconds: float | None
    progress: Mapping[str, Any] | None


async def has_table(run: Executor, table: str) -> bool:
    """Whether the database has a table of this name."""
    statement = by_dialect(
        run.dialect,
        sqlite=Sql("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)),
        postgres=Sql("SELECT 1 WHERE to_regclass(quote_ident($1)) IS NOT NULL", (table,)),
    )
    return await run.fetch_one(statement) is not None


async def read_heads(run: Executor) -> tuple[str, ...] | None:
    """The revisions the database is at; None when migrations do not keep it."""
    if not await has_table(run, VERSIONS):
        return None
    return tuple(row[0] for row in await run.fetch(Sql(f"SELECT version_num FROM {VERSIONS} ORDER BY 1")))


async def read_log(run: Executor) -> dict[str, LogEntry]:
    """The log by revision."""
    if not await has_table(run, LOG):
        return {}
    rows = await run.fetch(Sql(f"SELECT revision, digest, applied_at, seconds, progress FROM {LOG}"))
    return {str(row[0]): _entry(*row) for row in rows}


def _entry(
    revision: str, digest: str, applied_at: str | None, seconds: float | None, progress: str | None
) -> LogEntry:
    return LogEntry(revision, digest, applied_at, seconds, json.loads(progress) if progress else None)


async def make_tables(run: Executor) -> None:
    """Make both tables unless they are there."""
    for statement in VERSION_TABLES:
        await run.execute(Sql(statement))


async def write_head(run: Executor, revision: str) -> None:
    """Note a revision that the database is at."""
    mark = by_dialect(run.dialect, sqlite="?", postgres="$1")
    await run.execute(Sql(f"INSERT INTO {VERSIONS} (version_num) VALUES ({mark})", (revision,)))


async def write_entry(run: Executor, entry: LogEntry) -> None:
    """Write one entry of the log, or replace it."""
    marks = by_dialect(run.dialect, sqlite="?, ?, ?, ?, ?", postgres="$1, $2, $3, $4, $5")
    progress = None if entry.progress is None else json.dumps(entry.progress)
    await run.execute(
        Sql(
            f"INSERT INTO {LOG} (revision, digest, applied_at, seconds, progress) VALUES ({marks})"
            " ON CONFLICT (revision) DO UPDATE SET digest = excluded.digest,"
            " applied_at = excluded.applied_at, seconds = excluded.seconds, progress = excluded.progress",
            (entry.revision, entry.digest, entry.applied_at, entry.seconds, progress),
        )
    )


async def delete_entry(run: Executor, revision: str) -> None:
    """Forget a migration that was undone."""
    mark = by_dialect(run.dialect, sqlite="?", postgres="$1")
    await run.execute(Sql(f"DELETE FROM {LOG} WHERE revision = {mark}", (revision,)))
