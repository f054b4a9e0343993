"""Stands where a database would: what a model with a backend has instead of one.

There is no SQL to run. Its transaction is an empty one: nothing of a backend is rolled back, and the
calls for after the commit run when the block ends without an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NoReturn

from maniflex.db.budget import Budget
from maniflex.db.port import STREAM_BATCH, Adapter, BatchStatement, CommitHooks, Isolation, Row, Tx, Wake
from maniflex.errors import DeclarationError
from maniflex.sql.statement import Dialect, Sql


class _NoSql:
    read_versions = None
    dialect = Dialect.SQLITE  # nothing is ever written in it

    def __init__(self, model: str, backend: str) -> None:
        self._model, self._backend = model, backend

    def _refuse(self) -> NoReturn:
        raise DeclarationError(f"{self._model} is kept by {self._backend}, which runs no SQL")

    async def fetch(self, sql: Sql, budget: Budget | None = None) -> list[Row]:
        self._refuse()

    async def fetch_one(self, sql: Sql) -> Row | None:
        self._refuse()

    async def fetch_named(self, sql: Sql) -> list[dict[str, Any]]:
        self._refuse()

    async def write(self, sql: Sql) -> list[Row]:
        self._refuse()

    async def execute(self, sql: Sql) -> int:
        self._refuse()

    async def batch(self, statements: Sequence[BatchStatement]) -> list[list[Row]]:
        self._refuse()


class _EmptyTx(_NoSql, CommitHooks):
    def __init__(self, model: str, backend: str) -> None:
        _NoSql.__init__(self, model, backend)
        CommitHooks.__init__(self)

    def doom(self) -> None:
        """There is nothing that could be committed."""


class BackendAdapter(_NoSql):
    """The place of one model that has a backend; each has its own."""

    @property
    def label(self) -> str:
        return f"{self._backend} of {self._model}"

    async def open(self, *, read_only: bool = False) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    @asynccontextmanager
    async def transaction(
        self, *, isolation: Isolation | None = None, read_only: bool = False, late: bool = False
    ) -> AsyncIterator[Tx]:
        tx = _EmptyTx(self._model, self._backend)
        yield tx
        await tx.committed()

    def stream(self, sql: Sql, *, batch: int = STREAM_BATCH) -> AsyncGenerator[list[Row], None]:
        self._refuse()

    def sibling(self, *, steady: bool = False, patient: bool = False) -> Adapter:
        return self

    def listen(self, channel: str, wake: Wake) -> AbstractAsyncContextManager[None]:
        self._refuse()
