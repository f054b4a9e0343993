"""ModelMeta → SQLAlchemy tables: the one source of column types, index names and DDL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql import quoted_name
from sqlalchemy.types import TypeEngine, UserDefinedType

from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind, TableRules
from maniflex.sql.codec import literal
from maniflex.sql.decimal_order import has_order_key, order_column
from maniflex.sql.scheduled_indexes import Waiting, retention_indexes, schedule_indexes
from maniflex.sql.statement import Dialect, Sql, by_dialect, sa_dialect

NAMED_BY_CONDITION = "named_by_condition"  # of an index: its name changes with its condition; its number
_INDEX_ENTRY = 2600  # bytes of text
_LONGEST_ID = 255  # of one in an index with other texts
_NO_RULES = TableRules()
_MAX_IDENTIFIER = 63  # Postgres cuts longer names off without a word


class _DeclaredType(UserDefinedType[Any]):
    """A SQLite column type by the name it is declared under; `…_TEXT` keeps text affinity."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


# Sorting text by code point is what SQLite does and the only order every Postgres has.
_TYPES: dict[Dialect, dict[Kind, TypeEngine[Any]]] = {
    Dialect.POSTGRES: {
        Kind.TEXT: sa.Text(collation="C"),
        Kind.INT: sa.BigInteger(),
        Kind.FLOAT: sa.Double(),
        Kind.BOOL: sa.Boolean(),
        Kind.DECIMAL: sa.Numeric(),
        Kind.DATETIME: sa.DateTime(timezone=True),
        Kind.DATE: sa.Date(),
        Kind.TIME: sa.Time(),
        Kind.UUID: sa.Uuid(),
        Kind.BYTES: sa.LargeBinary(),
        Kind.JSON: postgresql.JSON(),
    },
    Dialect.SQLITE: {
        Kind.TEXT: sa.Text(),
        Kind.INT: sa.BigInteger(),
        Kind.FLOAT: sa.Double(),
        Kind.BOOL: sa.Boolean(),
        Kind.DECIMAL: _DeclaredType("DECIMAL_TEXT COLLATE decimal"),
        Kind.DATETIME: _DeclaredType("DATETIME_TEXT"),
        Kind.DATE: _DeclaredType("DATE_TEXT"),
        Kind.TIME: _DeclaredType("TIME_TEXT"),
        Kind.UUID: _DeclaredType("UUID_TEXT"),
        Kind.BYTES: sa.LargeBinary(),
        Kind.JSON: _DeclaredType("JSON_TEXT"),
    },
}

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


def column_type(kind: Kind, dialect: Dialect) -> TypeEngine[Any]:
    """The database type of a kind."""
    return _TYPES[dialect][kind]


def _name(name: str) -> str:
    """A name that is always quoted: which words need it differs by database and version."""
    return quoted_name(name, quote=True)


def build_table(meta: ModelMeta, dialect: Dialect, metadata: sa.MetaData) -> sa.Table:
    """The table of a model with its primary key and indexes."""
    rules = table_rules(meta)
    columns = [
        sa.Column(
            _name(f.column),
            column_type(f.kind, dialect),
            primary_key=f.name == "id",
            nullable=f.nullable,
            server_default=_server_default(column_default(f, dialect, rules)),
        )
        for f in meta.stored
    ]
    order_columns = {f.column: order_column(f.column) for f in meta.fields if has_order_key(f, dialect)}
    keys = [sa.Column(_name(name), sa.Text()) for name in order_columns.values()]
    table = sa.Table(_name(meta.table), metadata, *columns, *keys)
    # SQLite takes them only with the table; those of Postgres are in background/sql.
    for name, condition in by_dialect(dialect, sqlite=rules.checks, postgres={}).items():
        table.append_constraint(sa.CheckConstraint(sa.text(condition), name=name))
    index_names: set[str] = metadata.info.setdefault("indexes", set())
    for name, names, unique in _indexes(meta):
        if name in index_names:  # idx_a_b_c is b_c of table a, and c of table a_b
            name = _shorten(f"{name}_{meta.table}")
        index_names.add(name)
        live = _live_rows(meta, table) if unique else None
        index_columns = [table.c[order_columns.get(n, n)] for n in names]
        sa.Index(name, *index_columns, unique=unique, postgresql_where=live, sqlite_where=live)
    indexes_of_sweeps = chain(schedule_indexes(meta), retention_indexes(meta))
    for number, schedule_index in enumerate(indexes_of_sweeps, 1):
        _index_what_waits(Waiting(meta, schedule_index, table, dialect), table, dialect, number)
    return table


def table_rules(meta: ModelMeta) -> TableRules:
    """What the database itself sees to in the table of a model."""
    rules: TableRules = getattr(meta.cls, "__table_rules__", _NO_RULES)
    return rules


def _server_default(text: str | None) -> sa.ColumnElement[Any] | None:
    return None if text is None else sa.literal_column(text)  # in a `text`, ":word" would be a parameter


def _index_what_waits(waiting: Waiting, table: sa.Table, dialect: Dialect, number: int) -> None:
    """An index on the rows a schedule has yet to serve, in the order they are served."""
    text = str(waiting.condition.compile(dialect=sa_dialect(dialect)))
    columns, condition = waiting.order, waiting.condition
    name = index_name("due", table.name, *(c.name for c in columns[:-1]), _digest(text))
    info = {NAMED_BY_CONDITION: number}
    if any(index.name == name for index in table.indexes):  # two rules of one field that differ in time
        return
    sa.Index(name, *columns, postgresql_where=condition, sqlite_where=condition, info=info)


def _live_rows(meta: ModelMeta, table: sa.Table) -> sa.ColumnElement[bool] | None:
    """The rows a unique index is about: a deleted row no longer holds its value."""
    if meta.soft_delete is None:
        return None
    marker = table.c[meta.by_name[meta.soft_delete.field].column]
    return marker.is_(None) if meta.soft_delete.timestamp else marker.is_(sa.false())


def _indexes(meta: ModelMeta) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Name, columns and uniqueness of every index, none covered by another of the same kind."""
    leading_columns: set[str] = set()
    column_lists: list[tuple[str, ...]] = []
    for index in meta.indices:
        columns = tuple(meta.by_name[name].column for name in index.columns)
        column_lists.append(columns)
        leading_columns.add(columns[0])
        prefix = "uq" if index.unique else "idx"
        yield index.name or index_name(prefix, meta.table, *columns), columns, index.unique
    walk = _walk_columns(meta)
    if walk and not any(columns[: len(walk)] == walk for columns in column_lists):
        leading_columns.add(walk[0])
        yield index_name("idx", meta.table, *walk), walk, False
    references = {r.key for r in meta.relations.values() if r.kind is RelationKind.BELONGS_TO}
    for f in meta.fields:
        if f.unique and f.name != "id":
            columns = (*(meta.by_name[name].column for name in f.unique_within), f.digest_column)
            yield index_name("uq", meta.table, *columns), columns, True
        alone = not f.unique or f.unique_within  # no unique index begins with it
        is_indexed = f.index or bool(f.blind_index) or f.name in references
        if alone and is_indexed and f.column not in leading_columns and f.name != "id":
            yield index_name("idx", meta.table, f.digest_column), (f.digest_column,), False


def longest_indexed(meta: ModelMeta) -> dict[str, int]:
    """How many bytes the texts may have that stand in an index, by attribute.

    Postgres refuses an entry of more than 2,704 bytes; SQLite would take it. The texts of one index
    share the room, after what ids need.
    """
    texts = {f.column: f.name for f in meta.fields if f.kind in (Kind.TEXT, Kind.BYTES) and f.enum is None}
    keys = {"id", *(r.key for r in meta.relations.values() if r.kind is RelationKind.BELONGS_TO)}
    longest: dict[str, int] = {}
    for columns in ((meta.by_name["id"].column,), *(columns for _, columns, _ in _indexes(meta))):
        names = [texts[column] for column in columns if column in texts]
        free = [name for name in names if name not in keys or len(names) == 1]
        share = (_INDEX_ENTRY - _LONGEST_ID * (len(names) - len(free))) // max(len(free), 1)
        for name in names:
            longest[name] = min(longest.get(name, _INDEX_ENTRY), share if name in free else _LONGEST_ID)
    return longest


def _walk_columns(meta: ModelMeta) -> tuple[str, ...]:
    """What keyset pages are ordered by: with an index, the last page costs what the first does."""
    field = meta.field(meta.options.cursor_field) if meta.options.cursor_field else None
    if field is None or field.name == "id":
        return ()
    return field.column, meta.by_name["id"].column


def index_name(*parts: str) -> str:
    """The parts as one name that Postgres does not cut off."""
    name = "_".join(parts)
    if len(name.encode()) <= _MAX_IDENTIFIER:
        return name
    return _shorten(name)


def _shorten(name: str) -> str:
    return f"{name.encode()[: _MAX_IDENTIFIER - 9].decode(errors='ignore')}_{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.blake2s(text.encode(), digest_size=4).hexdigest()


def quote(name: str, dialect: Dialect) -> str:
    """An identifier as it may stand in a statement of that dialect."""
    return sa_dialect(dialect).identifier_preparer.quote_identifier(name)


def find_table(name: str, dialect: Dialect) -> Sql:
    """The statement that gives a row where the database has a table of this name."""
    return by_dialect(
        dialect,
        sqlite=Sql("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)),
        postgres=Sql("SELECT 1 WHERE to_regclass(quote_ident($1)) IS NOT NULL", (name,)),
    )


# What a column holds when an INSERT leaves it out.
#
# Code always writes every column, so this is for programs that write SQL of their own, and for the
# previous release of an application, which does not know a column that the next one has added. A constant
# default is in the table; ids and times only where the `__table_rules__` of a model ask for them.

# The text form in which each database keeps instants, and ids that rise with time like ours.
NOW = {
    Dialect.SQLITE: "(strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')",
    Dialect.POSTGRES: "now()",
}
_SQLITE_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_POSTGRES_MS = "lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0')"
NEW_ID = {
    Dialect.SQLITE: (
        f"(printf('%08x-%04x-7%03x-%04x-%012x', {_SQLITE_MS} >> 16, {_SQLITE_MS} & 65535, random() & 4095,"
        " 32768 | (random() & 16383), random() & 281474976710655))"
    ),
    Dialect.POSTGRES: (
        f"(substr({_POSTGRES_MS}, 1, 8) || '-' || substr({_POSTGRES_MS}, 9) || '-7'"
        " || substr(gen_random_uuid()::text, 16))"
    ),
}


ALWAYS_EQUAL = (list, dict)  # factories whose values never differ


def column_default(field: FieldMeta, dialect: Dialect, rules: TableRules) -> str | None:
    """The default of a column as SQL: that of its field, or a new id, or the time; None: it has none."""
    if field.name in rules.defaults and field.name == "id":
        return NEW_ID[dialect]
    if field.name in rules.defaults and field.name in ("created_at", "updated_at"):
        return NOW[dialect]
    return constant_default(field, dialect)


def constant_default(field: FieldMeta, dialect: Dialect) -> str | None:
    """The default of the field as SQL, where it is the same for every row and stored as it is."""
    if field.encrypted is not None:
        return None
    if field.default_factory in ALWAYS_EQUAL:
        return literal(field.default_factory(), field.kind, dialect)
    if field.default_factory is not None or not field.has_default or field.default is None:
        return None
    return literal(field.default, field.kind, dialect)
