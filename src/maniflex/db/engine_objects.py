"""What durable work keeps beside its models: indexes, tables and checks, told from their statements.

Each of these statements does no harm when it is repeated, so its name is all that a comparison needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from maniflex.db.port import Executor
from maniflex.sql.statement import Dialect, Sql

_FORMS = (
    (re.compile(r"\s*CREATE\s+(?:UNIQUE\s+)?INDEX\s+IF\s+NOT\s+EXISTS\s+(\w+)", re.IGNORECASE), "the index"),
    (re.compile(r"\s*CREATE\s+TABLE\s+IF\s+NOT\s+EXISTS\s+(\w+)", re.IGNORECASE), "the table"),
    (re.compile(r"\s*CREATE\s+SEQUENCE\s+IF\s+NOT\s+EXISTS\s+(\w+)", re.IGNORECASE), "the sequence"),
    (re.compile(r"\s*DO\b.*?\bconname\s*=\s*'(\w+)'", re.IGNORECASE | re.DOTALL), "the check"),
)
_DROPS = re.compile(r"\s*DROP\s+INDEX\s+IF\s+EXISTS\s+(\w+)", re.IGNORECASE)
_TABLE = re.compile(r"\bON\s+(\w+)\s*(?:USING\s+\w+\s*)?\(|\bALTER\s+TABLE\s+(\w+)", re.IGNORECASE)
_NAMES = {
    Dialect.SQLITE: "SELECT name FROM sqlite_master",
    Dialect.POSTGRES: """
SELECT c.relname::text FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND i.indisvalid IS NOT FALSE
 UNION ALL
SELECT conname::text FROM pg_constraint
 WHERE connamespace = to_regnamespace(quote_ident(current_schema())) AND contype = 'c'
""",
}


@dataclass(frozen=True, slots=True)
class EngineObject:
    """One piece beside the models, and the statement that makes it or removes it."""

    name: str
    kind: str  # in words
    text: str
    wanted: bool
    table: str | None  # it stands on

    @property
    def is_index(self) -> bool:
        return self.kind == "the index"


def engine_objects(statements: Iterable[Sql]) -> Iterator[EngineObject]:
    """The pieces that these statements make, in their order."""
    for statement in statements:
        text, match = statement.text, _DROPS.match(statement.text)
        if match is not None:
            yield EngineObject(match[1], "the index", text, False, None)
            continue
        yield _wanted_object(text)


def _wanted_object(text: str) -> EngineObject:
    for form, kind in _FORMS:
        if (match := form.match(text)) is not None:
            table = _TABLE.search(text, match.end() if kind != "the check" else 0)
            return EngineObject(match[1], kind, text, True, (table[1] or table[2]) if table else None)
    raise ValueError(f"no name can be read from the statement {text.strip()[:60]!r}")


async def read_object_names(run: Executor) -> frozenset[str]:
    """The names of all tables, indexes, sequences and checks of the database."""
    return frozenset(row[0] for row in await run.fetch(Sql(_NAMES[run.dialect])))
