"""A delete and the version it makes, without the row leaving the database.

Nothing happens, and nothing is given back, where the record has no history yet or the database would write
one of its values otherwise than Python: the caller then deletes it as it deletes every other row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from maniflex._caller import Caller
from maniflex._ids import new_id
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.bindings import binding_from_columns
from maniflex.sql.history import WRITTEN, own_layout
from maniflex.sql.model import ID, ModelSql
from maniflex.sql.statement import Compiled, Dialect, Sql, by_dialect, compile_statement
from maniflex.sql.tables import quote
from maniflex.sql.where import Scope, shape, values
from maniflex.sql.write import assignments, encode_values, writable

_ENTRY = "$entry"
_MOMENT = "$moment"
_SOURCE = "$source"
_AUTHOR = "actor_id", "tenant_id", "request_id", "reason"


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
    moment: datetime,
    who: Caller,
) -> Sequence[Sql]:
    """What deletes a row, or marks it with `stamps`, and adds its version; the last gives back its id."""
    names, encode = tuple(stamps), history.encoders["timestamp"]
    arguments = {
        _ENTRY: new_id(),
        _MOMENT: moment if encode is None else encode(moment),
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
        **{field: sa.bindparam(f"${field}", type_=columns[field].type) for field in _AUTHOR},
        "timestamp": latest(moment, last.c.timestamp),
        "source": sa.bindparam(_SOURCE, type_=columns.source.type),
        "diff": sa.literal_column(as_json.format(old_values_text(fields.diff, dialect, name))),
        "snapshot": sa.literal_column(as_json.format(snapshot)),
        "binding": sa.literal_column(binding_from_columns(history, model, name)),
        "schema_version": sa.literal_column(own_layout(history)),
    }
    columns_told = [version[field].label(f"told_{field}") for field in WRITTEN]
    return sa.select(*columns_told).select_from(source.join(last, sa.true()))


# Rows as JSON objects that the database writes itself, with the values in the form that answers have.
#
# For what is copied inside the database, where a row would only travel to the server to come back as
# text.


MOST_FIELDS = 90  # PostgreSQL takes a hundred arguments of a function

_UTC = "to_char({c} AT TIME ZONE 'UTC', '%s')"
_SECONDS = _UTC % 'YYYY-MM-DD"T"HH24:MI:SS'
_FRACTION = (
    "CASE WHEN extract(microseconds FROM {c})::bigint % 1000000 = 0 THEN '' ELSE to_char({c}, '.US') END"
)

# The JSON text of a value that is not null.
_FORMS: dict[Dialect, dict[Kind, str]] = {
    Dialect.SQLITE: {
        Kind.TEXT: "json_quote({c})",
        Kind.INT: "{c}",
        Kind.FLOAT: "float_json({c})",
        Kind.BOOL: "CASE WHEN {c} THEN 'true' ELSE 'false' END",
        Kind.DECIMAL: "decimal_json({c})",
        Kind.DATETIME: "json_quote(replace({c}, '.000000Z', 'Z'))",
        Kind.DATE: "json_quote({c})",
        Kind.TIME: "json_quote(replace({c}, '.000000', ''))",
        Kind.UUID: "json_quote({c})",
        Kind.BYTES: "bytes_json({c})",
        Kind.JSON: "{c}",
    },
    Dialect.POSTGRES: {
        Kind.TEXT: "to_json({c})::text",
        Kind.INT: "{c}::text",
        Kind.FLOAT: "CASE WHEN {c}::text ~ '^-?[0-9]+$' THEN {c}::text || '.0'"
        " WHEN {c}::text ~ '[fN]' THEN 'null' ELSE {c}::text END",
        Kind.BOOL: "{c}::text",
        Kind.DECIMAL: "'\"' || {c}::text || '\"'",
        Kind.DATETIME: f"'\"' || {_SECONDS} || {_FRACTION} || 'Z\"'",
        # What asyncpg makes of the first and the last day of Python, and back.
        Kind.DATE: "CASE {c} WHEN 'infinity' THEN '\"9999-12-31\"' WHEN '-infinity' THEN '\"0001-01-01\"'"
        " ELSE to_json({c})::text END",
        Kind.TIME: f"'\"' || to_char({{c}}, 'HH24:MI:SS') || {_FRACTION} || '\"'",
        Kind.UUID: "to_json({c})::text",
        Kind.BYTES: "to_json(replace(encode({c}, 'base64'), chr(10), ''))::text",
        Kind.JSON: "{c}::text",
    },
}
# Python writes decimals of more digits with an exponent.
_SHORT_DECIMAL = "({c} IS NULL OR scale({c}) <= 6)"
_ALL_DIGITS = "current_setting('extra_float_digits')::int > 0"  # of floats; whoever runs the database may say


def object_text(fields: Sequence[FieldMeta], dialect: Dialect, source: str) -> str:
    """An object of these fields of the rows of `source`."""
    members = []
    for field in fields:
        form = _form(field, dialect, source)
        can_be_null = by_dialect(dialect, sqlite=field.nullable, postgres=True)
        text = f"coalesce({form}, 'null')" if can_be_null else form
        members.append((f"{_literal(f'{_key(field)}:')} || {text}", False))
    return _object(members, dialect)


def old_values_text(fields: Sequence[FieldMeta], dialect: Dialect, source: str) -> str:
    """An object of old and new values of rows that are gone, by field, without fields that are null."""
    members = []
    for field in fields:
        before, after = _literal(f'{_key(field)}:{{"old":'), _literal(',"new":null}')
        members.append((f"{before} || {_form(field, dialect, source)} || {after}", field.nullable))
    return _object(members, dialect)


def exact_conditions(fields: Sequence[FieldMeta], dialect: Dialect, source: str) -> list[str]:
    """What has to hold of a row for its values to be written as Python writes them."""
    decimals = [field for field in fields if field.kind is Kind.DECIMAL]
    texts = [_SHORT_DECIMAL.format(c=_column(field, dialect, source)) for field in decimals]
    if any(field.kind is Kind.FLOAT for field in fields):
        texts.append(_ALL_DIGITS)
    return by_dialect(dialect, sqlite=[], postgres=texts)


def _form(field: FieldMeta, dialect: Dialect, source: str) -> str:
    column = _column(field, dialect, source)
    form = f"({_FORMS[dialect][field.kind].format(c=column)})"
    if not field.nullable:  # a null that is there all the same makes the whole text null
        return form
    # SQLite's functions make text of null.
    return by_dialect(dialect, sqlite=f"CASE WHEN {column} IS NOT NULL THEN {form} END", postgres=form)


def _object(members: Sequence[tuple[str, bool]], dialect: Dialect) -> str:
    """An object of these members; those that are said to be left out are so where they are null."""
    after_comma = (
        " || ".join(
            f"coalesce(',' || {member}, '')" if is_left_out else f"',' || {member}"
            for member, is_left_out in members
        )
        or "''"
    )
    all_members = ", ".join(member for member, _ in members)
    return by_dialect(
        dialect,
        sqlite=f"'{{' || substr({after_comma}, 2) || '}}'",
        postgres=f"'{{' || concat_ws(',', {all_members or 'NULL'}) || '}}'",
    )


def _column(field: FieldMeta, dialect: Dialect, source: str) -> str:
    return f"{quote(source, dialect)}.{quote(field.column, dialect)}"


def _key(field: FieldMeta) -> str:
    return msgspec.json.encode(field.api).decode()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
