"""The file of a SQLite database, its disk and the library (T141 to T150)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.db.sqlite.checkpoints import WARN_BYTES
from maniflex.db.sqlite.connect import MEMORY, has_wal_mode
from maniflex.doctor.check import DatabaseCheck, DeclarationCheck, Problem, Severity
from maniflex.doctor.subject import OpenDatabase, Subject, read_living
from maniflex.sql.search import searchable_fields
from maniflex.sql.statement import Sql

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
        wanted = [directory, *([path] if os.path.exists(path) else [])]
        refused = [place for place in wanted if os.path.exists(place) and not _is_writable(place)]
        if not os.path.isdir(directory) or refused:
            yield Problem(
                where=", ".join(refused) or directory,
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


CHECKS = (
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
