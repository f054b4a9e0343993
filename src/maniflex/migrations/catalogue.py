"""The schema of a database as a set of facts in words, to compare two databases of the same kind."""

from __future__ import annotations

import re

from maniflex.db.columns import OWN_TABLES
from maniflex.db.port import Executor
from maniflex.migrations.sqlite_table import TableText
from maniflex.sql.statement import Sql, by_dialect

_POSTGRES = """
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
_NOT_NULL = re.compile(r"(?<! IS) NOT NULL(?=(?:[^']*'[^']*')*[^']*$)")  # outside of texts
_SQLITE = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL"


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
    rows = await run.fetch(Sql(_POSTGRES))
    # An index names the schema of its table, which the two databases need not share.
    return [(str(row[0]).replace(f" ON {schema}.", " ON "), row[1]) for row in rows]


async def _read_sqlite(run: Executor) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    for kind, name, table, sql in await run.fetch(Sql(_SQLITE)):
        if (
            kind == "table"
            and "USING fts5" not in sql
            and not re.search(r"_fts_(data|idx|content|docsize|config)$", name)
        ):
            text = TableText.parse(str(sql))
            facts += [
                (f"the column {name}.{_column(definition)}", table) for definition in text.columns.values()
            ]
            facts += [(f"the constraint {name} {_plain(c)}", table) for c in text.constraints]
        elif kind != "table" or "USING fts5" in sql:
            facts.append((f"the {kind} {_plain(str(sql))}", table))
    return facts


def _column(definition: str) -> str:
    """The same for a column, with NOT NULL behind its default wherever it was written."""
    text = _plain(definition)
    shorter = _NOT_NULL.sub("", text)
    return text if shorter == text else f"{shorter} NOT NULL"


def _plain(text: str) -> str:
    """A definition without quotes around names, and with one blank between words."""
    text = re.sub(r"\bIF NOT EXISTS\b", "", text, flags=re.IGNORECASE).replace('"', "")
    return " ".join(re.sub(r"\s*([(),])\s*", r"\1", text).split())
