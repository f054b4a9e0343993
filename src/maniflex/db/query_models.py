"""Query models at start: their SELECT must run, and give every declared column."""

from __future__ import annotations

from collections.abc import Sequence

from maniflex.db.port import Adapter
from maniflex.errors import DeclarationError, RequestError, Timeout, Unavailable
from maniflex.sql.model import ModelSql, gives, runs
from maniflex.sql.statement import Sql


async def check_queries(adapter: Adapter, models: Sequence[ModelSql]) -> None:
    """Ask every query model of this database for nothing; `DeclarationError` with all that is wrong."""
    problems = [problem for model in models if model.readonly for problem in await _problems(adapter, model)]
    if problems:
        raise DeclarationError(*problems)


async def _problems(adapter: Adapter, model: ModelSql) -> list[str]:
    meta = model.meta
    trouble = await _trouble(adapter, runs(meta, model.dialect))
    if trouble:
        return [f"{meta.name}: the query does not run: {trouble}"]
    missing = [
        f.column for f in meta.fields if await _trouble(adapter, gives(meta, model.dialect, f, typed=False))
    ]
    if missing:
        return [f"{meta.name}: the query gives no column {', '.join(missing)}"]
    problems = []
    for field in meta.fields:
        trouble = await _trouble(adapter, gives(meta, model.dialect, field, typed=True))
        if trouble:
            problems.append(f"{meta.name}.{field.name}: the query's column cannot be {field.kind}: {trouble}")
    return problems


async def _trouble(adapter: Adapter, sql: Sql) -> str | None:
    """What the database says against a statement."""
    try:
        await adapter.fetch(sql)
    except (Unavailable, Timeout):
        raise
    except RequestError as error:
        return str(error.__cause__ or error)
    return None
