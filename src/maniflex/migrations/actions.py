"""What an operation comes to on one database: statements, index builds, checks and code, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from maniflex.migrations.operations import Backfill, RunCode
from maniflex.sql.statement import Sql


@dataclass(frozen=True, slots=True)
class StatementAction:
    """One statement, inside a transaction."""

    text: str


@dataclass(frozen=True, slots=True)
class Commit:
    """What follows is a transaction of its own, because the locks so far must not be held as long."""


@dataclass(frozen=True, slots=True)
class IndexBuild:
    """An index that PostgreSQL builds beside its writers, outside any transaction."""

    name: str
    table: str
    text: str  # CREATE INDEX CONCURRENTLY …
    unique: bool


@dataclass(frozen=True, slots=True)
class StoredRowsCheck:
    """A query whose rows are a reason not to go on; `sentence` makes it of the first."""

    query: Sql
    sentence: Callable[[Sequence[Any]], str]


@dataclass(frozen=True, slots=True)
class BackfillAction:
    """Rows that are filled batch by batch."""

    backfill: Backfill


@dataclass(frozen=True, slots=True)
class CodeAction:
    """A function of the application, called inside the transaction."""

    run: RunCode


Action: TypeAlias = StatementAction | Commit | IndexBuild | StoredRowsCheck | BackfillAction | CodeAction
