"""What waits in line for a writer: a write, a batch of them, or a session and its calls."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from maniflex.db.port import BatchStatement
from maniflex.db.sqlite.errors import stands_alone
from maniflex.db.sqlite.threads import Collect, Statement, refuse_control
from maniflex.errors import DatabaseError, ManiflexError


class Write(Statement):
    """A statement that is a transaction of its own."""

    __slots__ = ("error", "value")

    def __init__(
        self, text: str, params: Sequence[Any], collect: Collect, future: asyncio.Future[Any]
    ) -> None:
        super().__init__(text, params, collect, future)
        self.value: Any = None
        self.error: ManiflexError | None = None

    @property
    def alone(self) -> bool:
        """Whether no other write may share its commit."""
        return stands_alone(self.text)


class BatchRequest(Write):
    """Several statements in one transaction; `text` is the one that runs, for the text of a failure."""

    __slots__ = ("statements",)

    def __init__(self, statements: Sequence[BatchStatement], future: asyncio.Future[Any]) -> None:
        super().__init__("", (), sqlite3.Cursor.fetchall, future)
        self.statements = statements

    @property
    def alone(self) -> bool:
        return False

    def perform(self, connection: sqlite3.Connection) -> list[list[Any]]:
        rows: list[list[Any]] = []
        for statement in self.statements:
            sql = statement(rows) if callable(statement) else statement
            if sql is None:
                rows.append([])
                continue
            text, params = sql
            self.text = text
            refuse_control(text)
            if self.abandoned:
                raise DatabaseError("nobody waits for it any more")
            self.check_time()
            rows.append(connection.execute(text, params).fetchall())
        return rows


class Finish:
    """The last call of a session."""

    __slots__ = ("commit", "future")

    def __init__(self, commit: bool, future: asyncio.Future[None]) -> None:
        self.commit = commit
        self.future = future


class Session:
    """A transaction that is open between calls; `future` resolves when it has begun."""

    __slots__ = ("abandoned", "calls", "deadline", "failed", "future", "started")

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.calls: SimpleQueue[Statement | Finish] = SimpleQueue()
        self.started = self.abandoned = self.failed = False
        self.deadline = 0.0
