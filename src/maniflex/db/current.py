"""What is found by context: the transaction that is open right now, and the request or run that reads.

Helper code joins the transaction unasked. The reader says how current its reads must be, where a replica
could answer them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass

from maniflex._caller import forget_request
from maniflex.db.port import Adapter, Executor, Isolation, Tx
from maniflex.errors import DatabaseError, TransactionError


@dataclass(slots=True)
class _Open:
    adapter: Adapter
    tx: Tx
    outer: _Open | None
    ended: bool = False  # a task started inside may still see it afterwards


_open: ContextVar[_Open | None] = ContextVar("maniflex_open_transaction", default=None)


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
