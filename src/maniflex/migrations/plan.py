"""What operations come to that both databases carry out alike."""

from __future__ import annotations

from collections.abc import Iterable

from alembic.operations import ops

from maniflex.migrations.actions import Action, BackfillAction, CodeAction, StatementAction
from maniflex.migrations.checks import value_check
from maniflex.migrations.operations import Backfill, RequireValues, RunCode
from maniflex.migrations.recorder import statements_of
from maniflex.sql.statement import Dialect


def plan_alike(operation: ops.MigrateOperation, dialect: Dialect) -> list[Action]:
    """The actions of an operation that needs nothing but its words, or the SQL that Alembic writes for it."""
    match operation:
        case RequireValues():
            return [value_check(operation, dialect)]
        case Backfill():
            return [BackfillAction(operation)]
        case RunCode():
            return [CodeAction(operation)]
        case ops.ExecuteSQLOp() if isinstance(operation.sqltext, str):
            return [StatementAction(operation.sqltext)]
        case _:
            return statement_actions(statements_of(operation, dialect))


def statement_actions(texts: Iterable[str]) -> list[Action]:
    """One action for each statement."""
    return [StatementAction(text) for text in texts]
