"""Search on a large table of PostgreSQL: its column rewrites the table, and nobody can use it meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from maniflex.db.port import Executor
from maniflex.db.search_schema import adds_search_column
from maniflex.migrations.target import MigrationTarget
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import quote

LARGE = 10_000  # rows: fewer are rewritten in a moment


async def large_rewrites(run: Executor, models: Sequence[ModelSql]) -> list[ModelSql]:
    """The models whose tables would be rewritten for search, and are large."""
    if by_dialect(run.dialect, sqlite=True, postgres=False):
        return []
    return [model for model in models if await adds_search_column(run, model) and await _is_large(run, model)]


async def _is_large(run: Executor, model: ModelSql) -> bool:
    table = quote(model.table.name, model.dialect)
    return await run.fetch_one(Sql(f"SELECT 1 FROM {table} OFFSET {LARGE} LIMIT 1")) is not None


def describe_rewrites(target: MigrationTarget, models: Sequence[ModelSql]) -> str:
    """What would happen, and what to type in a quiet hour."""
    tables = ", ".join(model.table.name for model in models)
    command = target.command("up @ --allow-rewrite")
    return (
        f"searching adds a column to {tables}, of more than {LARGE:,} rows: PostgreSQL writes the table anew"
        f" and lets nobody read or write it meanwhile. In a quiet hour: {command}"
    )
