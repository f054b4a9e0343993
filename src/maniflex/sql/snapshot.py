"""Values out of the JSON of histories, in the types of the columns they came from."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.statement import Dialect, by_dialect
from maniflex.sql.tables import column_type


def value_at(field: FieldMeta, content: Any, dialect: Dialect, *names: str) -> Any:
    """The value of a field that stands in an object below these names."""
    write = by_dialect(dialect, sqlite=_sqlite_value, postgres=_postgres_value)
    return sa.type_coerce(write(field, content, names), column_type(field.kind, dialect))


def has_name(name: str, content: Any, dialect: Dialect) -> Any:
    """Whether an object has something under a name, be it null."""
    return by_dialect(
        dialect,
        sqlite=sa.func.json_type(content, _sqlite_path((name,))).is_not(None),
        postgres=sa.type_coerce(content.op("->")(_name(name)), sa.Text()).is_not(None),
    )


def _sqlite_path(names: tuple[str, ...]) -> Any:
    path = "".join(f'."{name}"' for name in names)
    return sa.literal_column(f"'${path}'")


def _name(name: str) -> Any:
    return sa.literal_column(f"'{name}'")


def _sqlite_value(field: FieldMeta, snapshot: Any, names: tuple[str, ...]) -> Any:
    value: Any = sa.func.json_extract(snapshot, _sqlite_path(names))
    if field.kind in (Kind.DATETIME, Kind.TIME):  # stored with all digits, shown without those that are 0
        whole, end = ("19", "'.000000Z'") if field.kind is Kind.DATETIME else ("8", "'.000000'")
        bare = sa.func.substr(value, sa.literal_column("1"), sa.literal_column(whole))
        has_fraction = sa.func.instr(value, sa.literal_column("'.'")) > sa.literal_column("0")
        return sa.case((has_fraction, value), else_=bare.op("||")(sa.literal_column(end)))
    if field.kind is Kind.JSON:
        return sa.func.nullif(sa.func.json_quote(value), sa.literal_column("'null'"))
    return value


def _postgres_value(field: FieldMeta, snapshot: Any, names: tuple[str, ...]) -> Any:
    for name in names[:-1]:
        snapshot = snapshot.op("->")(_name(name))
    value: Any = sa.type_coerce(snapshot.op("->>")(_name(names[-1])), sa.Text())
    if field.kind is Kind.TEXT:
        return value.collate("C")
    if field.kind is Kind.BYTES:
        return sa.func.decode(value, sa.literal_column("'base64'"))
    return sa.cast(value, column_type(field.kind, Dialect.POSTGRES))
