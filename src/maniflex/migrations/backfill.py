"""`op.backfill`: set columns of the rows that are there, batch by batch along the key.

Each batch is one statement that takes its rows in the order of the key. SQL values are computed by the
database; functions are called with each row. Where the batches stand is noted with each of them, so that an
interrupted backfill goes on where it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from maniflex.db.port import Executor
from maniflex.migrations.by_database import ByDatabase
from maniflex.migrations.checks import using_text
from maniflex.migrations.errors import MigrationError
from maniflex.migrations.operations import Backfill, FieldFactory
from maniflex.model.meta import FieldMeta
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.tables import quote


class Backfiller:
    """The batches of one backfill on one database."""

    def __init__(self, backfill: Backfill, models: Sequence[ModelSql]) -> None:
        self._backfill = backfill
        self._model = next((m for m in models if m.table.name == backfill.table), None)
        self._values: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
        self._sql: dict[str, str | ByDatabase] = {}
        for column, value in backfill.set.items():
            if isinstance(value, FieldFactory):
                self._values[column] = self._factory(value)
            elif callable(value):
                self._values[column] = value
            else:
                self._sql[column] = value if isinstance(value, ByDatabase) else str(value)

    def _factory(self, factory: FieldFactory) -> Callable[[Mapping[str, Any]], Any]:
        name = factory.name.rpartition(".")[2]
        field = self._model.meta.by_name.get(name) if self._model is not None else None
        make = field.default_factory if field is not None else None
        if make is None:
            raise MigrationError(
                f"op.factory({factory.name!r}): there is no field of this name with a factory"
            )
        return lambda row: make()

    async def run_batch(self, run: Executor, last: Any) -> tuple[int, Any]:
        """Fill the rows behind the key `last`; how many they were, and the key of the last one."""
        if self._values:
            return await self._run_functions(run, last)
        keys = [row[0] for row in await run.fetch(self._select(run, last, self._key(run)))]
        if not keys:
            return 0, last
        await self._update(run, ", ".join(self._sql_sets(run)), (), keys)
        return len(keys), keys[-1]

    async def _run_functions(self, run: Executor, last: Any) -> tuple[int, Any]:
        rows = await self._rows(run, last)
        for row in rows:
            values = {column: await self._value(column, fn, row) for column, fn in self._values.items()}
            names = [*values]
            sets = [f"{quote(c, run.dialect)} = {self._mark(run, n)}" for n, c in enumerate(names, 1)]
            await self._update(
                run,
                ", ".join([*sets, *self._sql_sets(run)]),
                tuple(values.values()),
                [row[self._backfill.key]],
            )
        return (len(rows), rows[-1][self._backfill.key]) if rows else (0, last)

    async def _rows(self, run: Executor, last: Any) -> list[dict[str, Any]]:
        """The rows of a batch as functions see them: values of the model's types where there is a model."""
        if self._model is None:
            return [dict(row) for row in await run.fetch_named(self._select(run, last, "*"))]
        model, existing = self._model, await run.fetch_named(self._select(run, last, "*"))
        fields = [f for f in model.meta.fields if not existing or f.column in existing[0]]
        decode = model.decoder(fields)
        rows = []
        for row in existing:
            values: Sequence[Any] = [row[f.column] for f in fields]
            values = decode(values) if decode is not None else values
            rows.append({**row, **{f.column: v for f, v in zip(fields, values, strict=True)}})
        return rows

    async def _value(self, column: str, fn: Callable[[Any], Any], row: Mapping[str, Any]) -> Any:
        value = fn(row)
        if inspect.isawaitable(value):
            value = await value
        field = self._field(column)
        return value if field is None or self._model is None else self._model.encode(field, value)

    def _field(self, column: str) -> FieldMeta | None:
        fields = () if self._model is None else self._model.meta.fields
        return next((field for field in fields if field.column == column), None)

    def _sql_sets(self, run: Executor) -> list[str]:
        return [
            f"{quote(column, run.dialect)} = {using_text(sql, run.dialect)}"
            for column, sql in self._sql.items()
        ]

    def _key(self, run: Executor) -> str:
        return quote(self._backfill.key, run.dialect)

    def _mark(self, run: Executor, number: int) -> str:
        return by_dialect(run.dialect, sqlite="?", postgres=f"${number}")

    def _select(self, run: Executor, last: Any, what: str) -> Sql:
        backfill, key = self._backfill, self._key(run)
        conditions = [f"({backfill.where})"] if backfill.where else []
        if last is not None:
            conditions.append(f"{key} > {self._mark(run, 1)}")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        text = f"SELECT {what} FROM {quote(backfill.table, run.dialect)}{where} ORDER BY {key}"
        return Sql(f"{text} LIMIT {int(backfill.batch)}", () if last is None else (last,))

    async def _update(self, run: Executor, sets: str, values: tuple[Any, ...], keys: Sequence[Any]) -> None:
        marks = [self._mark(run, len(values) + n) for n in range(1, len(keys) + 1)]
        where = f"{self._key(run)} IN ({', '.join(marks)})"
        if self._backfill.where:  # a row that changed meanwhile is no longer ours
            where += f" AND ({self._backfill.where})"
        table = quote(self._backfill.table, run.dialect)
        await run.execute(Sql(f"UPDATE {table} SET {sets} WHERE {where}", (*values, *keys)))

    async def count(self, run: Executor) -> int:
        """How many rows there are to fill, for a progress bar."""
        where = f" WHERE {self._backfill.where}" if self._backfill.where else ""
        row = await run.fetch_one(
            Sql(f"SELECT count(*) FROM {quote(self._backfill.table, run.dialect)}{where}")
        )
        return 0 if row is None else int(row[0])
