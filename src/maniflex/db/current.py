"""What is found by context: the open transaction, the request or run that reads, and who judges a write.

Helper code joins the transaction unasked. The reader says how current its reads must be, where a replica
could answer them. A write that no transaction rolls back is judged before it is done.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast

from maniflex._caller import forget_request
from maniflex.db.budget import Budget
from maniflex.db.port import Adapter, Executor, Isolation, Row, Tx
from maniflex.errors import DatabaseError, RequestError, TransactionError
from maniflex.model.meta import ModelMeta
from maniflex.sql.statement import Sql, by_dialect


@dataclass(slots=True)
class _Open:
    adapter: Adapter
    tx: Tx
    outer: _Open | None
    ended: bool = False  # a task started inside may still see it afterwards


_open: ContextVar[_Open | None] = ContextVar("maniflex_open_transaction", default=None)
open_block = _open.get  # None where no transaction at all is open, as for most requests


@dataclass(slots=True, kw_only=True)
class ReplicaReader:
    """One request or run, and how current its reads must be."""

    position: int = 0  # in the primary's log; a replica must have got that far
    timeline: int = 0  # of the position: each promotion begins a new one; 0 is any
    written_at: float = 0.0  # on the monotonic clock: a write whose position is not known yet
    needs_primary: bool = False
    outer: ReplicaReader | None = None
    has_written: bool = False
    open_writes: int = 0

    def begin_write(self) -> None:
        """Something may be committed from now on."""
        self.open_writes += 1
        if self.outer is not None:
            self.outer.begin_write()

    def end_write(self) -> None:
        """It is committed by now, or never will be."""
        self.open_writes -= 1
        self.written_at, self.has_written = time.monotonic(), True
        if self.outer is not None:
            self.outer.end_write()


current_reader: ContextVar[ReplicaReader | None] = ContextVar("maniflex_reader", default=None)


def current_tx(adapter: Adapter) -> Tx | None:
    """The open transaction on this database, if there is one."""
    block = _open.get()
    while block is not None and (block.ended or block.adapter is not adapter):
        block = block.outer
    return None if block is None else block.tx


def innermost_tx() -> Tx | None:
    """The transaction that was opened last, on whichever database."""
    block = _open.get()
    while block is not None and block.ended:
        block = block.outer
    return None if block is None else block.tx


def detached_context() -> Context:
    """This context without its transaction and its request, for work of its server that outlives both."""
    context = copy_context()
    context.run(_open.set, None)
    context.run(current_reader.set, None)
    context.run(forget_request)
    context.run(forget_unrolled)
    context.run(_shared.set, None)
    return context


def executor(adapter: Adapter, tx: Tx | None = None) -> Executor:
    """Where a statement for `adapter` goes: the transaction handed over, the open one, or the pool."""
    if tx is not None:
        return tx
    block = _open.get()
    if block is None:
        return adapter
    return current_tx(adapter) or adapter


@asynccontextmanager
async def transaction(
    adapter: Adapter, *, isolation: Isolation | str | None = None, read_only: bool = False, late: bool = False
) -> AsyncIterator[Tx]:
    """Open a transaction, or join the one already open on this database."""
    open_tx = current_tx(adapter)
    if open_tx is not None:
        yield open_tx
        return
    level = None if isolation is None else _level(isolation)
    async with adapter.transaction(isolation=level, read_only=read_only, late=late) as tx:
        here = _Open(adapter, tx, _open.get())
        token = _open.set(here)
        try:
            yield tx
        finally:
            here.ended = True
            _open.reset(token)


def _level(isolation: Isolation | str) -> Isolation:
    try:
        return Isolation(isolation.lower().replace("_", " "))
    except ValueError:
        levels = ", ".join(Isolation)
        raise DatabaseError(f"there is no isolation level {isolation!r}; there are: {levels}") from None


def require_tx(adapter: Adapter, what: str, line: str = "async with ctx.transaction():") -> Tx:
    """The open transaction, for work that means nothing without one; `line` is what opens it."""
    tx = current_tx(adapter)
    if tx is None:
        raise TransactionError("TX_REQUIRED", f"{what} needs an open transaction: `{line}`")
    return tx


# Where reads go: to a replica only for a request or run that may read there, else to the primary.
#
# A `ReplicaReader` stands for one request that only reads, or for one run. It remembers what was written,
# so that what it reads later shows it. Without one (loops, schedulers, start-up, scripts) all reads go to
# the primary, as do those of `Primary`, which the framework itself relies on. Without a replica nothing
# of this makes a difference.


class ApartFromReader:
    """A block that reads from the primary, and whose writes are not those of the request or run."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = current_reader.set(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        current_reader.reset(self._before)


class OnPrimary(ApartFromReader):
    """A block, `with` or `async with`, whose reads go to the primary."""

    __slots__ = ()

    def __enter__(self) -> None:
        outer = current_reader.get()
        inner = None if outer is None else ReplicaReader(needs_primary=True, outer=outer)
        self._before = current_reader.set(inner)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class Primary:
    """The reads of an adapter that must not be behind: they are answered where its writes go."""

    read_versions = None  # it is no transaction

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self.dialect = adapter.dialect

    async def fetch(self, sql: Sql, budget: Budget | None = None) -> list[Row]:
        with ApartFromReader():
            return await self._adapter.fetch(sql, budget)

    async def fetch_one(self, sql: Sql) -> Row | None:
        with ApartFromReader():
            return await self._adapter.fetch_one(sql)


def reading(adapter: Adapter, tx: Tx | None = None) -> Tx:
    """The executor for current reads: the transaction `tx`, the open one, or the primary."""
    primary: Any = Primary(adapter)
    return tx or current_tx(adapter) or cast(Tx, primary)


# Statements beside the open transaction: committed by themselves, and never read from a replica.


T = TypeVar("T")


def write_separately(adapter: Adapter, sql: Sql) -> Awaitable[list[Row]]:
    """The rows a write returns, which stays committed when the caller's transaction rolls back."""
    tx = _tx_with_the_writer(adapter)
    if tx is not None:
        return _take_along(adapter, sql, tx).write(sql)
    return adapter.write(sql) if current_reader.get() is None else _apart(adapter.write, sql)


def execute_separately(adapter: Adapter, sql: Sql) -> Awaitable[int]:
    """How many rows a write touched, which stays committed likewise."""
    tx = _tx_with_the_writer(adapter)
    if tx is not None:
        return _take_along(adapter, sql, tx).execute(sql)
    return adapter.execute(sql) if current_reader.get() is None else _apart(adapter.execute, sql)


def _tx_with_the_writer(adapter: Adapter) -> Tx | None:
    """The open transaction that holds the one writer there is, so that a separate write would wait for it."""
    tx = current_tx(adapter)
    return tx if tx is not None and by_dialect(adapter.dialect, sqlite=True, postgres=False) else None


def _take_along(adapter: Adapter, sql: Sql, tx: Tx) -> Tx:
    share = _shared.get()
    if share is None:
        raise TransactionError("TX_OPEN", "SQLite has one writer, which the open transaction holds")
    share.separate_writes.append((adapter, sql))
    return tx


@dataclass(slots=True)
class SharedTransaction:
    """A transaction that whole requests share: what has to be done where it is rolled back."""

    separate_writes: list[tuple[Adapter, Sql]] = field(default_factory=list)  # done again, by themselves
    undo: list[Callable[[], Awaitable[object]]] = field(default_factory=list)


_shared: ContextVar[SharedTransaction | None] = ContextVar("maniflex_shared_transaction", default=None)


@asynccontextmanager
async def share_transaction() -> AsyncIterator[SharedTransaction]:
    """A block in which requests share a transaction; an exception that leaves it has rolled that back.

    On SQLite their separate writes, such as tokens they took of a limit, are done in the transaction, and
    again where that is rolled back.
    """
    share = SharedTransaction()
    token = _shared.set(share)
    try:
        yield share
    except BaseException:
        _shared.reset(token)
        with suppress(RequestError):  # what failed is told by the error that is on its way
            for adapter, sql in share.separate_writes:
                await write_separately(adapter, sql)
            for undo in share.undo:
                await undo()
        raise
    else:
        _shared.reset(token)


def shared_transaction() -> SharedTransaction | None:
    """The transaction that this request shares with others, if it shares one."""
    return _shared.get()


def shared_tx(adapter: Adapter) -> Tx | None:
    """The open transaction on this database, if requests share it."""
    return None if _shared.get() is None else current_tx(adapter)


async def _apart(run: Callable[[Sql], Awaitable[T]], sql: Sql) -> T:
    # A limit or a cache that writes in every request would else send all its reads to the primary.
    with ApartFromReader():
        return await run(sql)


def read_current(adapter: Adapter, sql: Sql) -> Awaitable[Row | None]:
    """The first row of a read as the last commit left it."""
    return Primary(adapter).fetch_one(sql)


# Writes that no transaction rolls back: they are judged before they are done, or only tried.
#
# A backend keeps what it was told to keep. Whoever would let a database write and then look at the row, or
# write and roll back to see what would come of it, says so here first.


JudgeRow = Callable[[Row], Awaitable[None]]


class _Judgement(NamedTuple):
    meta: ModelMeta
    record_id: str
    judge: JudgeRow


_is_trial: ContextVar[bool] = ContextVar("maniflex_trial", default=False)
_judgement: ContextVar[_Judgement | None] = ContextVar("maniflex_judgement", default=None)


@contextmanager
def trial() -> Iterator[None]:
    """Everything written inside is rolled back, so what cannot be rolled back is checked and not written."""
    token = _is_trial.set(True)
    try:
        yield
    finally:
        _is_trial.reset(token)


def is_trial() -> bool:
    """Whether what is written now will be rolled back."""
    return _is_trial.get()


@contextmanager
def judged_first(meta: ModelMeta, record_id: str, judge: JudgeRow) -> Iterator[None]:
    """This record, which cannot be rolled back, is shown to `judge` as it becomes, before it is written."""
    token = _judgement.set(_Judgement(meta, record_id, judge))
    try:
        yield
    finally:
        _judgement.reset(token)


async def judge_outcome(meta: ModelMeta, record_id: str, row: Row) -> None:
    """Show the row to the judge of this record, if it has one, before it is written."""
    judgement = _judgement.get()
    if judgement is not None and judgement.meta is meta and judgement.record_id == record_id:
        _judgement.set(None)  # what hooks write to the record afterwards is code's, which no policy judges
        await judgement.judge(row)


def forget_unrolled() -> None:
    """Leave trials and judgements behind, in work that outlives its request."""
    if _is_trial.get() or _judgement.get() is not None:
        _is_trial.set(False)
        _judgement.set(None)
