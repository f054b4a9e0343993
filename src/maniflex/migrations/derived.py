"""Bring pieces that are derived from the rows up to date: order keys of decimals and full text search."""

from __future__ import annotations

from collections.abc import Sequence

from maniflex.db.columns import read_columns
from maniflex.db.decimal_schema import migrate_decimals
from maniflex.db.port import Executor, Tx
from maniflex.db.search_schema import migrate_search
from maniflex.sql.model import ModelSql


async def refresh_derived(tx: Tx, models: Sequence[ModelSql]) -> None:
    """Refresh the pieces of all models whose tables are as far as the models are."""
    for model in await ready_models(tx, models):
        await migrate_decimals(tx, model)
        await migrate_search(tx, model)


async def ready_models(run: Executor, models: Sequence[ModelSql]) -> list[ModelSql]:
    """The models all of whose columns are there."""
    ready = []
    for model in models:
        if not model.readonly:
            columns = await read_columns(run, model)
            if columns and all(field.column in columns for field in model.meta.fields):
                ready.append(model)
    return ready
