"""A database as it is: its tables, columns and indexes, the migrations it notes, and all facts of its schema.

Everything else of this package compares with what is read here, or changes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from maniflex.db.port import Executor, Row
from maniflex.model.meta import FieldMeta, Kind
from maniflex.sql.decimal_order import is_order_column, order_column
from maniflex.sql.history_layouts import HISTORY_SCHEMA
from maniflex.sql.model import ModelSql
from maniflex.sql.search import VECTOR
from maniflex.sql.statement import Dialect, Sql, by_dialect, sa_dialect
from maniflex.sql.tables import COLUMN_TYPES, column_type, find_table, quote


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
    read_rows = by_dialect(model.dialect, sqlite=_read_sqlite_columns, postgres=_read_postgres_columns)
    rows = await read_rows(run, model, name)
    return {
        row[0]: Column(row[0], str(row[1]).lower(), bool(row[2]), bool(row[3]), row[4], row[5])
        for row in rows
    }


async def _read_sqlite_columns(run: Executor, model: ModelSql, table: str) -> Sequence[Row]:
    return await run.fetch(Sql(_SQLITE_COLUMNS, (table,)))


async def _read_postgres_columns(run: Executor, model: ModelSql, table: str) -> Sequence[Row]:
    rows = await run.fetch(Sql(_POSTGRES_COLUMNS, (quote(table, model.dialect),)))
    model.versioned = all(_text(row[6]) in _WITH_VERSIONS for row in rows)
    model.schema = next((row[7] for row in rows), None)
    return rows


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def has_type(model: ModelSql, column: Column, kind: Kind) -> bool:
    """Whether values of that kind may be stored in the column as it is declared."""
    return column.type.split("(")[0].strip() in COLUMN_TYPES[model.dialect][kind]


def type_ddl(model: ModelSql, field: FieldMeta) -> str:
    """The type a column of the field is made with."""
    return str(column_type(field.kind, model.dialect).compile(dialect=sa_dialect(model.dialect)))


def is_derived(column: Column, columns: Columns) -> bool:
    """Whether a column is no field's: the order of a decimal, or the words of a search."""
    return is_order_column(column.name, columns) or (column.name == VECTOR and column.type == "tsvector")


# The indexes of a table.


def ddl(element: Any, model: ModelSql) -> str:
    """A statement of SQLAlchemy as text for the database of the model."""
    return str(element.compile(dialect=sa_dialect(model.dialect))).strip()


@dataclass(frozen=True, slots=True)
class ExistingIndex:
    columns: tuple[str, ...]
    unique: bool
    predicate: str  # "" when it covers every row
    valid: bool = field(default=True, compare=False)  # False: PostgreSQL was interrupted while building it
    condition: str = field(default="", compare=False)  # the predicate as the database writes it

    def __str__(self) -> str:
        kind = "unique" if self.unique else "not unique"
        condition = f" where {self.predicate}" if self.predicate else ""
        return f"{kind} on {', '.join(self.columns)}{condition}"

    @property
    def promise(self) -> tuple[bool, frozenset[str], str]:
        """What it means for the rows, which the order of its columns does not change."""
        return self.unique, frozenset(self.columns), self.predicate

    def with_columns(self, columns: Mapping[str, str]) -> ExistingIndex:
        """The same when its table has new names (old → new) of columns."""
        order_keys = {order_column(old): order_column(new) for old, new in columns.items()}

        def rename(text: str) -> str:
            return re.sub(r"\w+", lambda word: columns.get(word[0], word[0]), text)

        return replace(
            self,
            columns=tuple(order_keys.get(column, columns.get(column, column)) for column in self.columns),
            predicate=rename(self.predicate),
            condition=rename(self.condition),
        )


_SQLITE_INDEXES = """
SELECT l.name, l."unique", i.name, m.sql, 1
  FROM pragma_index_list(?) l JOIN pragma_index_info(l.name) i
  LEFT JOIN sqlite_master m ON m.type = 'index' AND m.name = l.name
 ORDER BY l.name, i.seqno
"""
_POSTGRES_INDEXES = """
SELECT c.relname, i.indisunique AND i.indisvalid, a.attname, pg_get_expr(i.indpred, i.indrelid),
       i.indisvalid
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  CROSS JOIN LATERAL unnest(i.indkey[0 : i.indnkeyatts - 1]) WITH ORDINALITY k (attnum, place)
  LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum <> 0
 WHERE i.indrelid = to_regclass($1) ORDER BY c.relname, k.place
"""


async def read_indexes(run: Executor, model: ModelSql, table: str | None = None) -> dict[str, ExistingIndex]:
    """The indexes of the model's table, or of its old `table`, by name."""
    name = table or model.table.name
    rows = await run.fetch(
        by_dialect(
            model.dialect,
            sqlite=Sql(_SQLITE_INDEXES, (name,)),
            postgres=Sql(_POSTGRES_INDEXES, (quote(name, model.dialect),)),
        )
    )
    columns: dict[str, list[str]] = {}
    for name, _, column, *_ in rows:
        columns.setdefault(name, []).append(column or "an expression")
    return {
        row[0]: ExistingIndex(
            tuple(columns[row[0]]),
            bool(row[1]),
            _predicate(condition),
            bool(row[4]),
            condition,
        )
        for row in rows
        for condition in [_condition(row[3], model.dialect)]
    }


def _condition(text: str | None, dialect: Dialect) -> str:
    """The condition of a partial index, as the database writes it."""
    if text and by_dialect(dialect, sqlite=True, postgres=False):  # it is the whole statement
        _, *condition = re.split(r"\sWHERE\s", text, maxsplit=1, flags=re.IGNORECASE)
        text = " ".join(condition)
    return text or ""


def _predicate(condition: str) -> str:
    """The condition of a partial index, bare of what each database puts around it."""
    return " ".join(re.sub(r'[()"`\[\]]', "", condition).lower().split())


_OBJECT_NAMES = {
    Dialect.SQLITE: "SELECT name FROM sqlite_master",
    Dialect.POSTGRES: """
SELECT c.relname::text FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND i.indisvalid IS NOT FALSE
 UNION ALL
SELECT conname::text FROM pg_constraint
 WHERE connamespace = to_regnamespace(quote_ident(current_schema())) AND contype = 'c'
""",
}


async def read_object_names(run: Executor) -> frozenset[str]:
    """The names of all tables, indexes, sequences and checks of the database."""
    return frozenset(row[0] for row in await run.fetch(Sql(_OBJECT_NAMES[run.dialect])))


# The tables in which a database notes its migrations: Alembic's `alembic_version`, and our log beside it.
#
# The layouts of histories, which migrations change too, have a table of their own (`history.py`).


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
    return await run.fetch_one(find_table(table, run.dialect)) is not None


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


async def make_version_tables(run: Executor) -> None:
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


# The schema of a database as a set of facts in words, to compare two databases of the same kind.


_POSTGRES_FACTS = """
SELECT 'the column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
       || COALESCE(' COLLATE ' || l.collname, '')
       || COALESCE(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), ''), c.relname::text
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
  LEFT JOIN pg_collation l ON l.oid = a.attcollation AND l.collname <> 'default'
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind IN ('r', 'p')
   AND a.attnum > 0 AND NOT a.attisdropped
 UNION ALL
SELECT 'the index ' || pg_get_indexdef(i.indexrelid), c.relname::text
  FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema()))
 UNION ALL
SELECT 'the constraint ' || o.conname || ' ' || pg_get_constraintdef(o.oid), c.relname::text
  FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND o.contype <> 'n'
 UNION ALL
SELECT 'the options of ' || c.relname || ': ' || c.reloptions::text, c.relname::text FROM pg_class c
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.reloptions IS NOT NULL
 UNION ALL
SELECT 'the sequence ' || c.relname, c.relname::text FROM pg_class c
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind = 'S'
"""
_NOT_NULL_CLAUSE = re.compile(r"(?<! IS) NOT NULL(?=(?:[^']*'[^']*')*[^']*$)")  # outside of texts
_SQLITE_FACTS = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL"


async def read_catalogue(run: Executor) -> frozenset[str]:
    """Every column, index, constraint and trigger, but not the tables that note the migrations."""
    return frozenset(await read_facts(run))


async def read_facts(run: Executor) -> dict[str, str]:
    """The same, each with the table it belongs to."""
    read = by_dialect(run.dialect, sqlite=_read_sqlite, postgres=_read_postgres)
    return {fact: table for fact, table in await read(run) if table not in OWN_TABLES}


async def _read_postgres(run: Executor) -> list[tuple[str, str]]:
    row = await run.fetch_one(Sql("SELECT current_schema()"))
    schema = str(row[0]) if row is not None else "public"
    rows = await run.fetch(Sql(_POSTGRES_FACTS))
    # An index names the schema of its table, which the two databases need not share.
    return [(str(row[0]).replace(f" ON {schema}.", " ON "), row[1]) for row in rows]


async def _read_sqlite(run: Executor) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    for kind, name, table, sql in await run.fetch(Sql(_SQLITE_FACTS)):
        if (
            kind == "table"
            and "USING fts5" not in sql
            and not re.search(r"_fts_(data|idx|content|docsize|config)$", name)
        ):
            text = TableText.parse(str(sql))
            facts += [
                (f"the column {name}.{_column_fact(definition)}", table)
                for definition in text.columns.values()
            ]
            facts += [(f"the constraint {name} {_plain(c)}", table) for c in text.constraints]
        elif kind != "table" or "USING fts5" in sql:
            facts.append((f"the {kind} {_plain(str(sql))}", table))
    return facts


def _column_fact(definition: str) -> str:
    """The same for a column, with NOT NULL behind its default wherever it was written."""
    text = _plain(definition)
    shorter = _NOT_NULL_CLAUSE.sub("", text)
    return text if shorter == text else f"{shorter} NOT NULL"


def _plain(text: str) -> str:
    """A definition without quotes around names, and with one blank between words."""
    text = re.sub(r"\bIF NOT EXISTS\b", "", text, flags=re.IGNORECASE).replace('"', "")
    return " ".join(re.sub(r"\s*([(),])\s*", r"\1", text).split())


# The CREATE TABLE statement of SQLite, taken apart and put together: what a table is made anew from.
#
# SQLite keeps the statement word for word, so a column or constraint that nothing is said about stays
# exactly as it was declared, with its collation, its CHECK and its references.


_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"(?:[^"]|"")*"|\[[^\]]*\]|`(?:[^`]|``)*`|\(|\)|,|[^-/'"\[`(),]+|.""",
    re.DOTALL,
)
_LEADING_NAME = re.compile(r'\s*(?:"((?:[^"]|"")+)"|\[([^\]]+)\]|`((?:[^`]|``)+)`|([\w$]+))')
_CONSTRAINT = re.compile(r"\s*(?:CONSTRAINT|PRIMARY\s+KEY|UNIQUE|CHECK|FOREIGN\s+KEY)\b", re.IGNORECASE)
_NOT_NULL = re.compile(r"\bNOT\s+NULL\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableText:
    """The parts of a CREATE TABLE statement.

    >>> TableText.parse('CREATE TABLE t (id TEXT NOT NULL, n INT CHECK (n > 0), PRIMARY KEY (id))').columns
    {'id': 'id TEXT NOT NULL', 'n': 'n INT CHECK (n > 0)'}
    """

    columns: Mapping[str, str]  # name → definition
    constraints: tuple[str, ...]
    ending: str  # such as WITHOUT ROWID

    @classmethod
    def parse(cls, statement: str) -> TableText:
        """Take the statement apart."""
        items, ending = _items(statement)
        columns: dict[str, str] = {}
        constraints: list[str] = []
        for item in items:
            if _CONSTRAINT.match(item):
                constraints.append(item)
            else:
                columns[_name_of(item)] = item
        return cls(columns, tuple(constraints), ending)

    def with_columns(self, definitions: Mapping[str, str]) -> TableText:
        """The same table with other definitions for some of its columns."""
        return replace(self, columns={**self.columns, **definitions})

    def with_not_null(self, column: str) -> TableText:
        """The same table with a value in this column for every row."""
        definition = self.columns[column]
        if _NOT_NULL.search(_without_texts(definition)):
            return self
        return self.with_columns({column: f"{definition} NOT NULL"})

    def create(self, name: str) -> str:
        """The statement that makes it under a name."""
        items = ", ".join((*self.columns.values(), *self.constraints))
        return f"CREATE TABLE {name} ({items}){' ' if self.ending else ''}{self.ending}"


def _items(statement: str) -> tuple[list[str], str]:
    """The definitions between the outer parentheses, and what follows them."""
    items, item, depth, ending = [], "", 0, ""
    for token in _tokens(statement):
        if token == "(":
            depth += 1
            if depth == 1:
                continue
        elif token == ")":
            depth -= 1
            if depth == 0:
                items.append(" ".join(item.split()) if "'" not in item else item.strip())
                item = ""
                continue
        elif token == "," and depth == 1:
            items.append(" ".join(item.split()) if "'" not in item else item.strip())
            item = ""
            continue
        if depth > 0:
            item += token
        elif items:
            ending += token
    return items, ending.strip()


def _tokens(statement: str) -> Iterator[str]:
    for match in _TOKEN.finditer(statement):
        token = match[0]
        yield " " if token.startswith(("--", "/*")) else token


def _name_of(definition: str) -> str:
    match = _LEADING_NAME.match(definition)
    assert match is not None, definition
    return (match[1] or "").replace('""', '"') or match[2] or (match[3] or "").replace("``", "`") or match[4]


def _without_texts(definition: str) -> str:
    return re.sub(r"'(?:[^']|'')*'|\([^()]*\)", "", definition)
