"""A query model's SELECT in the place of a table: a subquery whose columns have the declared types.

The casts make a column behave as the same field of a table would: text sorts by code point, decimals
compare by value, no matter how the SELECT makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.selectable import Subquery

from maniflex.errors import DeclarationError
from maniflex.model.meta import FieldMeta, ModelMeta, TypedSelect
from maniflex.sql.decimal_order import has_order_key, order_column, order_expression
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.statement_cache import compile_statement
from maniflex.sql.tables import column_type, quote

_NAME = "given_by_query"  # no column is likely to be called like this
_TYPED = "typed_by_fields"


def build_view(meta: ModelMeta, dialect: Dialect) -> Subquery:
    """What statements read from instead of a table."""
    inner = _inner(meta, dialect)
    # A cast hides a column from the indexes of its table.
    of_type: Any = sa.type_coerce if isinstance(_select_text(meta, dialect), TypedSelect) else sa.cast
    typed_columns = [
        of_type(inner.c[f.column], column_type(f.kind, dialect)).label(f.column) for f in meta.fields
    ]
    whole = sa.select(*typed_columns)
    decimal_fields = [f for f in meta.fields if has_order_key(f, dialect)]
    if not decimal_fields:
        return whole.subquery(meta.table)
    # A subquery of its own, so that the SELECT's value stands in the expression by a short name.
    source = whole.subquery(_TYPED)
    keys: list[Any] = [
        sa.literal_column(order_expression(f"{_TYPED}.{quote(f.column, dialect)}")).label(
            order_column(f.column)
        )
        for f in decimal_fields
    ]
    return sa.select(*source.c, *keys).subquery(meta.table)


def text_of(meta: ModelMeta, dialect: Dialect) -> str:
    """The SELECT for this database."""
    text = _select_text(meta, dialect)
    if not text:
        raise DeclarationError(f"{meta.name}: query= has no SELECT for {dialect}")
    return text.strip().rstrip(";").rstrip()


def runs(meta: ModelMeta, dialect: Dialect) -> Sql:
    """A statement that succeeds when the SELECT itself does."""
    inner = _inner(meta, dialect)
    one: sa.ColumnElement[object] = sa.literal_column("1")
    statement = sa.select(one).select_from(inner).limit(sa.literal_column("0")).offset(sa.literal_column("0"))
    return Sql(compile_statement(statement, dialect).text)


def gives(meta: ModelMeta, dialect: Dialect, field: FieldMeta, *, typed: bool) -> Sql:
    """A statement that succeeds when the SELECT has the column (`typed`: and it can be of its kind)."""
    inner = _inner(meta, dialect)
    column: sa.ColumnElement[object] = inner.c[field.column]
    if typed:
        column = sa.cast(column, column_type(field.kind, dialect))
    else:
        # On Postgres `q.count` may also be the function, called on the row; on SQLite a quoted name that
        # no column has, and no table goes before, is a text.
        column = by_dialect(dialect, sqlite=column, postgres=sa.column(field.column))
    statement = (
        sa.select(column).select_from(inner).limit(sa.literal_column("0")).offset(sa.literal_column("0"))
    )
    return Sql(compile_statement(statement, dialect).text)


def _select_text(meta: ModelMeta, dialect: Dialect) -> str | None:
    query = meta.options.query
    return query.get(dialect.value) if isinstance(query, Mapping) else query


def _inner(meta: ModelMeta, dialect: Dialect) -> Subquery:
    # A colon would start a parameter of SQLAlchemy's; the line break ends a comment at the end.
    text = sa.text(text_of(meta, dialect).replace(":", "\\:") + "\n")
    return text.columns(*(sa.column(f.column) for f in meta.fields)).subquery(_NAME)
