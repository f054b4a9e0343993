"""The server and the connections to it, on PostgreSQL (T131 to T138)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from maniflex.doctor.check import DatabaseCheck, DeclarationCheck, Problem, Severity
from maniflex.doctor.subject import OpenDatabase, Subject, read_living
from maniflex.sql.statement import Sql, by_dialect

if TYPE_CHECKING:
    from maniflex.db.postgres.adapter import PostgresAdapter

OLDEST_SERVER = 130_000  # as server_version_num
CLOCK_DIFFERENCE = timedelta(seconds=1)
OLD_TRANSACTION = timedelta(minutes=5)
_SHOWN = 5
_WORK_CONNECTIONS = 4  # of the two small pools that claim runs and renew leases
_TIMEOUTS = ("statement_timeout", "lock_timeout", "pool_timeout", "idle_in_transaction_timeout")


async def large_pools(database: OpenDatabase) -> AsyncIterator[Problem]:
    """More connections, in all living processes together, than half of what the server takes."""
    from maniflex.db.postgres.replicated import is_pooled, most_connections

    adapter = _adapter(database)
    if adapter is None or is_pooled(adapter):
        return
    [row] = await database.run.fetch(Sql("SELECT current_setting('max_connections')::int"))
    processes = max(1, len((await read_living(database)).alive))
    has_work = len(database.subject.work.handlers) > 0 and database.is_default
    each = most_connections(adapter) + (_WORK_CONNECTIONS if has_work else 0)
    size = each * processes
    if size > row[0] / 2:
        pools = (
            f"{processes} processes have up to {each} connections each"
            if processes > 1
            else (f"a process has up to {each} connections")
        )
        pool_size = max(1, database.subject.config.pool_size - each + math.floor(row[0] / 2 / processes))
        yield Problem(
            where=database.label,
            why=f"{pools}, and the server takes {row[0]} in all: that is more than half, so the next process"
            " or a person with psql may be refused",
            fix=f"pool_size={pool_size}, or max_connections = {size * 2} in postgresql.conf, or a pooler and"
            " pooler=True",
            about=("pool_size", database.label),
        )


def _adapter(database: OpenDatabase) -> PostgresAdapter | None:
    """The adapter, if it is ours; applications may bring another one for PostgreSQL."""
    from maniflex.db.postgres.adapter import PostgresAdapter

    return database.adapter if isinstance(database.adapter, PostgresAdapter) else None


def small_pools(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    has_pool = by_dialect(subject.runtime.adapter.dialect, sqlite=False, postgres=True)
    if has_pool and len(subject.work.handlers) and config.pool_size < config.work_concurrency:
        yield Problem(
            where=f"pool_size={config.pool_size}",
            why=f"{config.work_concurrency} runs at once (work_concurrency) share fewer connections, so some"
            " wait for the others instead of working",
            fix=f"pool_size={config.work_concurrency}, or work_concurrency={config.pool_size}",
            about=("pool_size", "work_concurrency"),
        )


def endless_waits(subject: Subject) -> Iterator[Problem]:
    for name in _TIMEOUTS:
        if not getattr(subject.config, name):
            yield Problem(
                where=f"{name}=0",
                why="a statement, lock or connection that hangs is waited for without end, and so is all that"
                " waits behind it",
                fix=f"Server({name}=30)",
                about=(name,),
            )


def pooler_problem(where: str, why: str) -> Problem:
    """A transaction pooler that the application does not know of."""
    fix = "Server(pooler=True), or the address of the server itself"
    return Problem(where=where, why=why, fix=fix, about=("pooler", where))


async def hidden_pooler(database: OpenDatabase) -> AsyncIterator[Problem]:
    from maniflex.db.postgres.replicated import changes_backends, is_pooled

    adapter = _adapter(database)
    if adapter is not None and not is_pooled(adapter) and await changes_backends(adapter):
        yield pooler_problem(
            database.label,
            "a transaction pooler stands before the server: one session was served by two backends, so"
            " prepared statements, settings and LISTEN are lost now and then",
        )


_ROLE = "SELECT rolname::text, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"


async def powerful_role(database: OpenDatabase) -> AsyncIterator[Problem]:
    for name, is_super, bypasses in await database.run.fetch(Sql(_ROLE)):
        if is_super or bypasses:
            power = "a superuser" if is_super else "above row level security (BYPASSRLS)"
            yield Problem(
                where=f"{database.label}, role {name}",
                why=f"the role is {power}, so a mistake or a stolen address reaches everything on the server",
                fix="CREATE ROLE app LOGIN PASSWORD '...', ALTER DATABASE ... OWNER TO app, and its name in"
                " the address",
                about=(name, database.label),
            )


_SETTINGS = """
SELECT current_setting('server_version_num')::int, current_setting('server_version'),
       current_setting('server_encoding'),
       (SELECT reset_val FROM pg_settings WHERE name = 'TimeZone') -- what a session begins with
"""


async def server_settings(database: OpenDatabase) -> AsyncIterator[Problem]:
    [(number, version, encoding, zone)] = await database.run.fetch(Sql(_SETTINGS))
    where = database.label
    if number < OLDEST_SERVER:
        yield Problem(
            where=where,
            why=f"PostgreSQL {version} gets no more corrections, also of errors that lose data",
            fix=f"an upgrade to PostgreSQL {OLDEST_SERVER // 10_000} or later",
            about=(where,),
        )
    if encoding != "UTF8":
        yield Problem(
            where=where,
            why=f"the database stores texts as {encoding}, so letters of other languages are refused",
            fix="CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0, and a copy of the data",
            about=(where,),
            severity=Severity.ERROR,
        )
    if zone.upper() not in ("UTC", "ETC/UTC", "GMT"):
        yield Problem(
            where=where,
            why=f"sessions have the time zone {zone}, so days in queries of your own begin at another hour",
            fix="ALTER ROLE ... SET timezone = 'UTC'",
            about=(where,),
        )


async def clocks_apart(database: OpenDatabase) -> AsyncIterator[Problem]:
    before = database.subject.clock.now()
    [row] = await database.run.fetch(Sql("SELECT clock_timestamp()"))
    after, server_time = database.subject.clock.now(), row[0]
    assert isinstance(server_time, datetime)
    difference = max(server_time - after, before - server_time)
    if difference > CLOCK_DIFFERENCE:
        yield Problem(
            where=database.label,
            why=f"the clocks of this machine and of the database are {difference.total_seconds():.1f} s"
            " apart, so schedules, leases and tokens begin and end at other times here and there",
            fix="chronyc tracking, or timedatectl set-ntp true, on both machines",
            about=(database.label,),
        )


_TRANSACTIONS = """
SELECT pid, coalesce(usename::text, ''), coalesce(application_name, ''), coalesce(state, ''),
       extract(epoch FROM now() - xact_start)::float8
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
   AND xact_start < now() - make_interval(secs => $1)
 ORDER BY xact_start LIMIT 5
"""


async def old_transactions(database: OpenDatabase) -> AsyncIterator[Problem]:
    rows = await database.run.fetch(Sql(_TRANSACTIONS, (OLD_TRANSACTION.total_seconds(),)))
    for pid, user, application, state, age in islice(rows, _SHOWN):
        yield Problem(
            where=f"{database.label}, session {pid} of {user} ({application or 'without a name'}, {state})",
            why=f"its transaction has been open for {age / 60:.0f} minutes: rows that were deleted or changed"
            " since then cannot be cleaned up, and its locks are held",
            fix=f"SELECT pg_terminate_backend({pid}), and a commit or rollback where it was begun",
            about=(database.label,),
        )


CHECKS = (
    DeclarationCheck(
        "T132",
        Severity.WARNING,
        "a pool that is smaller than the concurrency of runs (PostgreSQL)",
        small_pools,
    ),
    DeclarationCheck("T133", Severity.WARNING, "timeouts of 0", endless_waits),
)
POSTGRES_CHECKS = (
    DatabaseCheck(
        "T131",
        Severity.WARNING,
        "pools of all living processes above half of `max_connections` (PostgreSQL)",
        large_pools,
    ),
    DatabaseCheck(
        "T134", Severity.ERROR, "a transaction pooler without `pooler=True` (PostgreSQL)", hidden_pooler
    ),
    DatabaseCheck(
        "T135", Severity.WARNING, "a role that is a superuser or has BYPASSRLS (PostgreSQL)", powerful_role
    ),
    DatabaseCheck(
        "T136",
        Severity.WARNING,
        "an old server, another encoding than UTF8, another time zone than UTC (PostgreSQL)",
        server_settings,
    ),
    DatabaseCheck(
        "T137",
        Severity.WARNING,
        "a clock more than a second from that of the database (PostgreSQL)",
        clocks_apart,
    ),
    DatabaseCheck(
        "T138",
        Severity.WARNING,
        "a transaction open for more than five minutes (PostgreSQL)",
        old_transactions,
    ),
)
