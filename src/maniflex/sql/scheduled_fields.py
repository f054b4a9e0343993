"""What a sweep asks of the database: which rows are due, and to change them if they still are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from maniflex.sql.model import ModelSql
from maniflex.sql.operators import list_value, one_of
from maniflex.sql.scheduled_indexes import ScheduleIndex, Waiting
from maniflex.sql.statement import Compiled, Sql, compile_statement
from maniflex.sql.write import lock_rows

_NOW = "$now"
_IDS = "$ids"
_MOST = "$most"
_AFTER = "$after"
_LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)


Place = tuple[Any, ...]  # where in the order of an index a batch ended: the last row's key, as it is stored


def take(
    model: ModelSql,
    schedule_index: ScheduleIndex,
    now: datetime,
    after: Place | None,
    most: int,
    *,
    whole: bool = False,
) -> Sql:
    """Rows that are due, locked until the transaction ends: their key, which ends in the id.

    After it come all columns if `whole`. Rows that another transaction has locked are passed
    over: it changes them or serves them.
    """
    statement = model.shapes.get(("take", schedule_index, whole), _take, model, schedule_index, whole)
    key = _start(model, schedule_index, now) if after is None else after
    arguments = {f"{_AFTER}{i}": part for i, part in enumerate(key)}
    return statement.bind({**arguments, _NOW: _due_until(model, schedule_index, now), _MOST: most})


def _take(model: ModelSql, schedule_index: ScheduleIndex, whole: bool) -> Compiled:
    waiting = Waiting(model.meta, schedule_index, model.table, model.dialect, keyed=model.uses_order_keys)
    order = waiting.order
    after = sa.tuple_(*[sa.bindparam(f"{_AFTER}{i}") for i in range(len(order))])
    statement = _rows(model, waiting, whole)
    statement = statement.where(waiting.due(sa.bindparam(_NOW)), sa.tuple_(*order) > after)
    statement = statement.limit(sa.bindparam(_MOST, type_=sa.Integer())).offset(sa.literal_column("0"))
    return compile_statement(statement, model.dialect)


def _rows(model: ModelSql, waiting: Waiting, whole: bool) -> sa.Select[Any]:
    columns = [column.label(None) for column in model.columns] if whole else []
    statement = sa.select(*waiting.order, *columns).order_by(*waiting.order)
    return lock_rows(statement, model.dialect, skip_locked=True)


def count_due(model: ModelSql, schedule_index: ScheduleIndex, now: datetime, most: int) -> Sql:
    """How many rows are due; it stops counting at `most`."""
    statement = model.shapes.get(("count_due", schedule_index), _count_due, model, schedule_index)
    return statement.bind({_NOW: _due_until(model, schedule_index, now), _MOST: most})


def _count_due(model: ModelSql, schedule_index: ScheduleIndex) -> Compiled:
    waiting = Waiting(model.meta, schedule_index, model.table, model.dialect, keyed=model.uses_order_keys)
    rows = sa.select(model.id).where(waiting.due(sa.bindparam(_NOW)))
    some = rows.limit(sa.bindparam(_MOST, type_=sa.Integer())).offset(sa.literal_column("0")).subquery()
    return compile_statement(sa.select(sa.func.count()).select_from(some), model.dialect)


def take_again(
    model: ModelSql, schedule_index: ScheduleIndex, now: datetime, ids: Sequence[str], *, whole: bool = False
) -> Sql:
    """Those of the rows that are still due, as `take` gives them."""
    statement = model.shapes.get(
        ("take_again", schedule_index, whole), _take_again, model, schedule_index, whole
    )
    return statement.bind(
        {_NOW: _due_until(model, schedule_index, now), _IDS: list_value(model.dialect, ids)}
    )


def _take_again(model: ModelSql, schedule_index: ScheduleIndex, whole: bool) -> Compiled:
    waiting = Waiting(model.meta, schedule_index, model.table, model.dialect, keyed=model.uses_order_keys)
    statement = _rows(model, waiting, whole).where(*_still_due(model, waiting))
    return compile_statement(statement, model.dialect)


def change(
    model: ModelSql, schedule_index: ScheduleIndex, now: datetime, ids: Sequence[str], stamp: datetime
) -> Sql:
    """Set the field of those of the rows that are still due; gives their ids."""
    statement = model.shapes.get(("change", schedule_index), _change, model, schedule_index)
    arguments = {_NOW: _due_until(model, schedule_index, now), "updated_at": _instant(model, stamp)}
    target = model.meta.by_name[schedule_index.schedule.target]
    arguments[target.name] = model.encode(target, schedule_index.schedule.to)
    return statement.bind({**arguments, _IDS: list_value(model.dialect, ids)})


def _change(model: ModelSql, schedule_index: ScheduleIndex) -> Compiled:
    waiting = Waiting(model.meta, schedule_index, model.table, model.dialect, keyed=model.uses_order_keys)
    fields = [model.meta.by_name[name] for name in (schedule_index.schedule.target, "updated_at")]
    statement = sa.update(model.table).values({f.column: sa.bindparam(f.name) for f in fields})
    return compile_statement(statement.where(*_still_due(model, waiting)).returning(model.id), model.dialect)


def _still_due(model: ModelSql, waiting: Waiting) -> tuple[sa.ColumnElement[bool], ...]:
    return one_of(model.dialect, model.id, _IDS), waiting.due(sa.bindparam(_NOW))


def _start(model: ModelSql, schedule_index: ScheduleIndex, now: datetime) -> Place:
    """Before the first row; where a later time leads the order, that time is still to come."""
    leading = (_LONG_AGO,) if schedule_index.rival is None else (now, _LONG_AGO)
    return (*[_instant(model, moment) for moment in leading], "")


def _due_until(model: ModelSql, schedule_index: ScheduleIndex, now: datetime) -> Any:
    """The latest time that is due now."""
    return _instant(model, now - min(schedule_index.schedule.after, now - _LONG_AGO))


def _instant(model: ModelSql, moment: datetime) -> Any:
    return model.encode(model.meta.by_name["updated_at"], moment)
