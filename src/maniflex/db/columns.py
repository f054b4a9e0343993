"""The columns of a table as the database describes them, and which types a field may have there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from maniflex.db.port import Executor
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.decimal_order import is_order_column
from maniflex.sql.history_layouts import HISTORY_SCHEMA
from maniflex.sql.model import ModelSql
from maniflex.sql.search import VECTOR
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import column_type, quote, sa_dialect


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table as the database describes it."""

    name: str
    type: str
    not_null: bool
    has_default: bool
    default: str | None = None  # as the database writes it
    collation: str | None = None  # on PostgreSQL

    @property
    def required(self) -> bool:
        """Whether every insert must give it a value."""
        return self.not_null and not self.has_default


Columns = Mapping[str, Column]

_SQLITE_COLUMNS = """
SELECT name, type, "notnull", dflt_value IS NOT NULL, dflt_value, NULL, 'r' FROM pragma_table_info(?)
"""
# An enum takes texts, and a domain what the type takes that it stands on.
_POSTGRES_COLUMNS = """
SELECT a.attname,
       CASE t.typtype WHEN 'e' THEN 'user-defined' WHEN 'd' THEN format_type(t.typbasetype, NULL)
                      ELSE format_type(a.atttypid, NULL) END,
       a.attnotnull OR (t.typtype = 'd' AND t.typnotnull),
       a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
       CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END,
       l.collname::text,
       c.relkind,
       n.nspname::text
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_collation l ON l.oid = a.attcollation
 WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum
"""
_WITH_VERSIONS = ("r", "p")  # kinds of PostgreSQL's tables; a view has no row versions


async def read_columns(run: Executor, model: ModelSql, table: str | None = None) -> Columns:
    """The columns of the model's table, or of its old `table`, by name; none when there is no such table."""
    name = table or model.table.name
    if model.dialect is Dialect.SQLITE:
        rows = await run.fetch(Sql(_SQLITE_COLUMNS, (name,)))
    elif model.dialect is Dialect.POSTGRES:
        rows = await run.fetch(Sql(_POSTGRES_COLUMNS, (quote(name, model.dialect),)))
        model.versioned = all(_text(row[6]) in _WITH_VERSIONS for row in rows)
        model.schema = next((row[7] for row in rows), None)
    else:
        assert_never(model.dialect)
    return {
        row[0]: Column(row[0], str(row[1]).lower(), bool(row[2]), bool(row[3]), row[4], row[5])
        for row in rows
    }


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


# What a column of each kind may be declared as; the first is what we create.
COLUMN_TYPES: dict[Dialect, dict[Kind, tuple[str, ...]]] = {
    Dialect.POSTGRES: {
        Kind.TEXT: ("text", "character varying", "character", "citext", "user-defined"),
        Kind.INT: ("bigint", "integer", "smallint"),
        Kind.FLOAT: ("double precision", "real"),
        Kind.BOOL: ("boolean",),
        Kind.DECIMAL: ("numeric",),
        Kind.DATETIME: ("timestamp with time zone",),
        Kind.DATE: ("date",),
        Kind.TIME: ("time without time zone",),
        Kind.UUID: ("uuid",),
        Kind.BYTES: ("bytea",),
        Kind.JSON: ("json", "jsonb"),
    },
    Dialect.SQLITE: {
        Kind.TEXT: ("text", "varchar", "char", "character", "nvarchar", "clob"),
        Kind.INT: ("bigint", "integer", "int", "smallint", "mediumint", "int8", "int2"),
        Kind.FLOAT: ("double", "real", "float", "double precision"),
        Kind.BOOL: ("boolean",),
        Kind.DECIMAL: ("decimal_text",),
        Kind.DATETIME: ("datetime_text",),
        Kind.DATE: ("date_text",),
        Kind.TIME: ("time_text",),
        Kind.UUID: ("uuid_text",),
        Kind.BYTES: ("blob",),
        Kind.JSON: ("json_text",),
    },
}


def has_type(model: ModelSql, column: Column, kind: Kind) -> bool:
    """Whether values of that kind may be stored in the column as it is declared."""
    return column.type.split("(")[0].strip() in COLUMN_TYPES[model.dialect][kind]


def type_ddl(model: ModelSql, field: FieldMeta) -> str:
    """The type a column of the field is made with."""
    return str(column_type(field.kind, model.dialect).compile(dialect=sa_dialect(model.dialect)))


def is_derived(column: Column, columns: Columns) -> bool:
    """Whether a column is no field's: the order of a decimal, or the words of a search."""
    return is_order_column(column.name, columns) or (column.name == VECTOR and column.type == "tsvector")


# The tables in which a database notes its migrations: Alembic's `alembic_version`, and our log beside it.
#
# The layouts of histories, which migrations change too, have a table of their own (`history_schema.py`).


VERSIONS = "alembic_version"
LOG = "maniflex_migration"
OWN_TABLES = frozenset({VERSIONS, LOG, HISTORY_SCHEMA})
VERSION_TABLES = (
    f"CREATE TABLE IF NOT EXISTS {VERSIONS} (version_num VARCHAR(32) NOT NULL,"
    f" CONSTRAINT {VERSIONS}_pkc PRIMARY KEY (version_num))",
    f"CREATE TABLE IF NOT EXISTS {LOG} (revision VARCHAR(32) NOT NULL PRIMARY KEY, digest TEXT NOT NULL,"
    " applied_at TEXT, seconds DOUBLE PRECISION, progress TEXT)",
)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One migration in the log; `progress` is set while it is applied or undone."""

    revision: str
    digest: str
    applied_at: str | None
    seconds: float | None
    progress: Mapping[str, Any] | None


async def has_table(run: Executor, table: str) -> bool:
    """Whether the database has a table of this name."""
    statement = by_dialect(
        run.dialect,
        sqlite=Sql("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)),
        postgres=Sql("SELECT 1 WHERE to_regclass(quote_ident($1)) IS NOT NULL", (table,)),
    )
    return await run.fetch_one(statement) is not None


async def read_heads(run: Executor) -> tuple[str, ...] | None:
    """The revisions the database is at; None when migrations do not keep it."""
    if not await has_table(run, VERSIONS):
        return None
    return tuple(row[0] for row in await run.fetch(Sql(f"SELECT version_num FROM {VERSIONS} ORDER BY 1")))


async def read_log(run: Executor) -> dict[str, LogEntry]:
    """The log by revision."""
    if not await has_table(run, LOG):
        return {}
    rows = await run.fetch(Sql(f"SELECT revision, digest, applied_at, seconds, progress FROM {LOG}"))
    return {str(row[0]): _entry(*row) for row in rows}


def _entry(
    revision: str, digest: str, applied_at: str | None, seconds: float | None, progress: str | None
) -> LogEntry:
    return LogEntry(revision, digest, applied_at, seconds, json.loads(progress) if progress else None)


async def make_tables(run: Executor) -> None:
    """Make both tables unless they are there."""
    for statement in VERSION_TABLES:
        await run.execute(Sql(statement))


async def write_head(run: Executor, revision: str) -> None:
    """Note a revision that the database is at."""
    mark = by_dialect(run.dialect, sqlite="?", postgres="$1")
    await run.execute(Sql(f"INSERT INTO {VERSIONS} (version_num) VALUES ({mark})", (revision,)))


async def write_entry(run: Executor, entry: LogEntry) -> None:
    """Write one entry of the log, or replace it."""
    marks = by_dialect(run.dialect, sqlite="?, ?, ?, ?, ?", postgres="$1, $2, $3, $4, $5")
    progress = None if entry.progress is None else json.dumps(entry.progress)
    await run.execute(
        Sql(
            f"INSERT INTO {LOG} (revision, digest, applied_at, seconds, progress) VALUES ({marks})"
            " ON CONFLICT (revision) DO UPDATE SET digest = excluded.digest,"
            " applied_at = excluded.applied_at, seconds = excluded.seconds, progress = excluded.progress",
            (entry.revision, entry.digest, entry.applied_at, entry.seconds, progress),
        )
    )


async def delete_entry(run: Executor, revision: str) -> None:
    """Forget a migration that was undone."""
    mark = by_dialect(run.dialect, sqlite="?", postgres="$1")
    await run.execute(Sql(f"DELETE FROM {LOG} WHERE revision = {mark}", (revision,)))
