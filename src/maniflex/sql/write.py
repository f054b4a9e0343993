"""Writes of one model: insert, update, increment, delete. Each is one statement that checks itself."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.sql.codec import encoder
from maniflex.sql.model import ID, LOCK, VERSION, ModelSql
from maniflex.sql.operators import Condition, list_value, one_of
from maniflex.sql.statement import (
    Compiled,
    Dialect,
    NamedStatement,
    Sql,
    by_dialect,
    compile_statement,
    statement_of,
)
from maniflex.sql.tables import quote
from maniflex.sql.where import Scope, parent_values, parents_inside, scope_conditions, shape, values


def insert(model: ModelSql, values: Mapping[str, Any], *, ignore_existing: bool = False) -> Sql:
    """A new row from a value for every field; gives the stored row back."""
    return model.shapes.get(("insert", ignore_existing), _insert, model, ignore_existing).bind(
        encode_values(model, values)
    )


def _insert(model: ModelSql, ignore_existing: bool) -> Compiled:
    row: dict[str, Any] = {f.column: sa.bindparam(f.name) for f in model.meta.stored}
    statement: Any = sa.insert(model.table)
    if ignore_existing:
        dialect: Any = by_dialect(model.dialect, sqlite=sqlite, postgres=postgresql)
        # On any index: two at once may meet on another unique one before they meet on the id.
        statement = dialect.insert(model.table).on_conflict_do_nothing()
    return compile_statement(statement.values(row).returning(*model.columns), model.dialect)


def insert_many(model: ModelSql, rows: Sequence[Mapping[str, Any]]) -> Sql:
    """New rows from a value for every field of each; gives back the ids of those that were not there."""
    statement = model.shapes.get(("insert_many", len(rows)), _insert_many, model, len(rows))
    arguments: dict[str, Any] = {}
    for place, row in enumerate(rows):
        arguments.update({f"{name}_{place}": v for name, v in encode_values(model, row).items()})
    return statement.bind(arguments)


def _insert_many(model: ModelSql, count: int) -> Compiled:
    rows = [
        {f.column: sa.bindparam(f"{f.name}_{place}", type_=model.column(f).type) for f in model.meta.stored}
        for place in range(count)
    ]
    dialect: Any = by_dialect(model.dialect, sqlite=sqlite, postgres=postgresql)
    statement = dialect.insert(model.table).values(rows).on_conflict_do_nothing()
    return compile_statement(statement.returning(model.id), model.dialect)


def insert_rows(model: ModelSql, rows: Sequence[Mapping[str, Any]]) -> Sql:
    """New rows from a value for every field of each; gives back those that were not there.

    The text is that of one row with its placeholders repeated, so no length is compiled anew.
    """
    one = model.shapes.get("insert_rows", _insert_or_leave, model)
    parts = _AROUND_VALUES.fullmatch(one.text)
    assert parts is not None, "an INSERT of one row reads so"
    head, group, tail = parts.groups()
    width = len(one.order)

    def shifted(place: re.Match[str], by: int) -> str:
        return f"${int(place[1]) + by}"

    def numbered(number: int) -> str:
        return by_dialect(
            model.dialect, sqlite=group, postgres=_PLACE.sub(partial(shifted, by=number * width), group)
        )

    groups = map(numbered, range(len(rows)))
    params = [value for row in rows for value in one.bind(encode_values(model, row)).params]
    return Sql(f"{head}{', '.join(groups)}{tail}", tuple(params))


_AROUND_VALUES = re.compile(r"(.*? VALUES )(\(.*\))( ON CONFLICT DO NOTHING .*)", re.DOTALL)


def _insert_or_leave(model: ModelSql) -> Compiled:
    dialect: Any = by_dialect(model.dialect, sqlite=sqlite, postgres=postgresql)
    row: dict[str, Any] = {f.column: sa.bindparam(f.name) for f in model.meta.stored}
    statement = dialect.insert(model.table).values(row).on_conflict_do_nothing()
    return compile_statement(statement.returning(*model.columns), model.dialect)


def insert_behind(model: ModelSql, row: Mapping[str, Any]) -> Sql:
    """A new row that follows from the write of another; gives its id back."""
    return model.shapes.get("insert_behind", _insert_behind, model).bind(encode_values(model, row))


def _insert_behind(model: ModelSql) -> Compiled:
    row = [sa.bindparam(f.name, type_=model.column(f).type) for f in model.meta.stored]
    source = sa.select(*row).select_from(sa.text(OF_WRITE))
    statement = sa.insert(model.table).from_select([f.column for f in model.meta.stored], source)
    return compile_statement(statement.returning(model.id), model.dialect)


def insert_referring(
    model: ModelSql, row: Mapping[str, Any], references: Sequence[Reference], scope: Scope = ()
) -> Sql:
    """As `insert`, but nothing happens unless what the row refers to is there."""
    key = ("insert", shape_of(references), shape((), scope))
    statement = model.shapes.get(key, _insert_referring, model, tuple(references), scope)
    arguments = {**values(model, (), scope, statement.order), **key_values(references, row)}
    if scope:
        arguments.update(parent_values(statement.order, row))
    return statement.bind({**arguments, **encode_values(model, row)})


def _insert_referring(model: ModelSql, references: tuple[Reference, ...], scope: Scope) -> Compiled:
    row = [sa.bindparam(f.name, type_=model.column(f).type) for f in model.meta.stored]
    parents = parents_inside(model, scope, model.names)
    source = sa.select(*row).where(*named_rows(references, scope), *parents)
    statement = sa.insert(model.table).from_select([f.column for f in model.meta.stored], source)
    return compile_statement(statement.returning(*model.columns), model.dialect)


def update(
    model: ModelSql,
    record_id: str,
    changes: Mapping[str, Any],
    scope: Scope = (),
    references: Sequence[Reference] = (),
    version: int | None = None,
) -> Sql:
    """Change fields of a live, unlocked row; gives it back, or nothing when there is no such row.

    A row of another `version` is no such row.
    """
    names = tuple(changes)
    checks_version = version is not None
    key: tuple[Any, ...] = ("update", names, checks_version)
    if scope or references:
        key = (*key, shape((), scope), shape_of(references))
    statement = model.shapes.get(key, _update, model, names, scope, tuple(references), checks_version)
    encoded = encode_values(model, changes, record_id)
    arguments = {**encoded, ID: record_id, VERSION: version, **model.lock_values}
    if references:
        arguments.update(key_values(references, changes))
    if scope:
        arguments |= {**values(model, (), scope, statement.order), **parent_values(statement.order, changes)}
    return statement.bind(arguments)


def _update(
    model: ModelSql,
    names: tuple[str, ...],
    scope: Scope,
    references: tuple[Reference, ...],
    versioned: bool,
) -> Compiled:
    conditions = [*writable(model, scope, versioned=versioned), *parents_inside(model, scope, names)]
    for reference, row_exists in zip(references, named_rows(references, scope), strict=True):
        conditions.append(_unless_unchanged(model, reference, row_exists))
    statement = sa.update(model.table).values(assignments(model, names)).where(*conditions)
    return compile_statement(statement.returning(*model.columns), model.dialect)


def assign(model: ModelSql, record_id: str, changes: Mapping[str, Any]) -> Sql:
    """Set fields of a row whose lock is held, whatever its state; gives it back."""
    names = tuple(changes)
    statement = model.shapes.get(("assign", names), _assign, model, names)
    return statement.bind({**encode_values(model, changes, record_id), ID: record_id})


def _assign(model: ModelSql, names: tuple[str, ...]) -> Compiled:
    statement = sa.update(model.table).values(assignments(model, names)).where(model.id == sa.bindparam(ID))
    return compile_statement(statement.returning(*model.columns), model.dialect)


def _unless_unchanged(model: ModelSql, reference: Reference, row_exists: Condition) -> Condition:
    """A key that stays what it was is no new reference: sending back what was read changes nothing."""
    field = model.meta.by_name[reference.key]
    # Of a secret key the answer would tell its value.
    return row_exists if field.secret else sa.or_(model.column(field) == key_parameter(reference), row_exists)


def increment(
    model: ModelSql,
    record_id: str,
    deltas: Mapping[str, Any],
    stamps: Mapping[str, Any],
    scope: Scope = (),
) -> Sql:
    """Add to numeric fields of a row inside the scope, in the statement, within their declared bounds."""
    names = tuple(deltas)
    key = ("increment", names, shape((), scope))
    statement = model.shapes.get(key, _increment, model, names, tuple(stamps), scope)
    arguments = {**deltas, **encode_values(model, stamps), ID: record_id, **model.lock_values}
    return statement.bind({**values(model, (), scope, statement.order), **arguments})


def _increment(model: ModelSql, names: tuple[str, ...], stamps: tuple[str, ...], scope: Scope) -> Compiled:
    row = assignments(model, stamps)
    conditions = writable(model, scope)
    for name in names:
        field = model.meta.by_name[name]
        column = model.column(field)
        after = column + sa.bindparam(name, type_=column.type)
        row[field.column] = after
        # SQLite turns a sum beyond 64 bits into a float; Postgres refuses it by itself.
        conditions += by_dialect(model.dialect, sqlite=[_fits(field, after)], postgres=[])
        if field.nullable:
            conditions.append(column.is_not(None))
        if field.min is not None:
            conditions.append(after >= sa.literal_column(str(field.min)))
        if field.max is not None:
            conditions.append(after <= sa.literal_column(str(field.max)))
    statement = sa.update(model.table).values(row).where(*conditions).returning(*model.columns)
    return compile_statement(statement, model.dialect)


def _fits(field: FieldMeta, number: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    if field.kind is Kind.INT:
        return sa.func.typeof(number) == sa.literal_column("'integer'")
    return sa.func.abs(number) <= sa.literal_column(repr(sys.float_info.max))


def delete(
    model: ModelSql,
    record_id: str,
    stamps: Mapping[str, Any],
    scope: Scope = (),
    version: int | None = None,
    *,
    told: bool = False,
) -> Sql:
    """Remove an unlocked row, or mark it with `stamps` when the model deletes softly.

    A row of another `version` stays. With `told`, the statement gives back the row.
    """
    names = tuple(stamps)
    key = ("delete", names, shape((), scope), version is not None, told)
    statement = model.shapes.get(key, _delete, model, names, scope, version is not None, told)
    scope_arguments = values(model, (), scope, statement.order)
    arguments = {**scope_arguments, **encode_values(model, stamps), ID: record_id, VERSION: version}
    return statement.bind({**arguments, **model.lock_values})


def _delete(model: ModelSql, names: tuple[str, ...], scope: Scope, versioned: bool, told: bool) -> Compiled:
    statement: Any = sa.delete(model.table)
    if names:
        statement = sa.update(model.table).values(assignments(model, names))
    statement = statement.where(*writable(model, scope, versioned=versioned))
    return compile_statement(statement.returning(*model.columns) if told else statement, model.dialect)


def assignments(model: ModelSql, names: tuple[str, ...]) -> dict[str, Any]:
    row: dict[str, Any] = {model.meta.by_name[name].column: sa.bindparam(name) for name in names}
    digests = [f for f in model.meta.companions if f.name.removesuffix("$hmac") in names]
    return {**row, **{f.column: sa.bindparam(f.name) for f in digests}}


def encode_values(
    model: ModelSql, values: Mapping[str, Any], record_id: str | None = None
) -> Mapping[str, Any]:
    """Values as parameters; those of encrypted fields are bound to the id of their record."""
    if model.all_plain:
        return values
    encoded = {**values}
    for name in model.conversions.keys() & values:
        value = values[name]
        if value is not None:
            encoded[name] = model.conversions[name](value)
    if model.cipher is not None:
        model.cipher.seal(encoded, record_id)
    return encoded


def _held_version(model: ModelSql) -> sa.ScalarSelect[Any]:
    """The id, locked, if the row has that version and no other transaction holds it.

    The transaction that holds a row is about to change it. Waiting would end in the same refusal, and two
    transactions that wait for each other would do so until the database notices.
    """
    locked_row = model.table.alias("held_row")
    at = model.at(locked_row, "id")
    query = sa.select(at).where(at == sa.bindparam(ID), model.version_in(locked_row) == sa.bindparam(VERSION))
    return query.with_for_update(key_share=True, skip_locked=True).scalar_subquery()


def writable(model: ModelSql, scope: Scope = (), *, versioned: bool = False) -> list[sa.ColumnElement[bool]]:
    """The live row of the id, inside the scope, in none of the states that lock it."""
    row_id: Any = _held_version(model) if versioned else sa.bindparam(ID)
    conditions: list[sa.ColumnElement[bool]] = [model.id == row_id, *model.live()]
    conditions += scope_conditions(model, model.table, scope)
    for i, lock in enumerate(model.meta.locks):
        column = model.comparison_column(model.meta.by_name[lock.field])
        conditions.append(column.is_distinct_from(sa.bindparam(f"{LOCK}{i}")))
    return conditions


# Locks on the rows that a statement reads.


def lock_rows(statement: sa.Select[Any], dialect: Dialect, **options: Any) -> sa.Select[Any]:
    """The statement, holding its rows until the transaction ends; on SQLite the transaction is the lock."""
    return by_dialect(dialect, sqlite=statement, postgres=statement.with_for_update(**options))


# Keys of a row about to be written: the rows they name must be there, alive and inside the scope.
#
# The check is part of the statement that writes, so nothing can come between the two. On Postgres the
# named row is held against deletion until the transaction ends; on SQLite there is no other writer
# meanwhile.


_REF = "$ref$"  # no attribute can be called like this


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A key, by its attribute, and the model whose row it names."""

    key: str
    target: ModelSql


def shape_of(references: Sequence[Reference]) -> tuple[str, ...]:
    return tuple([reference.key for reference in references])


def key_values(references: Sequence[Reference], row: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the conditions."""
    return {_REF + reference.key: row[reference.key] for reference in references}


def key_parameter(reference: Reference) -> sa.BindParameter[str]:
    return sa.bindparam(_REF + reference.key, type_=sa.Text())


def named_rows(references: Sequence[Reference], scope: Scope) -> list[Condition]:
    """For each key, that the row it names is there to be referred to."""
    return [_named_row(place, reference, scope) for place, reference in enumerate(references)]


def named_ids(model: ModelSql, ids: Sequence[str], scope: Scope) -> Sql:
    """Which of these ids a key may name, in the scope; their rows are held as `named_rows` holds them."""
    statement = model.shapes.get(("named_ids", shape((), scope)), _named_ids, model, scope)
    return statement.bind({**values(model, (), scope, statement.order), _REF: list_value(model.dialect, ids)})


def _named_ids(model: ModelSql, scope: Scope) -> Compiled:
    conditions = scope_conditions(model, model.table, scope)
    rows = sa.select(model.id).where(one_of(model.dialect, model.id, _REF), *model.live(), *conditions)
    # In the order of ids, so that two writes that name the same rows do not wait for each other.
    rows = lock_rows(rows.order_by(model.id), model.dialect, read=True, key_share=True)
    return compile_statement(rows, model.dialect)


def _named_row(place: int, reference: Reference, scope: Scope) -> Condition:
    target = reference.target
    table = target.table.alias()
    rows = sa.select(table.c[target.id.name]).where(
        table.c[target.id.name] == key_parameter(reference),
        *target.live(table),
        *scope_conditions(target, table, scope),
    )
    locked_rows = lock_rows(rows, target.dialect, read=True, key_share=True).cte(f"ref${place}")
    exists = sa.exists(sa.select(sa.literal_column("1")).select_from(locked_rows))
    return by_dialect(target.dialect, sqlite=sa.exists(rows), postgres=exists)


# A write of one row and the writes that follow from it, in one statement. Of PostgreSQL.


# What a follow-up selects from, where it is to be done if the row is written, and behind that.
OF_WRITE = "(SELECT 1) AS of_write"
_PLACE = re.compile(r"(?<![\w$])\$(\d+)")
# Equal values of these kinds may be written differently, and JSON cannot be compared otherwise.
_COMPARED_AS_TEXT = (Kind.JSON, Kind.DECIMAL)


def with_follow_ups(model: ModelSql, main: Sql, follow_ups: Sequence[Sql], *, exact: bool = False) -> Sql:
    """All of them in one statement that gives back what the main one does.

    It fails, with a division by zero, unless the main one and each of the others change one row, and unless
    that row is as it was sent, and otherwise as it was before (`exact`). Follow-ups that select from
    `OF_WRITE` alone do nothing where the main one changes no row, and then it just gives back none.
    """
    texts: tuple[str, ...] = (main.text,)
    params = main.params
    for text, more in follow_ups:
        texts, params = (*texts, text), (*params, *more)
    statement = model.shapes.get((exact, texts), _with_follow_ups, model, main, follow_ups, exact)
    return Sql(statement.text, params)


def _with_follow_ups(model: ModelSql, main: Sql, follow_ups: Sequence[Sql], exact: bool) -> Compiled:
    parts, counts, conditions = [f"written AS ({main.text})"], [], []
    first = len(main.params)
    for number, follow_up in enumerate(follow_ups):
        text = _PLACE.sub(lambda place, first=first: f"${int(place[1]) + first}", follow_up.text)  # type: ignore[misc]
        parts.append(f"followed{number} AS ({text.replace(OF_WRITE, 'written')})")
        counts.append(f"(SELECT count(*) FROM followed{number}) AS rows{number}")
        conditions.append(f"counted.rows{number} = 1")
        first += len(follow_up.params)
    counted = f"(SELECT {', '.join(counts)}) AS counted"
    if all(OF_WRITE in follow_up.text for follow_up in follow_ups):
        source = f"written CROSS JOIN {counted}"
    else:
        source = f"{counted} LEFT JOIN written ON true"
        conditions.append(f"written.{quote(model.id.name, model.dialect)} IS NOT NULL")
    if exact:
        order = model.shapes.find(main.text).order
        sent = {f.name: f"${order.index(f.name) + 1}" for f in model.meta.fields if f.name in order}
        conditions += [_is_as_expected(model, f, sent.get(f.name)) for f in model.meta.fields]
        if len(sent) < len(model.meta.fields):  # an update; what it finds here are the rows before it
            table, key = quote(model.table.name, model.dialect), quote(model.id.name, model.dialect)
            source += f" LEFT JOIN {table} AS before ON before.{key} = written.{key}"
    text = _WITH_FOLLOW_UPS.format(parts=", ".join(parts), source=source, met=" AND ".join(conditions))
    return Compiled(text, ())


def _is_as_expected(model: ModelSql, field: FieldMeta, sent: str | None) -> str:
    """That a field is as it was sent, or where it was not sent as it was before."""
    cast, column = "::text" if field.kind in _COMPARED_AS_TEXT else "", quote(field.column, model.dialect)
    return f"written.{column}{cast} IS NOT DISTINCT FROM {sent or f'before.{column}'}{cast}"


_WITH_FOLLOW_UPS = """
WITH {parts}
SELECT written.* FROM {source} WHERE 1 / CASE WHEN {met} THEN 1 ELSE 0 END = 1"""


# The delete of a batch of rows whose `expires_at`, a moment or its nanoseconds, or whose age has passed.


EXPIRY = "expires_at"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TEXTS = {
    Dialect.SQLITE: (
        "DELETE FROM {table} WHERE id IN"
        " (SELECT id FROM {table} WHERE {column} <= :before ORDER BY {column} LIMIT :most)"
    ),
    # A row somebody is using is left for the next time, and looked at again once it is locked.
    Dialect.POSTGRES: (
        "WITH due AS MATERIALIZED (SELECT id FROM {table} WHERE {column} <= :before"
        " ORDER BY {column} LIMIT :most FOR UPDATE SKIP LOCKED)"
        " DELETE FROM {table} USING due WHERE {table}.id = due.id"
    ),
}


def delete_expired(
    meta: ModelMeta, dialect: Dialect, before: datetime, most: int, column: str = EXPIRY
) -> Sql:
    """Delete up to `most` rows whose column is at `before` or earlier, the oldest first."""
    moment = _encode(meta.by_name[column].kind, dialect, before)
    return _statement(meta.table, column, dialect).bind(before=moment, most=most)


def _encode(kind: Kind, dialect: Dialect, moment: datetime) -> Any:
    """The moment as the column has it."""
    if kind is Kind.INT:
        return (moment - _EPOCH) // _MICROSECOND * 1000
    encode = encoder(kind, dialect)
    return moment if encode is None else encode(moment)


@cache
def _statement(table: str, column: str, dialect: Dialect) -> NamedStatement:
    names = {"table": quote(table, dialect), "column": quote(column, dialect)}
    return statement_of(_TEXTS[dialect].format(**names), dialect)
