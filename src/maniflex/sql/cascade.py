"""Deleting what refers to a deleted row, and bringing a deleted row back.

Every statement is about a batch of ids that travels as one parameter, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from maniflex.sql.model import ID, LOCK, ModelSql
from maniflex.sql.operators import list_value, one_of
from maniflex.sql.select import own_version
from maniflex.sql.statement import Compiled, Sql, compile_statement
from maniflex.sql.where import Scope, parent_values, parents_inside, scope_conditions, shape, values
from maniflex.sql.write import (
    Reference,
    assignments,
    encode_values,
    key_values,
    lock_rows,
    named_rows,
    shape_of,
)

_IDS = "$ids"
_MOST = "$most"


def children(model: ModelSql, key: str, parents: Sequence[str], most: int, *, versioned: bool = False) -> Sql:
    """The ids of some live rows that refer to any of `parents`, locked until the transaction ends.

    With `versioned`, the version of each row and whether this transaction wrote it follow.
    """
    statement = model.shapes.get(("children", key, versioned), _children, model, key, versioned)
    return statement.bind({_IDS: list_value(model.dialect, parents), _MOST: most})


def _children(model: ModelSql, key: str, versioned: bool) -> Compiled:
    refers = one_of(model.dialect, model.at(model.table, key), _IDS)
    columns = [model.id, model.version, own_version(model)] if versioned else [model.id]
    # In the order of ids, so that two deletions that meet wait for each other instead of colliding.
    statement = sa.select(*columns).where(refers, *model.live()).order_by(model.id)
    statement = statement.limit(sa.bindparam(_MOST, type_=sa.Integer())).offset(sa.literal_column("0"))
    return compile_statement(lock_rows(statement, model.dialect), model.dialect)


def remove(model: ModelSql, ids: Sequence[str], stamps: Mapping[str, Any], *, marked: bool = False) -> Sql:
    """Remove the rows, or mark them with `stamps`; those marked before only if `marked`."""
    names = tuple(stamps)
    statement = model.shapes.get(("remove", names, marked), _remove, model, names, marked)
    return statement.bind({**encode_values(model, stamps), _IDS: list_value(model.dialect, ids)})


def _remove(model: ModelSql, names: tuple[str, ...], marked: bool) -> Compiled:
    statement: Any = sa.delete(model.table)
    if names:
        statement = sa.update(model.table).values(assignments(model, names))
    live = [] if marked else model.live()
    return compile_statement(statement.where(one_of(model.dialect, model.id, _IDS), *live), model.dialect)


def unlink(model: ModelSql, key: str, parents: Sequence[str], stamps: Mapping[str, Any]) -> Sql:
    """Empty the key of every row that refers to any of `parents`, deleted rows too."""
    statement = model.shapes.get(("unlink", key), _unlink, model, key, tuple(stamps))
    return statement.bind({**encode_values(model, stamps), _IDS: list_value(model.dialect, parents)})


def _unlink(model: ModelSql, key: str, names: tuple[str, ...]) -> Compiled:
    column = model.at(model.table, key)
    statement = sa.update(model.table).values({**assignments(model, names), column.name: sa.null()})
    return compile_statement(statement.where(one_of(model.dialect, column, _IDS)), model.dialect)


def referring(model: ModelSql, key: str, parents: Sequence[str], most: int) -> Sql:
    """Some rows that refer to any of `parents`, deleted ones too, locked until the transaction ends."""
    statement = model.shapes.get(("referring", key), _referring, model, key)
    return statement.bind({_IDS: list_value(model.dialect, parents), _MOST: most})


def _referring(model: ModelSql, key: str) -> Compiled:
    refers = one_of(model.dialect, model.at(model.table, key), _IDS)
    statement = sa.select(*model.columns).where(refers).order_by(model.id)
    statement = statement.limit(sa.bindparam(_MOST, type_=sa.Integer())).offset(sa.literal_column("0"))
    return compile_statement(lock_rows(statement, model.dialect), model.dialect)


def rows(model: ModelSql, ids: Sequence[str], *, locked: bool = True, keeps_keys: bool = False) -> Sql:
    """The rows of these ids in their order, deleted ones too; `locked` until the transaction ends.

    A lock that `keeps_keys` lets others refer to the rows meanwhile.
    """
    statement = model.shapes.get(("rows", locked, keeps_keys), _rows, model, locked, keeps_keys)
    return statement.bind({_IDS: list_value(model.dialect, ids)})


def _rows(model: ModelSql, locked: bool, keeps_keys: bool) -> Compiled:
    statement = sa.select(*model.columns).where(*_among(model, ())).order_by(model.id)
    if locked:
        statement = lock_rows(statement, model.dialect, key_share=keeps_keys)
    return compile_statement(statement, model.dialect)


def ids_after(model: ModelSql, last_id: str, most: int) -> Sql:
    """The ids behind this one, of deleted rows too, in their order."""
    statement = model.shapes.get("ids_after", _ids_after, model)
    return statement.bind({ID: last_id, _MOST: most})


def _ids_after(model: ModelSql) -> Compiled:
    statement = sa.select(model.id).where(model.id > sa.bindparam(ID, type_=sa.Text())).order_by(model.id)
    statement = statement.limit(sa.bindparam(_MOST, type_=sa.Integer())).offset(sa.literal_column("0"))
    return compile_statement(statement, model.dialect)


def parents_in_use(
    model: ModelSql,
    key: str,
    parents: Sequence[str],
    scope: Scope = (),
    *,
    apart: bool = False,
    locked: bool = False,
    held: bool = False,
) -> Sql:
    """Which of `parents` live rows refer to; `apart` from themselves, or only rows in a locked state.

    With `held`, also those in a locked state that their `retention_hold` keeps.
    """
    statement = model.shapes.get(
        ("parents_in_use", key, apart, locked, held, shape((), scope)),
        _parents_in_use,
        model,
        key,
        scope,
        apart,
        locked,
        held,
    )
    arguments = values(model, (), scope, statement.order)
    return statement.bind({**arguments, **model.lock_values, _IDS: list_value(model.dialect, parents)})


def _parents_in_use(
    model: ModelSql, key: str, scope: Scope, apart: bool, locked: bool, held: bool
) -> Compiled:
    column = model.at(model.table, key)
    conditions = [
        one_of(model.dialect, column, _IDS),
        *model.live(),
        *scope_conditions(model, model.table, scope),
    ]
    if apart:
        conditions.append(one_of(model.dialect, model.id, _IDS, negated=True))
    if locked:
        states = [model.column(model.meta.by_name[lock.field]) for lock in model.meta.locks]
        states_at_rest = [state == sa.bindparam(f"{LOCK}{i}") for i, state in enumerate(states)]
        if held and model.meta.hold is not None:
            states_at_rest.append(model.column(model.meta.by_name[model.meta.hold]).is_(sa.true()))
        conditions.append(sa.or_(*states_at_rest))
    return compile_statement(sa.select(column).where(*conditions).distinct(), model.dialect)


def deleted_row(model: ModelSql, record_id: str, scope: Scope = ()) -> Sql:
    """The soft-deleted row of that id inside the scope, locked until the transaction ends."""
    statement = model.shapes.get(("deleted_row", shape((), scope)), _deleted_row, model, scope)
    return statement.bind({**values(model, (), scope, statement.order), ID: record_id})


def _deleted_row(model: ModelSql, scope: Scope) -> Compiled:
    statement = sa.select(*model.columns).where(
        *_deleted_conditions(model), *scope_conditions(model, model.table, scope)
    )
    return compile_statement(lock_rows(statement, model.dialect), model.dialect)


def restore(
    model: ModelSql,
    record_id: str,
    stamps: Mapping[str, Any],
    references: Sequence[Reference],
    row: Mapping[str, Any],
    scope: Scope = (),
) -> Sql:
    """Bring a soft-deleted row back, provided that what it refers to is there; gives it back."""
    names = tuple(stamps)
    key = ("restore", names, shape_of(references), shape((), scope))
    statement = model.shapes.get(key, _restore, model, names, tuple(references), scope)
    arguments = {**values(model, (), scope, statement.order), **key_values(references, row)}
    arguments |= parent_values(statement.order, row)
    return statement.bind({**arguments, **encode_values(model, stamps, record_id), ID: record_id})


def _restore(
    model: ModelSql, names: tuple[str, ...], references: tuple[Reference, ...], scope: Scope
) -> Compiled:
    conditions = [
        *_deleted_conditions(model),
        *scope_conditions(model, model.table, scope),
        *named_rows(references, scope),
    ]
    conditions += parents_inside(model, scope, names)
    statement = sa.update(model.table).values(assignments(model, names)).where(*conditions)
    return compile_statement(statement.returning(*model.columns), model.dialect)


def _deleted_conditions(model: ModelSql) -> list[sa.ColumnElement[bool]]:
    return [model.id == sa.bindparam(ID), sa.not_(sa.and_(*model.live()))]


def deleted_rows(model: ModelSql, ids: Sequence[str], keys: tuple[str, ...], scope: Scope = ()) -> Sql:
    """Id and these keys of the soft-deleted rows among `ids`, locked until the transaction ends."""
    statement = model.shapes.get(("deleted_rows", keys, shape((), scope)), _deleted_rows, model, keys, scope)
    return statement.bind(_batch_arguments(model, ids, scope, statement))


def _deleted_rows(model: ModelSql, keys: tuple[str, ...], scope: Scope) -> Compiled:
    columns = [model.at(model.table, key) for key in keys]
    is_deleted = sa.not_(sa.and_(*model.live()))
    statement = sa.select(model.id, *columns).where(*_among(model, scope), is_deleted).order_by(model.id)
    return compile_statement(lock_rows(statement, model.dialect), model.dialect)


def alive(model: ModelSql, ids: Sequence[str], scope: Scope = ()) -> Sql:
    """Those of `ids` that can be referred to, held against deletion until the transaction ends."""
    statement = model.shapes.get(("alive", shape((), scope)), _alive, model, scope)
    return statement.bind(_batch_arguments(model, ids, scope, statement))


def _alive(model: ModelSql, scope: Scope) -> Compiled:
    statement = sa.select(model.id).where(*_among(model, scope), *model.live()).order_by(model.id)
    statement = lock_rows(statement, model.dialect, read=True, key_share=True)
    return compile_statement(statement, model.dialect)


def stamp(model: ModelSql, ids: Sequence[str], stamps: Mapping[str, Any]) -> Sql:
    """Write `stamps` into these rows, deleted ones too; values that are encrypted into one row alone."""
    names = tuple(stamps)
    statement = model.shapes.get(("stamp", names), _stamp, model, names)
    return statement.bind(
        {
            **encode_values(model, stamps, ids[0] if len(ids) == 1 else None),
            _IDS: list_value(model.dialect, ids),
        }
    )


def _stamp(model: ModelSql, names: tuple[str, ...]) -> Compiled:
    statement = sa.update(model.table).values(assignments(model, names)).where(*_among(model, ()))
    return compile_statement(statement, model.dialect)


def _among(model: ModelSql, scope: Scope) -> list[sa.ColumnElement[bool]]:
    return [one_of(model.dialect, model.id, _IDS), *scope_conditions(model, model.table, scope)]


def _batch_arguments(
    model: ModelSql, ids: Sequence[str], scope: Scope, statement: Compiled
) -> dict[str, Any]:
    return {**values(model, (), scope, statement.order), _IDS: list_value(model.dialect, ids)}
