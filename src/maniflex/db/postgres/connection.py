"""One PostgreSQL connection and the statements prepared on it.

The only place that touches the driver's connection beyond opening it. It keeps the session as it
was opened: a statement that would change it marks the connection to be closed after use, and
transaction control in SQL is refused. While the server owes an answer, `due` says until when; the
pool closes a connection that is overdue, because nothing else ends the wait for a silent server.
"""

from __future__ import annotations

import math
import os
import re
import socket
import struct
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast
from weakref import WeakSet

import asyncpg

from maniflex.db.budget import Budget
from maniflex.db.port import Row
from maniflex.db.statements import StatementObserver
from maniflex.errors import DatabaseError
from maniflex.sql.statement import Sql

if TYPE_CHECKING:
    from asyncpg.prepared_stmt import PreparedStatement

    from maniflex.db.postgres.hosts import ServerConnection

    Connection: TypeAlias = ServerConnection
    Statement: TypeAlias = PreparedStatement[asyncpg.Record]

Reply: TypeAlias = tuple[list[Row], bytes, bool]  # rows, command tag, whether those were all

STATEMENTS_PER_CONNECTION = 512
# The server ends a statement that is too slow; the rest is for the answer to arrive.
ANSWER_GRACE = 5.0
CONTROL_WITHIN = 30.0  # BEGIN and ROLLBACK, where the server has no limit of its own
STREAM_FACTOR = 10  # a batch of a stream may take longer than a statement: the first one may have to sort
_PORTAL = "stream"
_GUARD = "WITH guard AS ({}) SELECT FROM guard HAVING 1 / count(*) = 0"  # no rows, or an error
# The driver changes its state before it writes a statement. It cannot once it has read the last words of a
# server that ends the connection; of this internal error alone it is sure that nothing was sent.
_UNSENT = "cannot switch to state "

_NAMES_THE_TIMEOUT = re.compile("statement_timeout", re.IGNORECASE)


class PoolClock:
    """The pool's time, read once a second: exact enough for deadlines, and free for each statement."""

    __slots__ = ("now",)

    def __init__(self, now: float) -> None:
        self.now = now


class Deadlines:
    """How long the server may owe an answer: to a statement, a batch of a stream, BEGIN or ROLLBACK."""

    __slots__ = ("control", "statement", "stream")

    def __init__(self, statement_timeout: float) -> None:
        self.statement = statement_timeout + ANSWER_GRACE if statement_timeout else inf
        self.stream = statement_timeout * STREAM_FACTOR + ANSWER_GRACE if statement_timeout else inf
        self.control = min(self.statement, CONTROL_WITHIN + ANSWER_GRACE)


class PooledConnection:
    """One connection of a pool."""

    __slots__ = (
        "__weakref__",
        "_begins",
        "_bind_execute",
        "_commit",
        "_deadlines",
        "_encoders",
        "_meter",
        "_named_statements",
        "_observe",
        "_tell_after",
        "_ticker",
        "_timeout",
        "_transport",
        "_within",
        "con",
        "due",
        "idle_since",
        "overdue",
        "replayed",
        "retire_at",
        "retired",
        "statements",
    )

    def __init__(
        self,
        con: Connection,
        *,
        ticker: PoolClock,
        deadlines: Deadlines,
        retire_at: float,
        named_statements: bool,
        timeout: float | None,
        observe: StatementObserver | None = None,
    ) -> None:
        self.con = con
        self._observe = None if observe is None else observe.__call__  # bound once: each statement calls it
        self._tell_after = math.inf if observe is None else observe.after
        self.due = 0.0  # when an answer must have come; 0 while none is awaited
        self.overdue = False  # True: closed because it did not come
        self.replayed = 0  # of a replica: how far it had come in the primary's log when it was asked
        self._ticker = ticker
        self._deadlines = deadlines
        self._within = deadlines.statement
        self.idle_since = ticker.now
        self.retire_at = retire_at
        self.retired = False  # True: closed instead of lent again
        self.statements: OrderedDict[str, Any] = OrderedDict()
        self._named_statements = named_statements
        self._timeout = timeout
        # The driver's public `PreparedStatement.fetch` wraps this call in three more coroutines,
        # which cost as much as a sixth of a whole primary-key read.
        self._bind_execute = _inner(con)._protocol.bind_execute
        self._transport = _inner(con)._transport
        self._meter = Meter(self._transport, _inner(con)._protocol)
        self._begins: dict[str, bytes] = {}  # texts that are prepared here
        self._commit: Any = None  # the statement
        self._encoders: dict[str, Sequence[Encode] | None] = {}  # by guard; None for one that goes by itself
        notice_a_silent_server(con)
        _opened.add(self)

    async def run(self, sql: Sql, limit: int = 0, budget: Budget | None = None, first: bytes = b"") -> Reply:
        """Run one statement, prepared now unless this connection already knows it.

        `first` is sent along with a statement that is prepared. What comes in is spent from the budget; the
        connection is closed when it is too much.
        """
        text, params = sql
        self.con.text = text
        self.due, began = self._ticker.now + self._within, perf_counter()
        if budget is not None:
            self._meter.start(budget)
        try:
            statement = self.statements.get(text)
            if statement is None:
                statement = await self._prepare(text)
                self.due = self._ticker.now + self._within
            else:
                self.statements.move_to_end(text)
                if first:
                    self._transport.write(first)
            reply: Reply = await self._bind_execute(statement._state, params, "", limit, True, self._timeout)
        except BaseException as error:
            if (ended := perf_counter()) - began >= self._tell_after and self._observe is not None:
                self._observe(text, began, ended, error)
            if budget is not None and self._meter.left < 0 and isinstance(error, Exception):
                budget.refuse()
            raise
        else:
            if (ended := perf_counter()) - began >= self._tell_after and self._observe is not None:
                self._observe(text, began, ended, None)
            return reply
        finally:
            self.due = 0.0
            if budget is not None:
                self._meter.stop(budget)

    def begin_messages(self, text: str) -> bytes:
        """The beginning of a transaction, to be sent along with its first statement."""
        messages = self._begins.get(text)
        if messages is not None:
            return messages
        name = f"maniflex_begin_{len(self._begins)}"
        messages = self._begins[text] = execute_messages(name)
        return parse_message(name, text) + messages

    async def commit_guarded(self, guard: Sql) -> str:
        """Run the guard and commit in one turn; `DivisionByZeroError` when the guard returns no row."""
        text = _GUARD.format(guard.text)
        self.due = self._ticker.now + self._within
        try:
            statement = self.statements.get(text) or await self._prepare(text)
            if text not in self._encoders:
                names = [kind.name for kind in statement.get_parameters()]
                is_plain = self._named_statements and all(name in ENCODERS for name in names)
                self._commit = self._commit or (is_plain and await self.con.prepare("COMMIT"))
                self._encoders[text] = [ENCODERS[name] for name in names] if is_plain else None
            encoders = self._encoders[text]
            if encoders is None:
                await self.run(Sql(text, guard.params))
                return await self.commit()
            self.con.is_committing = True
            self._transport.write(execute_messages(statement.get_name(), encoders, guard.params))
            reply: Reply = await self._bind_execute(self._commit._state, (), "", 0, True, self._timeout)
        finally:
            self.con.is_committing = False
            self.due = 0.0
            self._within = self._deadlines.statement
        return reply[1].decode()

    async def begin(self, text: str) -> None:
        await self._control(text, self._deadlines.control, self._timeout)

    async def commit(self) -> str:
        """The command tag: `ROLLBACK` when the server could not commit."""
        self.con.is_committing = True
        try:
            return await self._control("COMMIT", self._within, self._timeout)
        finally:
            self.con.is_committing = False

    async def roll_back(self, timeout: float) -> None:
        await self._control("ROLLBACK", self._deadlines.control, timeout)

    async def _control(self, text: str, within: float, timeout: float | None) -> str:
        self.due = self._ticker.now + within
        try:
            return await self.con.execute(text, timeout=timeout)
        finally:
            self.due = 0.0
            self._within = self._deadlines.statement  # what a transaction allowed itself ends with it

    async def batches(self, sql: Sql, size: int) -> AsyncGenerator[list[Row], None]:
        """The rows of a read, `size` at a time, while the open transaction lasts."""
        text, params = sql
        self._mind_the_session(first_words(text))
        within = self._deadlines.stream
        # Never one that was prepared before: its plan may be stale, and a stream is not begun twice.
        self.due = self._ticker.now + within
        try:
            statement: Any = await self.con.prepare(text, name="", timeout=self._timeout)
            state, go_on = statement._state, _inner(self.con)._protocol.execute
            rows, tag, complete = await self._bind_execute(state, params, _PORTAL, size, True, None)
            refuse_end(tag)
            while rows:
                self.due = 0.0  # however long the reader takes
                yield rows
                if complete:
                    return
                self.due = self._ticker.now + within
                rows, _, complete = await go_on(state, _PORTAL, size, True, None)
        finally:
            self.due = 0.0

    async def _prepare(self, text: str) -> Any:
        words = first_words(text)
        keep = self._named_statements and is_worth_keeping(words)
        if _NAMES_THE_TIMEOUT.search(text):
            # It may give what follows more time, and how much is not for us to read; so it is not kept,
            # to be seen here each time it runs.
            self._within, keep = inf, False
            self.retired |= not self.con.is_in_transaction()
        if not keep:
            self._mind_the_session(words)
        try:
            # The driver takes nothing but a plain str.
            plain = text if type(text) is str else str(text)
            statement = await self.con.prepare(plain, name=None if keep else "", timeout=self._timeout)
        except (asyncpg.PostgresConnectionError, ConnectionError) as lost:
            raise asyncpg.InterfaceError("lost before the statement ran") from lost
        if keep:
            self.statements[text] = statement
            if len(self.statements) > STATEMENTS_PER_CONNECTION:
                self.statements.popitem(last=False)
        return statement

    def _mind_the_session(self, words: Words) -> None:
        refuse_transaction_control(words)
        self.retired |= changes_session(words)

    def never_ran(self, error: BaseException) -> bool:
        """Whether `error` says that the connection was gone before the statement was sent."""
        is_gone = isinstance(error, asyncpg.InterfaceError) and self.con.is_closed()
        return is_gone or self.heard_farewell(error)

    def heard_farewell(self, error: BaseException) -> bool:
        """Whether the driver sent nothing because it had read that the server ends the connection."""
        is_internal = isinstance(error, asyncpg.InternalClientError)
        return is_internal and str(error).startswith(_UNSENT) and self.con.is_closed()

    async def drain(self) -> None:
        """Wait until the server has given up what was interrupted, and end what it left open."""
        self._within = self._deadlines.statement
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


_opened: WeakSet[PooledConnection] = WeakSet()


class _OfParent:
    """Stands where the session of its parent was, in a forked child.

    What the child sent would be a statement in the parent's transaction, its COMMIT among them.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise DatabaseError("this connection belongs to the process that forked this one; open another here")

    def __call__(self, *arguments: object) -> NoReturn:
        self.__getattr__("")


def _leave_sessions_to_parent() -> None:
    for slot in list(_opened):
        slot.con = slot._transport = slot._bind_execute = cast(Any, _OfParent())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_sessions_to_parent)


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


# Counts what a PostgreSQL connection receives, and hangs up when a statement sends too much.
#
# The protocol has no way to stop rows that are on their way outside a transaction, and the driver keeps
# them all until the last one is there. So the connection is closed; the pool opens another.


class Meter:
    """Stands between the transport and the driver's protocol while a statement has a budget.

    `left` is the number of bytes that may still come. A Python method for every packet costs as much as
    a tenth of a read by id, so the statements that cannot send much go without.
    """

    __slots__ = (
        "_feed",
        "_protocol",
        "_transport",
        "connection_lost",
        "eof_received",
        "left",
        "pause_writing",
        "resume_writing",
    )

    def __init__(self, transport: Any, protocol: Any) -> None:
        self._transport = transport
        self._protocol = protocol
        self._feed = protocol.data_received
        self.left = 0
        # Not by __getattr__: a class that has one is slow at everything else, too.
        self.connection_lost = protocol.connection_lost
        self.eof_received = protocol.eof_received
        self.pause_writing = protocol.pause_writing
        self.resume_writing = protocol.resume_writing

    def start(self, budget: Budget) -> None:
        """Count from here on."""
        self.left = budget.rows - budget.used
        self._transport.set_protocol(self)

    def stop(self, budget: Budget) -> None:
        """Stop counting; what came in is spent."""
        self._transport.set_protocol(self._protocol)
        budget.used = budget.rows - self.left

    def data_received(self, data: bytes) -> None:
        self.left -= len(data)
        if self.left < 0:
            self._transport.abort()
        else:
            self._feed(data)


# Statements as messages of the wire protocol, to be sent in front of the driver's next statement.
#
# The driver sends one statement and waits for its answer. What is written right before it, without a Sync
# of its own, reaches the server in the same packet and is answered in the same turn: its completion is
# overwritten by that of the driver's statement, and an error in it makes the server skip the rest. So
# such a statement must return no rows, and it must raise where its outcome matters.


Encode = Callable[[Any], bytes]
_EXECUTE = b"E" + struct.pack("!i", 9) + b"\0" + struct.pack("!i", 0)
_NULL = struct.pack("!i", -1)
# The binary forms of the types that a guard may have.
ENCODERS: dict[str, Encode] = {
    "text": str.encode,
    "varchar": str.encode,
    "bytea": bytes,
    "int8": struct.Struct("!q").pack,
}


def parse_message(name: str, text: str) -> bytes:
    """Prepare a statement without parameters under a name."""
    body = name.encode() + b"\0" + text.encode() + b"\0" + struct.pack("!h", 0)
    return b"P" + struct.pack("!i", len(body) + 4) + body


def execute_messages(name: str, encoders: Sequence[Encode] = (), params: Sequence[Any] = ()) -> bytes:
    """Bind a prepared statement to these values and run it."""
    parts = [b"\0", name.encode(), b"\0", struct.pack("!hhh", 1, 1, len(params))]  # all of them binary
    for encode, value in zip(encoders, params, strict=True):
        if value is None:
            parts.append(_NULL)
        else:
            data = encode(value)
            parts += (struct.pack("!i", len(data)), data)
    parts.append(struct.pack("!h", 0))
    body = b"".join(parts)
    return b"B" + struct.pack("!i", len(body) + 4) + body + _EXECUTE


# What a statement does to its session and transaction, by its first words.
#
# Before them may be blanks, empty statements and comments, which PostgreSQL nests. What still gets past
# is told by the tag of the server's answer.


_BLANKS = re.compile(r"(?:[\s;]|--[^\r\n]*)*+")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_WORD = re.compile(r"\w*")

_KEPT = frozenset(("select", "insert", "update", "delete", "with", "merge", "values"))
_CONTROLS = frozenset(("begin", "start", "commit", "end", "abort"))
_CHANGES = frozenset(("reset", "listen", "unlisten", "prepare", "deallocate", "discard", "load", "declare"))
_LOCAL = frozenset(("local", "transaction", "constraints"))
# PostgreSQL lets a transaction that only reads do these.
_MAINTAINS = frozenset(("analyze", "analyse", "reindex", "cluster", "copy"))
_END_TAGS = (b"COMMIT", b"ROLLBACK", b"PREPARE TRANSACTION")

Words = tuple[str, str]


def first_words(text: str) -> Words:
    r"""The first two words in lower case; empty where there is something else.

    >>> first_words("/* a /* b */ c */ ; Rollback -- d\n TO here")
    ('rollback', 'to')
    """
    start = _skip(text, 0)
    end = _word_end(text, start)
    second = _skip(text, end)
    return text[start:end].lower(), text[second : _word_end(text, second)].lower()


def is_worth_keeping(words: Words) -> bool:
    """Whether a statement is likely to come again, and does nothing to its session."""
    return words[0] in _KEPT


def changes_session(words: Words) -> bool:
    first, second = words
    return first in _CHANGES or (first == "set" and second not in _LOCAL)


def maintains(words: Words) -> bool:
    """Whether a statement writes to the disk although it changes no row."""
    return words[0] in _MAINTAINS


def refuse_transaction_control(words: Words) -> None:
    first, second = words
    is_rollback = first == "rollback" and second != "to"
    if first in _CONTROLS or is_rollback or words == ("prepare", "transaction"):
        raise _ends_transaction()


def refuse_end(tag: bytes | None) -> None:
    """Refuse what ended a transaction, as the answer says; there is no tag while there are more rows."""
    if tag and tag.startswith(_END_TAGS):
        raise _ends_transaction()


def _ends_transaction() -> DatabaseError:
    return DatabaseError("begin and end transactions with transaction(), not with SQL")


def _skip(text: str, at: int) -> int:
    """Where the blanks and comments from `at` on have their end."""
    at = _end(_BLANKS, text, at)
    while text.startswith("/*", at):
        at = _end(_BLANKS, text, _comment_end(text, at))
    return at


def _comment_end(text: str, at: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return edge.end()
    return len(text)


def _word_end(text: str, at: int) -> int:
    return _end(_WORD, text, at)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()
