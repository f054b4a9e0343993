"""Call the functions of a migration file to learn their operations, and write Alembic's as SQL."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from alembic.operations import Operations
from alembic.operations.ops import MigrateOperation
from alembic.runtime.migration import HeadMaintainer, MigrationContext, RevisionStep, StampStep

from maniflex.migrations.errors import MigrationError
from maniflex.sql.statement import Dialect
from maniflex.sql.tables import sa_dialect

_END = ";\x00"  # between two statements; no statement holds it


def _context(dialect: Dialect, output: io.StringIO) -> MigrationContext:
    context = MigrationContext.configure(
        dialect=sa_dialect(dialect),
        opts={"as_sql": True, "literal_binds": True, "output_buffer": output, "transactional_ddl": False},
    )
    context.impl.command_terminator = _END
    return context


class Recorder(Operations):
    """Notes operations instead of running them."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(_context(dialect, io.StringIO()))
        self.operations: list[MigrateOperation] = []

    def invoke(self, operation: MigrateOperation) -> Any:
        """Note the operation."""
        self.operations.append(operation)

    def get_bind(self) -> Any:
        """Refuse: there is no connection while a file is read."""
        raise MigrationError(
            "op.get_bind: a file is read before it is applied, so it has no connection; use op.backfill or"
            " op.run"
        )

    def batch_alter_table(self, table_name: str, *_: Any, **__: Any) -> Any:
        """Refuse: Alembic's batch mode loses triggers and collations."""
        raise MigrationError(
            f"op.batch_alter_table({table_name!r}): batch mode would lose triggers and collations on SQLite;"
            " use op.rebuild_table"
        )


# Alembic keeps the functions of `alembic.op` by the class they were made for.
Recorder._setups[Recorder] = Recorder._setups[Operations]


def record(fn: Callable[[], object], dialect: Dialect) -> list[MigrateOperation]:
    """The operations of the `upgrade` or `downgrade` of a file, in their order."""
    recorder = Recorder(dialect)
    recorder._install_proxy()
    try:
        fn()
    finally:
        recorder._remove_proxy()
    return recorder.operations


def statements_of(operation: MigrateOperation, dialect: Dialect) -> list[str]:
    """One of Alembic's operations as SQL."""
    output = io.StringIO()
    try:
        Operations(_context(dialect, output)).invoke(operation)
    except NotImplementedError as error:
        raise MigrationError(
            f"SQLite cannot do {describe_operation(operation)} in place; use op.rebuild_table"
        ) from error
    return _split(output)


def version_statements(step: RevisionStep | StampStep, heads: frozenset[str], dialect: Dialect) -> list[str]:
    """The statements that note a step of the chain in `alembic_version`."""
    output = io.StringIO()
    HeadMaintainer(_context(dialect, output), heads).update_to_step(step)
    return _split(output)


def _split(output: io.StringIO) -> list[str]:
    return [text.strip() for text in output.getvalue().split(_END) if text.strip()]


def describe_operation(operation: MigrateOperation) -> str:
    """An operation in a few words."""
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in type(operation).__name__)
    name = words.removesuffix(" op").strip()
    table = getattr(operation, "table_name", None) or getattr(operation, "table", None)
    column = getattr(operation, "column_name", None) or getattr(operation, "column", None)
    detail = getattr(operation, "index_name", None) or getattr(column, "name", column)
    place = f"{table}.{detail}" if table and detail else table or detail
    if place is None and name.startswith("execute"):
        place = " ".join(str(getattr(operation, "sqltext", "")).split())[:60]
    return f"{name.replace('_', ' ')} {place}" if place else name
