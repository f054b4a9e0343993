"""A delete and the version it makes, without the row leaving the database.

Nothing happens, and nothing is given back, where the record has no history yet or the database would write
one of its values otherwise than Python: the caller then deletes it as it deletes every other row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from maniflex._caller import Caller
from maniflex.model.meta import FieldMeta
from maniflex.sql.bindings import binding_from_columns
from maniflex.sql.codec import encode_datetime
from maniflex.sql.history import WRITTEN, Author, own_layout
from maniflex.sql.json_forms import exact_conditions, object_text, old_values_text
from maniflex.sql.model import ID, ModelSql
from maniflex.sql.statement import Sql, by_dialect
from maniflex.sql.statement_cache import Compiled, compile_statement
from maniflex.sql.where import Scope, shape, values
from maniflex.sql.write import assignments, encode_values, writable

_ENTRY = "$entry"
_MOMENT = "$moment"
_SOURCE = "$source"


class ToldFields(NamedTuple):
    """The fields that the diff of a delete has, and those of its snapshot, if there is one."""

    diff: Sequence[FieldMeta]
    snapshot: Sequence[FieldMeta] | None


def delete_with_version(
    model: ModelSql,
    history: ModelSql,
    fields: ToldFields,
    record_id: str,
    stamps: Mapping[str, Any],
    scope: Scope,
    version: tuple[str, datetime, Caller],
) -> Sequence[Sql]:
    """What deletes a row, or marks it with `stamps`, and adds its version; the last gives back its id.

    The version has an id of its own, a moment and a caller.
    """
    entry_id, moment, who = version
    names = tuple(stamps)
    stored_moment = by_dialect(model.dialect, sqlite=encode_datetime, postgres=_as_it_is)(moment)
    arguments = {
        _ENTRY: entry_id,
        _MOMENT: stored_moment,
        _SOURCE: who.source.value,
        "$actor_id": who.actor_id,
        "$tenant_id": who.tenant_id,
        "$request_id": who.request_id,
        "$reason": who.reason,
        ID: record_id,
        **model.lock_values,
    }
    if names:
        arguments.update(encode_values(model, stamps))
    key = (names, shape((), scope)) if scope else (names,)
    statements = []
    for make in by_dialect(model.dialect, sqlite=(_add_version, _delete_told), postgres=(_delete_and_tell,)):
        statement = model.shapes.get((make, *key), make, model, history, fields, names, scope)
        if scope:
            arguments.update(values(model, (), scope, statement.order))
        statements.append(statement.bind(arguments))
    return statements


def _as_it_is(value: datetime) -> Any:
    return value


def _add_version(
    model: ModelSql, history: ModelSql, fields: ToldFields, names: tuple[str, ...], scope: Scope
) -> Compiled:
    """Of SQLite, where nothing can come between two statements of a transaction."""
    row = _version_of(model, history, fields, model.table).where(*writable(model, scope))
    return compile_statement(sa.insert(history.table).from_select(WRITTEN, row), model.dialect)


def _delete_told(
    model: ModelSql, history: ModelSql, fields: ToldFields, names: tuple[str, ...], scope: Scope
) -> Compiled:
    """The statement before has looked at the row and its scope."""
    is_told: Any = sa.literal_column("changes() > 0")  # of the statement before
    statement = _deletion(model, names).where(model.id == sa.bindparam(ID), is_told)
    return compile_statement(statement.returning(model.id), model.dialect)


def _delete_and_tell(
    model: ModelSql, history: ModelSql, fields: ToldFields, names: tuple[str, ...], scope: Scope
) -> Compiled:
    """Of PostgreSQL: two that change the row at once make the same version, and one of them fails."""
    has_history = sa.exists().where(history.table.c.record_id == sa.bindparam(ID))
    exact = exact_conditions([*fields.diff, *(fields.snapshot or ())], model.dialect, model.table.name)
    conditions = [*writable(model, scope), has_history, *map(sa.literal_column, exact)]
    if names:  # what an update gives back is the row afterwards
        before = sa.select(*model.columns).where(*conditions).with_for_update().subquery("before")
        is_same = model.id == before.c[model.id.name]
        written = _deletion(model, names).where(is_same).returning(*before.c).cte("written")
    else:
        written = _deletion(model, names).where(*conditions).returning(*model.columns).cte("written")
    row = _version_of(model, history, fields, written)
    told = sa.insert(history.table).from_select(WRITTEN, row).cte("told")
    return compile_statement(sa.select(written.c[model.id.name]).add_cte(told), model.dialect)


def _deletion(model: ModelSql, names: tuple[str, ...]) -> Any:
    if not names:
        return sa.delete(model.table)
    return sa.update(model.table).values(assignments(model, names))


def _version_of(model: ModelSql, history: ModelSql, fields: ToldFields, source: sa.FromClause) -> Any:
    """The version that the row in `source` makes, if it has one already."""
    columns, dialect, name = history.table.c, model.dialect, str(getattr(source, "name", ""))
    versions = sa.select(columns.version, columns.timestamp).where(columns.record_id == sa.bindparam(ID))
    one: Any = sa.literal_column("1")
    none: Any = sa.literal_column("0")
    last = versions.order_by(columns.version.desc()).limit(one).offset(none).subquery("last")
    moment = sa.bindparam(_MOMENT, type_=columns.timestamp.type)
    latest: Any = by_dialect(dialect, sqlite=sa.func.max, postgres=sa.func.greatest)
    snapshot = "NULL" if fields.snapshot is None else object_text(fields.snapshot, dialect, name)
    as_json = by_dialect(dialect, sqlite="{0}", postgres="({0})::json")
    version: dict[str, Any] = {
        "id": sa.bindparam(_ENTRY, type_=columns.id.type),
        "record_id": sa.bindparam(ID, type_=columns.record_id.type),
        "version": last.c.version + one,
        "operation": sa.literal_column("'delete'"),
        **{field: sa.bindparam(f"${field}", type_=columns[field].type) for field in Author._fields},
        "timestamp": latest(moment, last.c.timestamp),
        "source": sa.bindparam(_SOURCE, type_=columns.source.type),
        "diff": sa.literal_column(as_json.format(old_values_text(fields.diff, dialect, name))),
        "snapshot": sa.literal_column(as_json.format(snapshot)),
        "binding": sa.literal_column(binding_from_columns(history, model, name)),
        "schema_version": sa.literal_column(own_layout(history)),
    }
    columns_told = [version[field].label(f"told_{field}") for field in WRITTEN]
    return sa.select(*columns_told).select_from(source.join(last, sa.true()))
