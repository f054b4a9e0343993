"""How large tables are, without counting all rows: from statistics, or by looking so far and no further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maniflex.db.port import Executor
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import quote

LARGE = 10_000  # rows

_ESTIMATES = """
SELECT c.relname, c.reltuples::bigint FROM pg_class c
 WHERE c.oid = ANY (SELECT to_regclass(name) FROM unnest($1::text[]) AS name) AND c.reltuples >= 0
"""


async def estimate_rows(run: Executor, models: Sequence[ModelSql]) -> Mapping[str, int]:
    """About how many rows each table has, by its name, as far as the database keeps count of them."""
    if not models:
        return {}
    names = [quote(model.table.name, model.dialect) for model in models]
    statement = by_dialect(run.dialect, sqlite=None, postgres=Sql(_ESTIMATES, (names,)))
    return {} if statement is None else {row[0]: int(row[1]) for row in await run.fetch(statement)}


async def tables_over(run: Executor, models: Sequence[ModelSql], limit: int = LARGE) -> list[ModelSql]:
    """The models whose tables have more rows than that."""
    estimates = await estimate_rows(run, models)
    large = []
    for model in models:
        rows = estimates.get(model.table.name)
        if (rows is None and await _has_row_at(run, model, limit)) or (rows is not None and rows > limit):
            large.append(model)
    return large


async def _has_row_at(run: Executor, model: ModelSql, limit: int) -> bool:
    """Whether there is one more row than that; reads no more of the table."""
    table = quote(model.table.name, model.dialect)
    if not await _exists(run, model):
        return False
    return await run.fetch_one(Sql(f"SELECT 1 FROM {table} LIMIT 1 OFFSET {limit}")) is not None


_EXISTS: dict[Dialect, str] = {
    Dialect.SQLITE: "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?",
    Dialect.POSTGRES: "SELECT 1 WHERE to_regclass($1) IS NOT NULL",
}


async def _exists(run: Executor, model: ModelSql) -> bool:
    name = by_dialect(model.dialect, sqlite=model.table.name, postgres=quote(model.table.name, model.dialect))
    return await run.fetch_one(Sql(_EXISTS[model.dialect], (name,))) is not None
