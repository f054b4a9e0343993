"""Settings, extras and the machine (T171 to T176)."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.db.sqlite.connect import MEMORY
from maniflex.doctor.check import DeclarationCheck, Problem, Severity, Subject
from maniflex.storage.local import LocalStorage
from maniflex.storage.memory import MemoryStorage

PYTHONS = ((3, 11), (3, 14))  # the first and the last that are tested
OLD_BACKUP = timedelta(days=7)
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_BACKUP_WORDS = ("backup", "bak", "snapshot", "litestream", "copy", "dump")


def missing_extras(subject: Subject) -> Iterator[Problem]:
    """Features that are declared and do not start, or work only in part."""
    for problem in subject.missing_extras:
        name, needs, rest = problem.partition(" needs ")
        yield extra_problem(*((name, f"it needs {rest}") if needs else ("the application", problem)))
    exported_models = [meta.name for meta in subject.own_models if meta.options.export]
    if exported_models and find_spec("xlsxwriter") is None:
        yield extra_problem(
            ", ".join(exported_models),
            'exports are csv and jsonl only, and ?format=xlsx is refused: pip install "maniflex[export]"',
            *exported_models,
        )


def extra_problem(where: str, why: str, *about: str) -> Problem:
    """A package that a declared feature needs; the sentence ends with the command that brings it."""
    command = why[why.index("pip install") :] if "pip install" in why else 'pip install "maniflex[all]"'
    return Problem(where=where, why=why.split(": pip install")[0], fix=command, about=about)


def telling_logs(subject: Subject) -> Iterator[Problem]:
    """What is for a developer's machine, on an address that others reach."""
    config = subject.config
    if not subject.is_public:
        return
    if str(config.log_level).upper() == "DEBUG":
        yield Problem(
            where='log_level="DEBUG"',
            why="every request writes many lines, with what libraries say of it, to logs that many can read",
            fix='Server(log_level="INFO")',
            about=("log_level",),
        )
    flags = [
        name for name in ("enabled", "steps", "timings", "bodies", "skips") if getattr(config.trace, name)
    ]
    if flags:
        yield Problem(
            where=f"trace={', '.join(flags)}",
            why="each request is traced step by step, with the names of the fields that were sent",
            fix="Server() without trace=",
            about=("trace",),
        )


def endless_requests(subject: Subject) -> Iterator[Problem]:
    if not subject.config.query_timeout:
        yield Problem(
            where="query_timeout=0",
            why="a request may run for ever and hold a connection while it does",
            fix="Server(query_timeout=30)",
            about=("query_timeout",),
        )


def other_pythons(subject: Subject) -> Iterator[Problem]:
    first, last = PYTHONS
    if not first <= sys.version_info[:2] <= last:
        yield Problem(
            where=f"Python {sys.version.split(' ')[0]}",
            why=f"maniflex is tested on Python {first[0]}.{first[1]} to {last[0]}.{last[1]}, not on this one",
            fix=f"python{last[0]}.{last[1]} -m venv .venv",
            about=("Python",),
        )


def temporary_storages(subject: Subject) -> Iterator[Problem]:
    storage = subject.storage
    if isinstance(storage, MemoryStorage):
        yield Problem(
            where="storage",
            why="files are kept in memory, so all of them are gone when the process ends",
            fix='Server(storage="file:///var/lib/app/files")',
            about=("storage",),
        )
    elif isinstance(storage, LocalStorage) and _is_temporary(storage.directory) and not _is_temporary(Path()):
        yield Problem(
            where=str(storage.directory),
            why="files are kept in a directory for temporary ones, which the system empties",
            fix='Server(storage="file:///var/lib/app/files")',
            about=("storage", str(storage.directory)),
        )


def _is_temporary(directory: Path) -> bool:
    place = os.path.realpath(directory)
    homes = {os.path.realpath(home) for home in (*_TEMPORARY, tempfile.gettempdir())}
    return any(place == home or place.startswith(f"{home}/") for home in homes)


def missing_backups(subject: Subject) -> Iterator[Problem]:
    for adapter in subject.adapters:
        if isinstance(adapter, SqliteAdapter) and adapter.path != MEMORY and os.path.exists(adapter.path):
            age = _age_of_backup(Path(adapter.path))
            if age is None or age > OLD_BACKUP:
                seen = (
                    "no backup was seen beside it"
                    if age is None
                    else f"its last backup is {age.days} days old"
                )
                yield Problem(
                    where=adapter.path,
                    why=f"{seen}, so a broken disk or a mistaken DELETE is final",
                    fix="maniflex backup app:server backups/app.db, every night, and a copy elsewhere",
                    about=(adapter.path,),
                    severity=Severity.WARNING if subject.is_public else Severity.NOTE,
                )


def _age_of_backup(path: Path) -> timedelta | None:
    """How old the latest file is that looks like a copy of the database; None when there is none."""
    times = [place.stat().st_mtime for place in _backups(path)]
    return timedelta(seconds=max(0.0, time.time() - max(times))) if times else None


def _backups(path: Path) -> Iterator[Path]:
    """Files of the same name with a word for copies, beside the database or in a folder for them."""
    own = {path.name, *(f"{path.name}{ending}" for ending in ("-wal", "-shm", "-journal"))}
    folder = path.absolute().parent
    try:
        neighbours = list(folder.iterdir())
    except OSError:
        return
    for place in neighbours:
        if place.name not in own and path.stem in place.name and _has_word(place.name):
            yield place
        elif place.is_dir() and _has_word(place.name):
            yield from (inner for inner in place.iterdir() if path.stem in inner.name)


def _has_word(name: str) -> bool:
    return any(word in name.lower() for word in _BACKUP_WORDS)


MISSING_EXTRA = DeclarationCheck(
    "T171", Severity.ERROR, "a declared feature without the package it needs", missing_extras
)
CHECKS = (
    MISSING_EXTRA,
    DeclarationCheck(
        "T172", Severity.WARNING, "DEBUG logs or traces on an address others reach", telling_logs
    ),
    DeclarationCheck("T173", Severity.WARNING, "`query_timeout` of 0", endless_requests),
    DeclarationCheck("T174", Severity.WARNING, "a version of Python that is not supported", other_pythons),
    DeclarationCheck(
        "T175", Severity.WARNING, "files in memory or in a temporary directory", temporary_storages
    ),
    DeclarationCheck(
        "T176", Severity.WARNING, "a SQLite file without a backup of the last week", missing_backups
    ),
)
