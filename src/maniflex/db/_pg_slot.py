"""One PostgreSQL connection and the statements prepared on it.

The only place that touches the driver's connection beyond opening it. It keeps the session as it
was opened: a statement that would change it marks the connection to be closed after use, and
transaction control in SQL is refused.
"""

from __future__ import annotations

import re
import socket
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

from maniflex.db.port import Row
from maniflex.errors import DatabaseError
from maniflex.sql.statement import Sql

if TYPE_CHECKING:
    from asyncpg.prepared_stmt import PreparedStatement

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Statement: TypeAlias = PreparedStatement[asyncpg.Record]

Reply: TypeAlias = tuple[list[Row], bytes, bool]  # rows, command tag, whether those were all

STATEMENTS_PER_CONNECTION = 512
_PORTAL = "stream"

_FLAGS = re.IGNORECASE | re.DOTALL
_START = r"(?>\s+|--[^\n]*|/\*.*?\*/)*+"  # blanks and comments
_WORTH_KEEPING = re.compile(_START + r"(?:select|insert|update|delete|with|merge|values)\b", _FLAGS)
_TRANSACTION_CONTROL = re.compile(
    _START + r"(?:begin|start|commit|end|abort|rollback(?!\s+to\b)|prepare\s+transaction)\b", _FLAGS
)
_CHANGES_SESSION = re.compile(
    _START + r"(?:set(?!\s+(?:local|transaction|constraints)\b)"
    r"|reset|listen|unlisten|prepare|deallocate|discard|load|declare)\b",
    _FLAGS,
)


class Slot:
    """One connection of a pool."""

    __slots__ = (
        "_bind_execute",
        "_named",
        "_timeout",
        "con",
        "idle_since",
        "retire_at",
        "retired",
        "statements",
    )

    def __init__(
        self, con: Connection, *, now: float, retire_at: float, named: bool, timeout: float | None
    ) -> None:
        self.con = con
        self.idle_since = now
        self.retire_at = retire_at
        self.retired = False  # True: closed instead of lent again
        self.statements: OrderedDict[str, Any] = OrderedDict()
        self._named = named
        self._timeout = timeout
        # The driver's public `PreparedStatement.fetch` wraps this call in three more coroutines,
        # which cost as much as a sixth of a whole primary-key read.
        self._bind_execute = _inner(con)._protocol.bind_execute
        notice_a_silent_server(con)

    async def run(self, sql: Sql, limit: int = 0) -> Reply:
        """Run one statement, prepared now unless this connection already knows it."""
        text, params = sql
        statement = self.statements.get(text)
        if statement is None:
            statement = await self._prepare(text)
        else:
            self.statements.move_to_end(text)
        reply: Reply = await self._bind_execute(statement._state, params, "", limit, True, self._timeout)
        return reply

    async def batches(self, sql: Sql, size: int) -> AsyncGenerator[list[Row], None]:
        """The rows of a read, `size` at a time, while the open transaction lasts."""
        text, params = sql
        self._mind_the_session(text)
        # Never one that was prepared before: its plan may be stale, and a stream is not begun twice.
        statement: Any = await self.con.prepare(text, name="", timeout=self._timeout)
        state, go_on = statement._state, _inner(self.con)._protocol.execute
        rows, _, complete = await self._bind_execute(state, params, _PORTAL, size, True, None)
        while rows:
            yield rows
            if complete:
                return
            rows, _, complete = await go_on(state, _PORTAL, size, True, None)

    async def _prepare(self, text: str) -> Any:
        keep = self._named and _WORTH_KEEPING.match(text) is not None
        if not keep:
            self._mind_the_session(text)
        try:
            statement = await self.con.prepare(text, name=None if keep else "", timeout=self._timeout)
        except (asyncpg.PostgresConnectionError, ConnectionError) as lost:
            raise asyncpg.InterfaceError("lost before the statement ran") from lost
        if keep:
            self.statements[text] = statement
            if len(self.statements) > STATEMENTS_PER_CONNECTION:
                self.statements.popitem(last=False)
        return statement

    def _mind_the_session(self, text: str) -> None:
        if _TRANSACTION_CONTROL.match(text):
            raise DatabaseError("begin and end transactions with transaction(), not with SQL")
        if _CHANGES_SESSION.match(text):
            self.retired = True

    def never_ran(self, error: BaseException) -> bool:
        """Whether `error` says that the connection was gone before the statement was sent."""
        return isinstance(error, asyncpg.InterfaceError) and self.con.is_closed()

    async def drain(self) -> None:
        """Wait until the server has given up what was interrupted, and end what it left open."""
        for _ in range(3):  # the cancel request may still hit our first statement after it
            try:
                # A simple query also ends the implicit transaction that a prepare without an
                # execute leaves open.
                await self.con.execute("ROLLBACK" if self.con.is_in_transaction() else "SELECT 1")
            except asyncpg.QueryCanceledError:
                continue
            if not self.con.is_in_transaction():
                return
        raise asyncpg.InterfaceError("the connection could not be drained")


def _inner(con: Connection) -> Any:
    return con


def notice_a_silent_server(con: Connection) -> None:
    """Let the kernel fail a connection whose server vanished without a word, in about half a minute."""
    sock = _inner(con)._transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
