"""The seam between statements and databases.

An `Adapter` runs `Sql` and gives rows back; it knows no models. Reads and writes are told apart by
the method, because a database may serve them from different places (a replica, a reader thread).
Errors leave an adapter only as members of `maniflex.errors`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from maniflex._fence import Fence
from maniflex.db.budget import Budget
from maniflex.errors import DatabaseError
from maniflex.sql.statement import Dialect, Sql

if TYPE_CHECKING:
    from maniflex.db.unchanged import ReadVersions

Row = Sequence[Any]
AfterCommit = Callable[[], Awaitable[object] | object]
BatchStatement = Sql | Callable[[Sequence[list[Row]]], Sql | None]
Wake = Callable[[], object]
STREAM_BATCH = 200

log = logging.getLogger("maniflex.db")


class Isolation(StrEnum):
    """How strictly concurrent transactions are kept apart (SQLite is always serializable)."""

    READ_COMMITTED = "read committed"
    REPEATABLE_READ = "repeatable read"
    SERIALIZABLE = "serializable"


class Executor(Protocol):
    """Anything that runs a statement: the adapter itself and an open transaction alike."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def read_versions(self) -> ReadVersions | None:
        """Where the versions of rows that are read here are noted; None where they are not."""

    async def fetch(self, sql: Sql, budget: Budget | None = None) -> list[Row]:
        """All rows of a read; `AnswerTooLarge` as soon as they are known to exceed the budget."""

    async def fetch_one(self, sql: Sql) -> Row | None:
        """The first row of a read."""

    async def fetch_named(self, sql: Sql) -> list[dict[str, Any]]:
        """All rows of a read whose columns are known only to the statement."""

    async def write(self, sql: Sql) -> list[Row]:
        """The rows a write returns; outside a transaction it is committed when this returns."""

    async def execute(self, sql: Sql) -> int:
        """How many rows a write touched; outside a transaction it is committed when this returns."""

    async def batch(self, statements: Sequence[BatchStatement]) -> list[list[Row]]:
        """The rows of each statement, all of them in one transaction: this one, or one of their own.

        A function among them is given the rows so far and makes the statement to run, or None. It may run on
        another thread and more than once.
        """


class Tx(Executor, Protocol):
    """An open transaction."""

    def after_commit(self, call: AfterCommit) -> None:
        """Run `call` once the transaction has committed; never when it rolls back."""

    def doom(self) -> None:
        """Let nothing of it be committed any more, as after a statement that failed."""

    def guard_commit(self, sql: Sql) -> None:
        """Run a write that returns rows as the last statement, along with the commit.

        When it changes no row, nothing is committed and the block ends in `CommitRefused`.
        """


class Adapter(Executor, Protocol):
    """One database."""

    @property
    def label(self) -> str:
        """A name for logs and messages, without credentials."""

    async def open(self, *, read_only: bool = False) -> None:
        """Connect; with `read_only` nothing is made, and no statement can change the database."""

    async def close(self) -> None: ...

    async def ping(self) -> None:
        """Return when the database answers; raise `Unavailable` or `Timeout` otherwise."""

    def transaction(
        self, *, isolation: Isolation | None = None, read_only: bool = False, late: bool = False
    ) -> AbstractAsyncContextManager[Tx]:
        """Begin, then commit when the block ends, or roll back when it raises.

        A `late` one begins with its first statement, which costs less than to begin and then run it.
        """

    def stream(self, sql: Sql, *, batch: int = STREAM_BATCH) -> AsyncGenerator[list[Row], None]:
        """The rows of a read of any size, of one moment, at most `batch` at a time.

        It joins no transaction and no statement timeout ends it; a caller that stops early closes it.
        """

    def sibling(self, *, steady: bool = False, patient: bool = False) -> Adapter:
        """One more adapter for the same database, not open yet and small, for another event loop.

        A `steady` one runs statements along keys and indexes as they are written, no matter
        what sizes the database believes its tables to have: for queues, whose tables are empty one
        minute and huge the next. A `patient` one lets a statement take and wait as long as it needs.
        """

    def listen(self, channel: str, wake: Wake) -> AbstractAsyncContextManager[None]:
        """Call `wake` on the event loop when something may have changed, and once at the beginning.

        A hint that may come too often and, behind a pooler, never comes: a listener also polls.
        SQLite notices every commit; PostgreSQL notices a session that runs
        `pg_notify(left(channel || '.' || current_schema(), 63), '')`.
        """


class CommitRefused(DatabaseError):
    """The guard of a commit changed no row, so all of the transaction was rolled back."""


class ReadOnlyDatabase(DatabaseError):
    """A statement would write to a database that was opened for reading alone."""

    def __init__(self) -> None:
        super().__init__("the database is open for reading alone; nothing was written")


class CommitHooks:
    """The guard and the after-commit calls of one transaction; every adapter's `Tx` is built on it."""

    __slots__ = ("_after_commit", "_guard")

    def __init__(self) -> None:
        self._after_commit: list[AfterCommit] = []
        self._guard: Sql | None = None

    def guard_commit(self, sql: Sql) -> None:
        assert self._guard is None, "a commit has one guard"
        self._guard = sql

    def after_commit(self, call: AfterCommit) -> None:
        self._after_commit.append(call)

    async def run_after_commit(self) -> None:
        """Run the calls in order; one that fails is logged, because the commit already happened."""
        if not self._after_commit:
            return
        fence = Fence()
        for call in self._after_commit:
            try:
                outcome = call()
                if isinstance(outcome, Awaitable):
                    await outcome
            except BaseException as error:
                fence.absorb(error)
                log.exception("an after-commit call failed")
