"""The databases: settings and state of PostgreSQL (T131 to T139) and SQLite (T141 to T149)."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.db.sqlite.checkpoints import WARN_BYTES
from maniflex.db.sqlite.connect import MEMORY, has_wal_mode
from maniflex.doctor.check import (
    DatabaseCheck,
    DeclarationCheck,
    OpenDatabase,
    Problem,
    Severity,
    Subject,
    read_living,
)
from maniflex.sql.search import searchable_fields
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


POSTGRES_DECLARATION_CHECKS = (
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


# The file of a SQLite database, its disk and the library (T141 to T150).


MOUNTS = Path("/proc/mounts")
OLDEST_LIBRARY = (3, 38, 0)
FTS5 = "ENABLE_FTS5"
LEAST_FREE = 1024**3  # bytes
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "ncpfs", "vboxsf"}
    | {"virtiofs", "prl_fs", "drvfs", "fuse"}
)
_LAYERED = frozenset({"overlay", "aufs"})
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})


def network_disks(subject: Subject) -> Iterator[Problem]:
    for path in _files(subject):
        kind, mount = _mount_of(path)
        if kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE):
            yield Problem(
                where=f"{path} on {mount} ({kind})",
                why="locks and shared memory do not work on a network disk, so two processes can destroy the"
                " database",
                fix="Server('sqlite:////var/lib/app/app.db') on a local disk, or PostgreSQL for several"
                " machines",
                about=(path,),
            )
        elif kind in _LAYERED or kind in _LOCAL_FUSE:
            yield Problem(
                where=f"{path} on {mount} ({kind})",
                why="it is in the layer of a container, and goes away with the container",
                fix="a volume for the directory: docker run -v data:/data, and sqlite:////data/app.db",
                about=(path,),
                severity=Severity.WARNING,
            )


def _mount_of(path: str) -> tuple[str, str]:
    """The kind of file system that a file is on, and where it is mounted; empty where nobody says."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return "", ""
    place, best = os.path.realpath(path), ("", "")
    for line in lines:
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        # A later mount at the same place hides the one before.
        if len(point) >= len(best[1]) and (place == point or place.startswith(point.rstrip("/") + "/")):
            best = parts[2], point
    return best


def _adapters(subject: Subject) -> Iterator[SqliteAdapter]:
    """The databases that are files."""
    for adapter in subject.adapters:
        if isinstance(adapter, SqliteAdapter) and adapter.path != MEMORY:
            yield adapter


def _files(subject: Subject) -> Iterator[str]:
    return (adapter.path for adapter in _adapters(subject))


def weak_commits(subject: Subject) -> Iterator[Problem]:
    for adapter in _adapters(subject):
        if not adapter.is_durable:
            yield Problem(
                where=adapter.path,
                why="commits do not wait for the disk (synchronous is below FULL), so writes that were"
                " answered are lost when the power fails",
                fix="SqliteAdapter(path) without durable=False",
                about=(adapter.path,),
            )


def old_library(subject: Subject) -> Iterator[Problem]:
    is_used = any(isinstance(adapter, SqliteAdapter) for adapter in subject.adapters)
    if is_used and sqlite3.sqlite_version_info < OLDEST_LIBRARY:
        oldest = ".".join(map(str, OLDEST_LIBRARY))
        yield Problem(
            where=f"SQLite {sqlite3.sqlite_version}",
            why=f"statements of durable work need {oldest}, and older ones have errors that lose data",
            fix="a newer Python, which brings its own SQLite, or a newer libsqlite3",
            about=("SQLite",),
        )


def missing_search(subject: Subject) -> Iterator[Problem]:
    searched = [
        store.meta.name
        for store in subject.stores.values()
        if isinstance(store.adapter, SqliteAdapter) and searchable_fields(store.meta)
    ]
    if searched and not _has_fts5():
        yield Problem(
            where=f"SQLite {sqlite3.sqlite_version}",
            why=f"it was built without FTS5, which the search of {', '.join(searched)} needs",
            fix="a Python whose SQLite has FTS5, as those of python.org and of the distributions do",
            about=("SQLite", *searched),
        )


def _has_fts5() -> bool:
    with closing(sqlite3.connect(MEMORY)) as connection:
        [row] = connection.execute("SELECT sqlite_compileoption_used(?)", (FTS5,)).fetchall()
    return bool(row[0])


def readonly_directories(subject: Subject) -> Iterator[Problem]:
    for path in _files(subject):
        directory = os.path.dirname(os.path.abspath(path))
        places = [directory, *([path] if os.path.exists(path) else [])]
        refused_places = [place for place in places if os.path.exists(place) and not _is_writable(place)]
        if not os.path.isdir(directory) or refused_places:
            yield Problem(
                where=", ".join(refused_places) or directory,
                why="SQLite makes its log beside the database, and this user cannot write there, so every"
                " write fails",
                fix=f"mkdir -p {directory} && chown {os.getuid()} {directory}",
                about=(path,),
            )


def _is_writable(place: str) -> bool:
    return os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def full_disks(subject: Subject) -> Iterator[Problem]:
    for path in _files(subject):
        directory = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(directory) and (free := shutil.disk_usage(directory).free) < LEAST_FREE:
            yield Problem(
                where=path,
                why=f"the disk has {free // 1024**2:,} MB left, and a full one refuses every write",
                fix="df -h, and make room or move the database",
                about=(path,),
            )


def other_journals(subject: Subject) -> Iterator[Problem]:
    for path in _files(subject):
        if os.path.exists(path) and os.path.getsize(path) and not has_wal_mode(path):
            yield Problem(
                where=path,
                why="the file has no write-ahead log, so readers and the writer wait for each other",
                fix=f"sqlite3 {path} 'PRAGMA journal_mode=WAL', or start the server once",
                about=(path,),
            )


def long_logs(subject: Subject) -> Iterator[Problem]:
    for path in _files(subject):
        log_path = f"{path}-wal"
        if os.path.exists(log_path) and (size := os.path.getsize(log_path)) > WARN_BYTES:
            yield Problem(
                where=log_path,
                why=f"the write-ahead log has {size // 1024**2:,} MB: somebody reads the database as it was"
                " long ago, and every read looks through the log",
                fix="end transactions and programs that stay open on the file; the next writes then begin the"
                " log anew",
                about=(path,),
            )


async def two_hosts(database: OpenDatabase) -> AsyncIterator[Problem]:
    """Locks of a file hold on one machine; two that write to it through a shared disk break it."""
    adapter = database.adapter
    hosts = (await read_living(database)).hosts if database.is_default else []
    if isinstance(adapter, SqliteAdapter) and adapter.path != MEMORY and len(hosts) > 1:
        yield Problem(
            where=adapter.path,
            why=f"living processes on {' and '.join(hosts)} have it open, and SQLite keeps writers apart on"
            " one machine alone: the file will be damaged",
            fix="stop all but one, or maniflex copy app:server --to postgresql://… and run them on that",
            about=(adapter.path,),
        )


async def broken_files(database: OpenDatabase) -> AsyncIterator[Problem]:
    adapter = database.adapter
    if not isinstance(adapter, SqliteAdapter) or adapter.path == MEMORY:
        return
    rows = await database.run.fetch(Sql("PRAGMA quick_check(3)"))
    problems = [str(row[0]).splitlines()[0] for row in rows if row[0] != "ok"]
    if problems:
        yield Problem(
            where=adapter.path,
            why=f"the file is damaged: {'; '.join(problems)}",
            fix=f"stop the server, sqlite3 {adapter.path} .recover | sqlite3 mended.db, and compare with the"
            " last backup",
            about=(adapter.path,),
        )


SQLITE_DECLARATION_CHECKS = (
    DeclarationCheck(
        "T141",
        Severity.ERROR,
        "SQLite on a network disk (a warning in the layer of a container)",
        network_disks,
    ),
    DeclarationCheck("T143", Severity.WARNING, "a SQLite file without write-ahead log", other_journals),
    DeclarationCheck("T144", Severity.WARNING, "SQLite with `synchronous` below FULL", weak_commits),
    DeclarationCheck("T145", Severity.ERROR, "a SQLite library that is too old", old_library),
    DeclarationCheck("T146", Severity.ERROR, "searchable fields with a SQLite without FTS5", missing_search),
    DeclarationCheck(
        "T147", Severity.ERROR, "a directory of the SQLite file that cannot be written", readonly_directories
    ),
    DeclarationCheck(
        "T148", Severity.WARNING, "less than 1 GB left on the disk of the SQLite file", full_disks
    ),
    DeclarationCheck("T150", Severity.WARNING, "a write-ahead log that is never begun anew", long_logs),
)
SQLITE_CHECKS = (
    DatabaseCheck("T142", Severity.ERROR, "living processes of two hosts on one SQLite file", two_hosts),
    DatabaseCheck("T149", Severity.ERROR, "a damaged SQLite file (`quick_check`)", broken_files),
)
