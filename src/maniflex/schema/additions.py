"""What a start adds to a database: the differences that lose nothing, by the operations and plans of files.

Everything happens in one transaction under one lock, so two processes that start together do not collide and
a failure leaves no half-made schema.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic.operations import ops
from alembic.operations.ops import MigrateOperation

from maniflex.db.port import Adapter, Tx
from maniflex.errors import ConstraintViolation, DeclarationError
from maniflex.model.meta import FieldMeta
from maniflex.schema.derived import refresh_derived
from maniflex.schema.differences import Difference, What, find_differences, index_renames
from maniflex.schema.operations import (
    Backfill,
    FieldFactory,
    RenameIndex,
    SetNotNull,
    StatementByDatabase,
)
from maniflex.schema.plan_postgres import plan_on_postgres
from maniflex.schema.plan_sqlite import plan_on_sqlite, without_foreign_keys
from maniflex.schema.read import read_indexes
from maniflex.schema.refusals import Refusals, duplicates
from maniflex.schema.steps import act, note_columns
from maniflex.schema.types import BY_KIND
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import constant_default

log = logging.getLogger("maniflex.migrate")

_LOCK = 0x6D616E69666C6578 >> 1  # "maniflex"; any fixed number of 63 bits will do
_BATCH = 500
_RENAMES = (What.RENAMED_TABLE, What.RENAMED_COLUMN)
_DERIVED = (*_RENAMES, What.TABLE, What.COLUMN, What.DERIVED)  # after which pieces are brought up to date


class Additions:
    """Adds what one database lacks."""

    def __init__(self, adapter: Adapter, models: Sequence[ModelSql], statements: Sequence[Sql]) -> None:
        self._adapter = adapter
        self._models = models
        self._statements = statements

    async def add(self, differences: Sequence[Difference], refusals: Callable[..., Refusals]) -> None:
        """Add what is missing unless something contradicts; `differences` are those before the lock."""
        anew = self._makes_anew(differences)
        async with (
            without_foreign_keys(self._adapter) if anew else nullcontext(),
            self._adapter.transaction() as tx,
        ):
            if by_dialect(tx.dialect, sqlite=False, postgres=True):  # on SQLite, only one writes anyway
                await _take_turn(tx)
            differences = await find_differences(tx, self._models, self._statements)
            await refusals(tx, differences=differences).judge()
            if self._makes_anew(differences) and not anew:
                raise DeclarationError(
                    f"another process changed {self._adapter.label} meanwhile; start again"
                )
            await self._add(tx, differences)

    def _makes_anew(self, differences: Sequence[Difference]) -> bool:
        """Whether SQLite makes a table anew, which needs foreign keys switched off before the transaction."""
        return by_dialect(self._adapter.dialect, sqlite=True, postgres=False) and any(
            d.what is What.COLUMN and d.field is not None and _needs_values(d.field) for d in differences
        )

    async def _add(self, tx: Tx, differences: Sequence[Difference]) -> None:
        for model in dict.fromkeys(d.model for d in differences if d.model is not None):
            await self._add_to_table(tx, model, [d for d in differences if d.model is model])
        await refresh_derived(
            tx, list(dict.fromkeys(d.model for d in differences if d.model and d.what in _DERIVED))
        )
        for difference in differences:
            if difference.what is What.INDEX:
                await self._build_index(tx, difference)
            elif difference.object is not None:
                text = difference.object.text
                await self._perform(tx, [StatementByDatabase(sqlite=text, postgresql=text)])

    async def _add_to_table(self, tx: Tx, model: ModelSql, differences: Sequence[Difference]) -> None:
        await self._rename(tx, model, differences)
        if any(difference.what is What.TABLE for difference in differences):
            log.info("creating table %s", model.table.name)
            await self._perform(tx, _table_operations(model))
        await self._perform(tx, [_set_default(d) for d in differences if d.what is What.NO_DEFAULT])
        new = [d.field for d in differences if d.what is What.COLUMN and d.field is not None]
        for field in new:
            log.info("adding column %s.%s", model.table.name, field.column)
        await self._perform(tx, list(_column_operations(model, new)))

    async def _rename(self, tx: Tx, model: ModelSql, differences: Sequence[Difference]) -> None:
        """Rename the table and its columns, then its indexes, whose names tell both."""
        table, old_columns = model.table.name, dict[str, str]()
        for difference in differences:
            old = difference.name
            if difference.what is What.RENAMED_TABLE:
                log.info("renaming table %s to %s", old, table)
                await self._perform(tx, [ops.RenameTableOp(old, table)])
            elif difference.what is What.RENAMED_COLUMN and difference.field is not None:
                new = difference.field.column
                log.info("renaming column %s.%s to %s", table, old, new)
                await self._perform(tx, [ops.AlterColumnOp(table, old, modify_name=new)])
                old_columns[new] = old
        if any(difference.what in _RENAMES for difference in differences):
            pairs = index_renames(model, await read_indexes(tx, model), old_columns)
            await self._perform(tx, [RenameIndex(old, new) for old, new in pairs.items()])

    async def _build_index(self, tx: Tx, difference: Difference) -> None:
        model, index = difference.model, difference.index
        assert model is not None
        assert index is not None
        names = ", ".join(column.name for column in index.columns)
        if index.unique and (problem := await duplicates(tx, model, index)):
            raise DeclarationError(problem)
        log.info("creating index %s on %s (%s)", index.name, model.table.name, names)
        try:
            await self._perform(tx, [ops.CreateIndexOp.from_index(index)])
        except ConstraintViolation as error:  # a row came in between, from a writer that takes no lock
            raise DeclarationError(
                f"{model.meta.name}: {model.table.name!r} repeats values in {names}"
            ) from error

    async def _perform(self, tx: Tx, operations: Sequence[MigrateOperation]) -> None:
        """Carry out operations on tables of which nobody waits for another: indexes are built in place."""
        tables = {model.table.name for model in self._models}
        for operation in operations:
            plan = by_dialect(
                tx.dialect,
                sqlite=partial(plan_on_sqlite, operation, tx),
                postgres=partial(plan_on_postgres, operation, tx, tables),
            )
            for action in await plan():
                await act(tx, action, self._models)
            await note_columns(tx, operations, operation, self._models)


def _table_operations(model: ModelSql) -> list[MigrateOperation]:
    indexes = sorted(model.table.indexes, key=lambda index: str(index.name))
    return [ops.CreateTableOp.from_table(model.table), *map(ops.CreateIndexOp.from_index, indexes)]


def _set_default(difference: Difference) -> MigrateOperation:
    assert difference.model is not None
    assert difference.field is not None
    column = difference.model.table.c[difference.field.column]
    return ops.AlterColumnOp(column.table.name, column.name, modify_server_default=_default(column))


def _column_operations(model: ModelSql, fields: Sequence[FieldMeta]) -> Iterator[MigrateOperation]:
    """The operations that add columns, as `migrate make` would write them, in one pass over the rows."""
    table, values, required = model.table.name, dict[str, FieldFactory](), list[str]()
    for field in fields:
        column, kind = model.table.c[field.column], BY_KIND[field.kind]()
        needs_values = _needs_values(field)
        default = None if needs_values else _default(column)
        nullable = field.nullable or needs_values
        yield ops.AddColumnOp(table, sa.Column(column.name, kind, nullable=nullable, server_default=default))
        if default is None and (field.default_factory is not None or (needs_values and field.has_default)):
            values[field.column] = FieldFactory(f"{model.meta.name}.{field.name}")
        if needs_values:
            required.append(field.column)
    if values:
        yield Backfill(table, values, None, _BATCH, 0, model.id.name)
    if required:
        yield SetNotNull(table, tuple(required))


def _default(column: sa.Column[Any]) -> Any:
    return column.server_default.arg if isinstance(column.server_default, sa.DefaultClause) else None


def _needs_values(field: FieldMeta) -> bool:
    """Whether rows that are there have to be given values before the column may not be null."""
    return not field.nullable and constant_default(field, Dialect.SQLITE) is None


async def _take_turn(tx: Tx) -> None:
    """Wait until no other process migrates; neither that nor a large index is a matter of seconds."""
    row = await tx.fetch_one(Sql("SELECT current_setting('lock_timeout')"))
    await tx.execute(Sql("SET LOCAL statement_timeout = 0"))
    await tx.execute(Sql("SET LOCAL lock_timeout = 0"))
    await tx.fetch(Sql("SELECT pg_advisory_xact_lock($1)", (_LOCK,)))
    # From here on a lock is one that requests hold, and those queue up behind the one that waits for it.
    await tx.fetch(Sql("SELECT set_config('lock_timeout', $1, true)", (row[0] if row else "0",)))
