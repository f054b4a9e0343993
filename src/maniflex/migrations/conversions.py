"""How the values of a column become values of another type, where that is not a guess."""

from __future__ import annotations

from maniflex._tables import PartialTable
from maniflex.db.columns import Column
from maniflex.migrations.errors import MigrationError
from maniflex.migrations.source import SourceText, call_source, existing_kind, keyword_source
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.statement import Dialect
from maniflex.sql.tables import quote

_PLAIN = {Kind.TEXT, Kind.INT, Kind.FLOAT, Kind.DECIMAL}
_SQLITE = PartialTable(
    {Kind.TEXT: "TEXT", Kind.INT: "INTEGER", Kind.FLOAT: "REAL", Kind.DECIMAL: "TEXT"},
    others="no conversion to them is certain",
)
_POSTGRES = PartialTable(
    {Kind.TEXT: "text", Kind.INT: "bigint", Kind.FLOAT: "double precision", Kind.DECIMAL: "numeric"},
    others="no conversion to them is certain",
)


def conversion_source(field: FieldMeta, column: Column, dialect: Dialect) -> SourceText:
    """The SQL that converts a column, for both databases; refused where values would have to be guessed.

    It names the column as the field does, because a rename comes before the conversion.
    """
    text = _conversion(field.column, existing_kind(column, dialect), field.kind, dialect)
    if text is None:
        raise MigrationError(
            f"{column.name} is {column.type} in the database; no conversion to {field.kind} is certain; keep"
            f' the old column, field(column="{column.name}"), declare another and fill it with op.backfill'
        )
    return text


def conversion_back_source(field: FieldMeta, column: Column, dialect: Dialect) -> SourceText | None:
    """The SQL of the way back; None where values would have to be guessed."""
    return _conversion(field.column, field.kind, existing_kind(column, dialect), dialect)


def _conversion(column: str, old: Kind | None, new: Kind | None, dialect: Dialect) -> SourceText | None:
    name = quote(column, dialect)
    if old in _PLAIN and new in _PLAIN:
        sqlite, postgres = f"CAST({name} AS {_SQLITE[new]})", f"CAST({name} AS {_POSTGRES[new]})"
    elif (old, new) == (Kind.BOOL, Kind.INT):
        sqlite, postgres = name, f"CAST({name} AS int)"
    elif (old, new) == (Kind.INT, Kind.BOOL):
        sqlite, postgres = f"{name} <> 0", f"{name} <> 0"
    else:
        return None
    return call_source(
        "by_database", [keyword_source("sqlite", sqlite), keyword_source("postgresql", postgres)], 2
    )
