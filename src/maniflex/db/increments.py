"""Additions to numeric fields of a row, so that concurrent ones all land and declared bounds hold."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

from maniflex._clock import Clock
from maniflex.db.current import executor, transaction
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.db.unchanged import hold_changed, mark_changed
from maniflex.errors import ValidationFailed
from maniflex.model.meta import Kind, ModelMeta
from maniflex.sql import write
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql
from maniflex.sql.where import Scope


class Incrementable(Protocol):
    """The store of a model, as far as additions need it."""

    meta: ModelMeta
    adapter: Adapter
    sql: ModelSql
    clock: Clock
    decode: Callable[[Sequence[Any]], Sequence[Any]] | None

    async def lock(self, record_id: str, *, tx: Tx, scope: Scope = ()) -> Row: ...

    async def update(
        self, record_id: str, changes: Mapping[str, Any], *, scope: Scope = (), tx: Tx | None = None
    ) -> Row: ...

    def execute_write(self, statement: Sql, run: Executor) -> Awaitable[Sequence[Row]]: ...

    async def why_untouched(
        self, record_id: str, scope: Scope, tx: Tx | None, otherwise: Exception | None = None
    ) -> Exception: ...


async def increment(
    store: Incrementable, record_id: str, deltas: Mapping[str, Any], scope: Scope, tx: Tx | None
) -> Row:
    """Add to the fields of a live row inside the scope; `ValidationFailed` where a sum leaves its bounds."""
    _check_deltas(store.meta, deltas)
    run = executor(store.adapter, tx)
    # It adds to the row as it is now; that makes an earlier read of the row no fresher.
    is_stale = await hold_changed(store.sql, record_id, run)
    try:
        if any(store.meta.by_name[name].kind is Kind.DECIMAL for name in deltas):
            return await _increment_decimal(store, record_id, deltas, scope, tx)
        return await _increment_number(store, record_id, deltas, scope, tx)
    finally:
        if is_stale:
            mark_changed(store.sql, [record_id], run)


async def _increment_number(
    store: Incrementable, record_id: str, deltas: Mapping[str, Any], scope: Scope, tx: Tx | None
) -> Row:
    stamps = {"updated_at": store.clock.now()}
    out_of_bounds = _out_of_bounds(store.meta, record_id, deltas)
    try:
        statement = write.increment(store.sql, record_id, deltas, stamps, scope)
        rows = await store.execute_write(statement, executor(store.adapter, tx))
    except ValidationFailed as error:  # beyond what the column holds
        raise out_of_bounds from error
    if not rows:
        raise await store.why_untouched(record_id, scope, tx, otherwise=out_of_bounds)
    return rows[0] if store.decode is None else store.decode(rows[0])


async def _increment_decimal(
    store: Incrementable, record_id: str, deltas: Mapping[str, Any], scope: Scope, tx: Tx | None
) -> Row:
    # SQLite would add decimals as floats, so the sum is made here, under the row's lock.
    if tx is None:
        async with transaction(store.adapter) as own_tx:
            return await _increment_decimal(store, record_id, deltas, scope, own_tx)
    row = await store.lock(record_id, tx=tx, scope=scope)
    now = dict(zip(store.sql.names, row, strict=True))
    if any(now[name] is None for name in deltas):
        raise _out_of_bounds(store.meta, record_id, deltas)
    sums = {name: now[name] + type(now[name])(str(delta)) for name, delta in deltas.items()}
    changes = store.meta.validator.patch_from_code(sums)
    return await store.update(record_id, changes, scope=scope, tx=tx)


def _out_of_bounds(meta: ModelMeta, record_id: str, deltas: Mapping[str, Any]) -> ValidationFailed:
    message = "is null or would leave its bounds"
    details = [{"field": name, "message": message} for name in deltas]
    return ValidationFailed(details=details, model=meta.name, record_id=record_id)


def _check_deltas(meta: ModelMeta, deltas: Mapping[str, Any]) -> None:
    for name, delta in deltas.items():
        field = meta.by_name.get(name)
        if field is None or field.kind not in (Kind.INT, Kind.FLOAT, Kind.DECIMAL):
            raise _invalid(meta, name, "not a numeric field")
        number = isinstance(delta, int | float | Decimal) and not isinstance(delta, bool)
        if not number or not (isinstance(delta, int) or math.isfinite(delta)):
            raise _invalid(meta, name, "must be a number")
        if field.kind is Kind.INT and not isinstance(delta, int):
            raise _invalid(meta, name, "must be a whole number")


def _invalid(meta: ModelMeta, name: str, message: str) -> ValidationFailed:
    return ValidationFailed(details=[{"field": name, "message": message}], model=meta.name)
