"""The transaction that is open right now, found by context: helper code joins it unasked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass

from maniflex._caller import asking
from maniflex.db.port import Adapter, Executor, Isolation, Tx
from maniflex.errors import DatabaseError, TransactionError


@dataclass(slots=True)
class _Open:
    adapter: Adapter
    tx: Tx
    outer: _Open | None
    ended: bool = False  # a task started inside may still see it afterwards


_open: ContextVar[_Open | None] = ContextVar("maniflex_open_transaction", default=None)


def current_tx(adapter: Adapter) -> Tx | None:
    """The open transaction on this database, if there is one."""
    found = _open.get()
    while found is not None and (found.ended or found.adapter is not adapter):
        found = found.outer
    return None if found is None else found.tx


def detached() -> Context:
    """This context without its transaction and its request, for work that outlives both."""
    context = copy_context()
    context.run(_open.set, None)
    context.run(asking.set, None)
    return context


def executor(adapter: Adapter, tx: Tx | None = None) -> Executor:
    """Where a statement for `adapter` goes: the transaction handed over, the open one, or the pool."""
    if tx is not None:
        return tx
    found = _open.get()
    if found is None:
        return adapter
    return current_tx(adapter) or adapter


@asynccontextmanager
async def transaction(
    adapter: Adapter, *, isolation: Isolation | str | None = None, read_only: bool = False
) -> AsyncIterator[Tx]:
    """Open a transaction, or join the one already open on this database."""
    joined = current_tx(adapter)
    if joined is not None:
        yield joined
        return
    level = None if isolation is None else _level(isolation)
    async with adapter.transaction(isolation=level, read_only=read_only) as tx:
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
        known = ", ".join(Isolation)
        raise DatabaseError(f"there is no isolation level {isolation!r}; there are: {known}") from None


def require_tx(adapter: Adapter, what: str) -> Tx:
    """The open transaction, for work that means nothing without one."""
    found = current_tx(adapter)
    if found is None:
        raise TransactionError(
            "TX_REQUIRED", f"{what} needs an open transaction: `async with ctx.transaction():`"
        )
    return found
