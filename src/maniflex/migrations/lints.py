"""What a person's own `op.execute` would do to an application that is running, as warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from alembic.operations import ops
from alembic.operations.ops import MigrateOperation

from maniflex.migrations.operations import StatementByDatabase
from maniflex.sql.statement import Dialect, by_dialect

_FLAGS = re.IGNORECASE | re.DOTALL
_RULES = (
    (
        re.compile(r"\s*CREATE\s+(UNIQUE\s+)?INDEX\s+(?!CONCURRENTLY)", _FLAGS),
        "an index that is not built CONCURRENTLY stops all writers of its table; use op.create_index",
    ),
    (
        re.compile(r"\bSET\s+NOT\s+NULL\b", _FLAGS),
        "SET NOT NULL reads the whole table while no one can use it; use op.set_not_null",
    ),
    (
        re.compile(r"\bALTER\s+COLUMN\b.*\bTYPE\b", _FLAGS),
        "another type rewrites the whole table while no one can use it",
    ),
    (
        re.compile(r"\s*LOCK\s+TABLE\b", _FLAGS),
        "LOCK TABLE holds up the application until the operation ends",
    ),
    (
        re.compile(r"\bDROP\s+(TABLE|COLUMN)\b", _FLAGS),
        "a DROP loses data; deploy the code that does without first",
    ),
)


def lint_operations(operations: Sequence[MigrateOperation], dialect: Dialect) -> Iterator[str]:
    """Warnings about statements of a file that were written by hand."""
    for operation in operations:
        text = by_dialect(dialect, sqlite=None, postgres=_text(operation))  # SQLite has one writer anyway
        for rule, warning in _RULES if text else ():
            if rule.search(str(text)):
                yield f"{' '.join(str(text).split())[:60]}: {warning}"


def _text(operation: MigrateOperation) -> str | None:
    if isinstance(operation, ops.ExecuteSQLOp) and isinstance(operation.sqltext, str):
        return operation.sqltext
    if isinstance(operation, StatementByDatabase):
        return operation.postgresql if not (operation.postgresql or "").startswith("DO") else None
    return None
