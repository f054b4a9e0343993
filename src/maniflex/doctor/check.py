"""A check, the sealed application that it looks at, and the findings with their places in the source."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from maniflex._clock import Clock
from maniflex.background.feed.api import Events
from maniflex.background.outbox.api import Outbox
from maniflex.background.processes.overview import describe_no_taker
from maniflex.background.processes.store import ProcessState, WorkProcess
from maniflex.background.runs.api import Work
from maniflex.background.schedules.api import Schedules
from maniflex.config import Config
from maniflex.db.current import reading
from maniflex.db.port import Adapter, Executor
from maniflex.db.records import Records
from maniflex.db.store import Store
from maniflex.features.actions import Action
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry, Placement, Seat
from maniflex.pipeline.in_process import InProcess
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.routes import Endpoint, Mount
from maniflex.pipeline.runtime import Runtime
from maniflex.schema.read import read_columns
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Dialect, Sql, by_dialect
from maniflex.sql.tables import quote
from maniflex.storage.port import Storage

if TYPE_CHECKING:
    from maniflex.schema.target import MigrationTarget


@dataclass(frozen=True, slots=True)
class Coded:
    """What checks have in common."""

    code: str
    severity: Severity  # of what it finds, unless it says otherwise
    looks_for: str  # the row of its code in docs/operate/doctor.md

    def finding(self, problem: Problem) -> Finding:
        """The problem under the code of the check."""
        severity = problem.severity or self.severity
        return Finding(self.code, severity, problem.where, problem.why, problem.fix, problem.about)


@dataclass(frozen=True, slots=True)
class DeclarationCheck(Coded):
    """Looks at declarations, settings and files; asks no database."""

    find: Callable[[Subject], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class DatabaseCheck(Coded):
    """Asks one database, in a read-only transaction of its own."""

    ask: Callable[[OpenDatabase], AsyncIterator[Problem]]


# What `maniflex doctor` found, as values: for the terminal, for programs, for the panel.


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"  # it will hurt: data seen by strangers, lost or not stored
    WARNING = "warning"  # it may hurt, or is meant and should say so
    NOTE = "note"  # something could not be looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing a check found."""

    where: str  # a model, a field, a route, a database; with file and line where there is one
    why: str  # it hurts, in one sentence
    fix: str  # what to type
    about: tuple[str, ...] = ()  # the names that `server.doctor_ignore` may give for it
    severity: Severity | None = None  # None: that of its check


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem under the code of its check."""

    code: str
    severity: Severity
    where: str
    why: str
    fix: str
    about: tuple[str, ...] = ()

    def as_json(self) -> dict[str, str]:
        """The finding as `--json` prints it."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "where": self.where,
            "why": self.why,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Ignore:
    """A finding that the application silences, and why."""

    code: str
    targets: tuple[str, ...]  # models, fields, routes; none: wherever it is found
    reason: str

    def covers(self, finding: Finding) -> bool:
        """Whether the finding is one of those it silences."""
        return self.silences(finding.code, (finding.where, *finding.about))

    def silences(self, code: str, names: Iterable[str]) -> bool:
        """Whether it is about what is found under this code and goes by these names."""
        return code == self.code and (not self.targets or not set(self.targets).isdisjoint(names))


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All findings, and those that the application silences."""

    findings: tuple[Finding, ...]
    silenced: tuple[tuple[Finding, Ignore], ...] = ()

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


def report_of(findings: Iterable[Finding], ignores: Iterable[Ignore]) -> DoctorReport:
    """The findings in the order of their codes, without those that are silenced."""
    rules, findings_left, pairs = list(ignores), [], []
    for finding in sorted(findings, key=lambda finding: (finding.code, finding.where)):
        rule = next((rule for rule in rules if rule.covers(finding)), None)
        if rule is None:
            findings_left.append(finding)
        else:
            pairs.append((finding, rule))
    return DoctorReport(tuple(findings_left), tuple(pairs))


# Where a declaration stands: file and line of models, fields and functions.


_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_FRAMEWORK = str(Path(__file__).parents[1])


def place_of_model(model: type[Model], field: str | None = None) -> str:
    """File and line of a model, or of one of its fields; empty when the class has no file."""
    path = _file_of(model)
    lines = _class_lines(path).get(model.__qualname__.rpartition(".")[2]) if path else None
    if path is None or lines is None:
        return ""
    own_line, field_lines = lines
    return f"{_short(path)}:{field_lines.get(field or '', own_line)}"


def place_of_function(fn: Callable[..., Any]) -> str:
    """File and line of a function; empty when it has none."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return "" if code is None else f"{_short(code.co_filename)}:{code.co_firstlineno}"


def at_place(name: str, place: str) -> str:
    """A name with the place where it is declared, if it has one."""
    return f"{name} ({place})" if place else name


def where_of(model: type[Model], field: str | None = None) -> str:
    """A model or a field, as findings name it."""
    name = model.__name__ if field is None else f"{model.__name__}.{field}"
    return at_place(name, place_of_model(model, field))


def texts_in_sources() -> Iterator[tuple[str, str]]:
    """Every text that is written in the modules of the application, and where."""
    for path in _application_files():
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                value = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                yield value, f"{_short(path)}:{node.lineno}"


def _application_files() -> list[str]:
    """The files of loaded modules that belong to no library."""
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return sorted(path for path in paths if path and path.endswith(".py") and not _is_of_library(path))


def _is_of_library(path: str) -> bool:
    is_installed = "site-packages" in path or "dist-packages" in path
    return is_installed or path.startswith((*_LIBRARIES, _FRAMEWORK))


def _file_of(model: type[Model]) -> str | None:
    module = sys.modules.get(model.__module__)
    return getattr(module, "__file__", None)


@cache
def _class_lines(path: str) -> dict[str, tuple[int, dict[str, int]]]:
    """The line of each class in a file, and those of its attributes."""
    classes = (node for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef))
    return {node.name: (node.lineno, dict(_attribute_lines(node))) for node in classes}


def _attribute_lines(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.lineno


def _tree(path: str) -> ast.Module:
    try:
        return ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):  # it was changed or removed since it was loaded
        return ast.Module(body=[], type_ignores=[])


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


# What the checks look at: a sealed application, as values. `app` makes it of a server.


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A sealed application."""

    config: Config
    clock: Clock
    models: tuple[ModelMeta, ...]
    stores: Mapping[type[Model], Store]
    adapters: tuple[Adapter, ...]
    routes: tuple[GuardedRoute, ...]
    placement: Placement
    layers: Sequence[Any]
    actions: Sequence[Action]
    computed: Mapping[type[Model], Sequence[Any]]
    work: Work
    outbox: Outbox
    events: Events
    schedules: Schedules
    storage: Storage | None
    in_process: InProcess
    runtime: Runtime
    migration_targets: Callable[[], list[MigrationTarget]]
    ignores: tuple[Ignore, ...] = ()
    # Handlers that encrypt, each with its key id.
    work_keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    has_open_hub: bool = False  # streams whose clients nobody is asked about
    missing_extras: tuple[str, ...] = ()  # sentences of features that do not start without a package

    @property
    def own_models(self) -> list[ModelMeta]:
        """The models of the application, without the framework's tables."""
        return [meta for meta in self.models if not meta.is_internal]

    @property
    def seats(self) -> list[tuple[Entry, Seat]]:
        """Every entry of the catalogue, and where it was registered."""
        return [*self.placement.seats, *self.placement.other_seats]

    @property
    def is_public(self) -> bool:
        """Whether others than this machine can reach it."""
        return bool(self.config.trusted_proxies) or not is_loopback(self.config.host)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class OpenDatabase:
    """One database of the application, open for reading alone."""

    subject: Subject
    adapter: Adapter
    run: Executor
    models: Sequence[ModelSql] = field(default=())  # of this database, query models left out

    @property
    def label(self) -> str:
        return self.adapter.label

    @property
    def is_default(self) -> bool:
        """Whether durable work keeps its tables here."""
        return self.adapter is self.subject.runtime.adapter


# The processes of the application that live now, as their rows in `work_process` say.


MOST = 1000


class LivingProcesses:
    """Who is there, and who was."""

    def __init__(self, rows: list[WorkProcess], now: datetime) -> None:
        self._rows, self._now = rows, now
        self.alive = [one for one in rows if one.state(now) is ProcessState.ALIVE]

    @property
    def hosts(self) -> list[str]:
        """Where they run."""
        return sorted({one.host for one in self.alive})

    @property
    def fire_schedules(self) -> bool:
        return any(one.schedules for one in self.alive)

    def take_runs(self, type: str) -> bool:
        return any(one.takes(type) for one in self.alive)

    def take_messages(self, kind: str) -> bool:
        return any(one.takes_message(kind) for one in self.alive)

    def no_taker(self, type: str) -> str:
        """That none takes runs of the type, and when the last one that did was seen."""
        return describe_no_taker(self._rows, type, self._now)


async def read_living(database: OpenDatabase) -> LivingProcesses:
    """The processes of the application; none where no durable work is declared, which keeps their rows."""
    subject = database.subject
    store, now = subject.stores.get(WorkProcess), subject.work.clock.now()
    if store is None or store.adapter is not subject.runtime.adapter:
        return LivingProcesses([], now)
    if not await read_columns(store.adapter, store.sql):
        return LivingProcesses([], now)
    records = Records[WorkProcess](store, reading(store.adapter))
    rows = await records.list(sorts="seen_at:desc", limit=MOST)
    return LivingProcesses(rows, now)


# How large tables are, without counting all rows: from statistics, or by looking so far and no further.


LARGE = 10_000  # rows

_ESTIMATES = """
SELECT c.relname, c.reltuples::bigint FROM pg_class c
 WHERE c.oid = ANY (SELECT to_regclass(name) FROM unnest($1::text[]) AS name) AND c.reltuples >= 0
"""


async def estimate_rows(run: Executor, models: Sequence[ModelSql]) -> Mapping[str, int]:
    """About how many rows each table has, by its name, as far as the database keeps count of them."""
    if not models:
        return {}
    names = [quote(model.table.name, model.dialect) for model in models]
    statement = by_dialect(run.dialect, sqlite=None, postgres=Sql(_ESTIMATES, (names,)))
    return {} if statement is None else {row[0]: int(row[1]) for row in await run.fetch(statement)}


async def tables_over(run: Executor, models: Sequence[ModelSql], limit: int = LARGE) -> list[ModelSql]:
    """The models whose tables have more rows than that."""
    estimates = await estimate_rows(run, models)
    large = []
    for model in models:
        rows = estimates.get(model.table.name)
        if (rows is None and await _has_row_at(run, model, limit)) or (rows is not None and rows > limit):
            large.append(model)
    return large


async def _has_row_at(run: Executor, model: ModelSql, limit: int) -> bool:
    """Whether there is one more row than that; reads no more of the table."""
    table = quote(model.table.name, model.dialect)
    if not await _exists(run, model):
        return False
    return await run.fetch_one(Sql(f"SELECT 1 FROM {table} LIMIT 1 OFFSET {limit}")) is not None


_EXISTS: dict[Dialect, str] = {
    Dialect.SQLITE: "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?",
    Dialect.POSTGRES: "SELECT 1 WHERE to_regclass($1) IS NOT NULL",
}


async def _exists(run: Executor, model: ModelSql) -> bool:
    name = by_dialect(model.dialect, sqlite=model.table.name, postgres=quote(model.table.name, model.dialect))
    return await run.fetch_one(Sql(_EXISTS[model.dialect], (name,))) is not None


# Which routes nobody decided about: judged here for the doctor, for `production` and for the start
# alike.


WRITES, ACTIONS, FILES_AND_SEARCH, READS = "T101", "T102", "T103", "T104"
_OF_FILES = frozenset({*Operation.FILES, Operation.PRESIGN_UPLOAD})


@dataclass(frozen=True, slots=True)
class GuardedRoute:
    """One method on one path, and whether the application said who may use it."""

    path: str  # with the prefix
    endpoint: Endpoint
    is_decided: bool
    authenticators: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.endpoint.method} {self.path}"

    @property
    def passes_auth(self) -> bool:
        """Whether requests to it pass the auth step; probes and the description have their own guards."""
        is_plain = self.endpoint.method not in ("HEAD", "OPTIONS")
        return is_plain and self.endpoint.mount is Mount.API and self.endpoint.context is Context

    @property
    def is_open(self) -> bool:
        """Whether anybody may use it, and nobody said that this is meant."""
        return self.passes_auth and not self.is_decided

    @property
    def code(self) -> str:
        """The code of the check that names it while it is open; empty for those that no check is about."""
        operation, model = self.endpoint.operation, self.endpoint.model
        if operation is Operation.ACTION:
            return ACTIONS
        if operation in _OF_FILES or (operation is Operation.SEARCH and model is None):
            return FILES_AND_SEARCH
        if model is None or model.is_internal:
            return ""
        if operation in Operation.WRITES:
            return WRITES
        return READS if operation in Operation.READS else ""

    @property
    def names(self) -> tuple[str, ...]:
        """What `server.doctor_ignore` may call it: its model, its method and path, its path."""
        model, names = self.endpoint.model, (str(self), self.path)
        return names if model is None else (model.name, *names)

    def is_meant(self, ignores: Iterable[Ignore]) -> bool:
        """Whether a `doctor_ignore` of the application says that it is open on purpose."""
        return any(rule.silences(self.code, self.names) for rule in ignores)
