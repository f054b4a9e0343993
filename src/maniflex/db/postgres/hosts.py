"""Connect to one of the servers that an address names.

They are tried one by one, each with a time of its own, because one that hangs would else use up the time of
all; the server that was good last comes first. Several hosts of an address that is written to mean: the one
that takes writes (`target_session_attrs=read-write`), unless the address says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import asyncpg

from maniflex.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from maniflex.db.postgres.connection import Connection


HOST_WITHIN = 2.5  # seconds for each of several hosts

log = logging.getLogger("maniflex.db")


class Hosts:
    """The servers of one address."""

    def __init__(self, address: Address, *, within: float, takes_writes: bool) -> None:
        self.address = address
        self._each = address.each()
        self._within = min(within, HOST_WITHIN) if self.are_several else within
        self._target = "read-write" if self.are_several and takes_writes else None
        if "target_session_attrs" in dict(address.options):
            self._target = None
        self._best = 0

    @property
    def are_several(self) -> bool:
        return len(self._each) > 1

    async def connect(self, *, is_starting: bool, **options: Any) -> Connection:
        """A connection to the first server that will do; `Unavailable` when none does."""
        failures: list[tuple[Address, Exception]] = []
        for _ in self._each:
            index = self._best
            address = self._each[index]
            try:
                return await self._connect(address, **options)
            except Exception as error:
                failures.append((address, error))
                if self._best == index:  # unless another connection has found a better one meanwhile
                    self._best = (index + 1) % len(self._each)
        for address, failure in failures:
            if is_starting and (config_error := refusal(failure, address)) is not None:
                raise config_error from failure
        raise combine_failures(failures)

    async def answers(self) -> bool:
        """Whether the server that was good last takes connections; one that does not is tried last."""
        index = self._best
        try:
            connection = await self._connect(self._each[index])
        except (TimeoutError, OSError):
            if self._best == index:
                self._best = (index + 1) % len(self._each)
            return False
        except Exception:  # it says no, and so it is there
            return True
        connection.terminate()
        return True

    async def _connect(self, address: Address, **options: Any) -> Connection:
        arguments = address.arguments()
        if self._target is not None:
            arguments["target_session_attrs"] = self._target
        connect: Any = partial(
            asyncpg.connect, **arguments, timeout=self._within, connection_class=ServerConnection
        )
        connection: Connection = await connect(**options)
        if options.get("server_settings") is not None:  # no pooler
            connection.connect_again = connect
        return connection


# Where a PostgreSQL server is and who we are there, read from a URL.
#
# Read here and not by the driver, because its complaints quote parts of the URL, and a password with an
# unescaped `@` would be one of them. Our messages name the mistake without quoting the URL.


_DEFAULT_PORT = 5432

# libpq has them and cloud consoles print them; the driver would send them to the server as settings.
_LIBPQ_ONLY = frozenset(
    {
        "channel_binding",
        "connect_timeout",
        "fallback_application_name",
        "gssencmode",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "require_auth",
        "sslsni",
        "tcp_user_timeout",
    }
)


@dataclass(frozen=True, slots=True)
class Address:
    """One server (or a list of them, tried in order) and the login to use."""

    hosts: tuple[tuple[str, int], ...]
    user: str | None
    password: str | None = field(repr=False)
    database: str | None
    options: tuple[tuple[str, str], ...] = field(repr=False)
    is_pooler: bool = False

    @property
    def label(self) -> str:
        """`postgresql:database@host:port`, fit for logs."""
        hosts = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        host = ",".join(hosts) or dict(self.options).get("host", "localhost")
        return f"postgresql:{self.database_name}@{host}"

    @property
    def database_name(self) -> str:
        """The database, which is called like the user when nothing names it."""
        options = dict(self.options)
        return self.database or options.get("dbname") or options.get("database") or self.user or ""

    def each(self) -> tuple[Address, ...]:
        """One address for each host."""
        return tuple(replace(self, hosts=(host,)) for host in self.hosts) or (self,)

    def arguments(self) -> dict[str, Any]:
        """The arguments for the driver's `connect`; absent ones are left to PG* variables and defaults."""
        arguments: dict[str, Any] = {
            "dsn": f"postgresql:///?{urlencode(self.options)}" if self.options else None,
            "user": self.user,
            "password": self.password,
            "database": self.database,
        }
        if self.hosts:
            arguments["host"] = [host for host, _ in self.hosts]
            arguments["port"] = [port for _, port in self.hosts]
        return arguments


def parse_address(url: str) -> Address:
    """Read `postgresql://user:password@host:port/database?option=value`."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError("the PostgreSQL URL cannot be read") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError("a PostgreSQL URL starts with postgresql://")
    flags = [value for name, value in options if name == "pgbouncer"]
    if any(value not in ("true", "false") for value in flags):
        raise ConfigError("pgbouncer in the PostgreSQL URL is true or false")
    login, _, where = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    return Address(
        hosts=tuple(_host(entry) for entry in where.split(",")) if where else (),
        user=unquote(user) or None,
        password=unquote(password) or None,
        database=unquote(parts.path.removeprefix("/")) or None,
        options=tuple((n, value) for n, value in options if n not in _LIBPQ_ONLY and n != "pgbouncer"),
        is_pooler="true" in flags,
    )


def _host(entry: str) -> tuple[str, int]:
    host, _, port = entry.rpartition(":") if entry.rpartition(":")[2].isdigit() else (entry, "", "")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigError(
            "the host or port in the PostgreSQL URL cannot be read; "
            "are the special characters of the password percent-encoded?"
        )
    number = int(port or _DEFAULT_PORT)
    if not 0 < number < 65536:
        raise ConfigError("the port in the PostgreSQL URL is out of range")
    return unquote(host.strip("[]")) or "localhost", number


# Why a PostgreSQL server refused us, in words that say what to do about it.
#
# Only what keeps a process from starting is told so; a server that is away comes back by itself. The
# password is in none of these texts, and what the server said travels as `__cause__`.


def refusal(error: Exception, address: Address) -> ConfigError | None:
    """What has to be changed before the server lets us in; None when it may do so later."""
    for kinds, describe in _REFUSALS.items():
        if isinstance(error, kinds) and (text := describe(error, address)):
            return ConfigError(f"{address.label}: {text}")
    return None


class NoConnectionLeft(Unavailable):
    """The server answers, and has no connection left for us."""


def combine_failures(failures: Sequence[tuple[Address, Exception]]) -> Unavailable:
    """The error of an address none of whose servers will do; only logs learn where they should be."""
    full = [error for _, error in failures if isinstance(error, asyncpg.TooManyConnectionsError)]
    kind = NoConnectionLeft if full else Unavailable
    away = kind("the database cannot be reached")
    away.place = "; ".join(_describe_failure(error, address) for address, error in failures)
    away.__cause__ = full[0] if full else failures[-1][1]
    return away


def _describe_failure(error: Exception, address: Address) -> str:
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number).lower() if number is not None and number > 0 else ""
    if isinstance(error, socket.gaierror):
        reason = "there is no such host"
    if isinstance(error, TimeoutError):
        reason = "no answer in time"
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        reason = "it is a replica, which takes no writes"
    if isinstance(error, asyncpg.TooManyConnectionsError):
        reason = "it has no connection left"
    return f"{address.label}: {reason}" if reason else address.label


def _no_database(error: Exception, address: Address) -> str:
    name = address.database_name
    flags = [*(["-U", address.user] if address.user else []), name]
    if address.hosts:
        host, port = address.hosts[0]
        flags = ["-h", host, "-p", str(port), *flags]
    command = " ".join(map(shlex.quote, ["createdb", *flags]))
    sql_name = name.replace('"', '""')
    return f'there is no database "{name}"; make it with `{command}` or, in SQL, CREATE DATABASE "{sql_name}"'


def _no_login(error: Exception, address: Address) -> str:
    user = f' of "{address.user}"' if address.user else ""
    return f"the server refused the login{user}; check the user, the password and the server's pg_hba.conf"


def _no_pooler(error: Exception, address: Address) -> str:
    if "startup parameter" not in str(error):
        return ""
    return (
        "this is a connection pooler, which takes no settings for a session; "
        "set pooler=True, or ?pgbouncer=true in the address"
    )


def _no_option(error: Exception, address: Address) -> str:
    reason = str(error).partition("\n")[0] if isinstance(error, asyncpg.PostgresError) else ""
    return f"the options in the address cannot be used{f': {reason}' if reason else ''}"


_REFUSALS: dict[tuple[type[Exception], ...], Callable[[Exception, Address], str]] = {
    (asyncpg.InvalidCatalogNameError,): _no_database,
    (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError): _no_login,
    (asyncpg.ProtocolViolationError,): _no_pooler,
    (
        asyncpg.ClientConfigurationError,
        asyncpg.UndefinedObjectError,  # a setting that the server does not know
        asyncpg.InvalidParameterValueError,
        asyncpg.CantChangeRuntimeParamError,
    ): _no_option,
}


# Cancel on the server what is cancelled here, but never a commit.
#
# A commit that waits for a synchronous standby cannot be undone any more. Cancelled there, it stops to
# wait: what was written is shown, and who sends a request again is told that it happened, although it is
# lost with the server. So a commit goes on, and its connection comes back when it has ended, or is
# closed. A write that commits by itself is cancelled only while it does not wait for a standby; the
# server is asked for that, by a connection of its own, in the moment of the cancellation: a standby may
# have come since the connection was opened. Where no such connection can be had, the write goes on to the
# end of its time. A pooler hides which process of the server is ours; behind one, such a write is just
# cancelled.


if TYPE_CHECKING:
    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection

_WRITES = re.compile(r"\b(?:insert|update|delete|merge)\b", re.IGNORECASE)
# By its text too: through a balancer the new connection may lead to another server.
_CANCEL = (
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = $1"
    " AND left(query, 200) = left($2, 200) AND wait_event IS DISTINCT FROM 'SyncRep'"
)
_WITHIN = 5.0


class ServerConnection(_Base):
    """A connection that knows when it commits."""

    __slots__ = ("connect_again", "is_committing", "text")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.connect_again: Callable[[], Awaitable[ServerConnection]] | None = None  # not behind a pooler
        self.is_committing = False
        self.text = ""  # of the statement that runs, or ran last

    def _cancel_current_command(self, sent: asyncio.Future[None], *more: Any) -> None:
        """The driver's way to cancel a statement; `sent` is done when the server was told."""
        if self.is_committing:
            sent.set_result(None)
        elif self.connect_again is None or self.is_in_transaction() or not _WRITES.search(self.text):
            super()._cancel_current_command(sent, *more)  # type: ignore[misc]  # the driver does not declare it
        else:
            inner: Any = self
            connecting = self.connect_again()
            cancelling = self._loop.create_task(self._cancel_unless_committing(sent, connecting))  # type: ignore[attr-defined]
            inner._cancellations.add(cancelling)
            cancelling.add_done_callback(inner._cancellations.discard)

    async def _cancel_unless_committing(
        self, sent: asyncio.Future[None], connecting: Awaitable[ServerConnection]
    ) -> None:
        pid, text = self.get_server_pid(), self.text
        try:
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                async with asyncio.timeout(_WITHIN):
                    other = await connecting
                    try:
                        await other.execute(_CANCEL, pid, text)
                    finally:
                        other.terminate()
        finally:
            if not sent.done():
                sent.set_result(None)
