"""Every setting of a server, frozen; the one reader of the environment.

Durations are `timedelta`s (or seconds); in the environment they are written `30s`, `500ms`, `5m`.
A value that cannot be used stops the start, and all of them are listed together.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from types import UnionType
from typing import Any

from maniflex._client_address import trust_problem
from maniflex._limits import DEFAULT_LIMITS
from maniflex._limits import Limits as Limits  # settings are made here
from maniflex._setting_texts import parse_size, read_bool, read_duration, read_int, read_proxies, read_texts
from maniflex.errors import ConfigError

_TEXTS: dict[str, type | UnionType] = {
    "static_dir": str | Path,
    "upload_dir": str | Path,
    "database": object,
}
_POSTGRES = ("postgresql://", "postgres://")
_POSITIVE = (
    "pool_size",
    "read_pool_size",
    "sqlite_readers",
    "max_body_size",
    "max_exports",
    "max_upload_size",
    "upload_memory",
    "max_form_parts",
    "work_concurrency",
    "outbox_batch_size",
    "outbox_max_attempts",
    "sweep_batch_size",
)
# Zero would mean "without pause", and nobody wants that of a loop.
_INTERVALS = (
    "work_lease",
    "work_poll_interval",
    "schedule_poll_interval",
    "schedule_lock_timeout",
    "schedule_execution_timeout",
    "outbox_poll_interval",
    "sweep_interval",
    "signed_url_ttl",
    "files_pending_ttl",
)
FILES_READ = ("key", "owner", "record")
SHORTEST_SIGNING_KEY = 16  # bytes
# A request's path comes decoded and without a query, so none of these would ever be found in it.
_NOT_IN_A_PATH = re.compile(r"[\s\x00-\x1f\x7f{}?#%\\]")


@dataclass(frozen=True, slots=True)
class Trace:
    """What of the pipeline is written to the log at DEBUG level."""

    enabled: bool = False  # short for steps, timings and aborts
    steps: bool = False
    timings: bool = False
    aborts: bool = False
    bodies: bool = False  # field names only
    skips: bool = False

    def on(self, flag: str) -> bool:
        return bool(getattr(self, flag)) or (self.enabled and flag in ("steps", "timings", "aborts"))


@dataclass(frozen=True, slots=True)
class Config:
    """All settings; every one has a default."""

    # Addresses carry passwords, so they are kept out of the representation.
    database: Any = field(default="sqlite:///maniflex.db", repr=False)  # a URL or an adapter
    read_database: str | None = field(default=None, repr=False)
    auto_migrate: bool = True
    host: str = "127.0.0.1"
    port: int = 8080
    path_prefix: str = "/api"
    service_name: str = ""
    trusted_proxies: int | Sequence[str] = ()  # how many before the server, or their networks
    static_dir: str | Path = ""  # nothing is served unless a directory is named
    static_prefix: str = "/static"
    static_disabled: bool = False
    openapi_enabled: bool = True
    openapi_title: str = ""
    openapi_version: str = "1.0.0"
    openapi_all_methods: bool = False  # describe HEAD and OPTIONS too
    docs_enabled: bool = True
    limits: Limits = DEFAULT_LIMITS
    max_body_size: int = 4 * 1024 * 1024
    unknown_fields: str = "ignore"  # or "refuse": keys of a body that name no field
    max_exports: int = 2
    query_timeout: timedelta = timedelta(seconds=30)
    shutdown_timeout: timedelta = timedelta(seconds=30)
    health_check_db: bool = False
    health_timeout: timedelta = timedelta(seconds=3)
    ready_needs_work: bool = False  # /ready also asks whether the work of this process goes on
    metrics_enabled: bool = False
    pool_size: int = 10
    read_pool_size: int = 10
    statement_timeout: timedelta = timedelta(seconds=30)
    lock_timeout: timedelta = timedelta(seconds=5)
    pool_timeout: timedelta = timedelta(seconds=10)
    idle_in_transaction_timeout: timedelta = timedelta(seconds=60)
    application_name: str = "maniflex"
    schema: str | None = None
    pooler: bool = False
    sqlite_readers: int = 4
    background: bool = True  # whether this process works: runs, schedules, outbox, scheduled fields
    worker_type_prefixes: tuple[str, ...] = ()  # none: `default.` and the types that have a handler here
    work_concurrency: int = 10
    work_lease: timedelta = timedelta(seconds=30)
    work_poll_interval: timedelta = timedelta(seconds=1)
    work_events: bool = True
    work_retention: timedelta = timedelta(days=30)  # of finished runs; zero keeps them for good
    schedule_poll_interval: timedelta = timedelta(seconds=10)
    schedule_lock_timeout: timedelta = timedelta(minutes=5)
    schedule_execution_timeout: timedelta = timedelta(minutes=10)
    outbox_batch_size: int = 50
    outbox_max_attempts: int = 10
    outbox_base_backoff: timedelta = timedelta(seconds=5)
    outbox_poll_interval: timedelta = timedelta(seconds=5)
    outbox_retention: timedelta = timedelta(days=7)  # of delivered messages; zero keeps them for good
    sweep_interval: timedelta = timedelta(minutes=1)
    sweep_batch_size: int = 500
    storage: Any = field(default=None, repr=False)  # of files: an address or a Storage; None: there is none
    files_routes: bool = True  # POST, GET and DELETE of single files, where there is a storage
    files_path: str = "/files"
    files_middleware: Sequence[Callable[..., Any]] = ()  # of these routes alone, behind the auth step
    files_read: str = "key"  # or "owner", "record": what opens a file on these routes
    files_admin_role: str = "admin"  # may delete files of others
    files_signing_key: str | None = field(default=None, repr=False)  # None: one that the database keeps
    signed_url_ttl: timedelta = timedelta(hours=1)
    max_upload_size: int = 32 * 1024 * 1024  # of a whole form
    upload_memory: int = 1024 * 1024  # of one file of a form; larger ones wait in `upload_dir`
    upload_dir: str | Path = ""  # empty: the directory of the system for temporary files
    max_form_parts: int = 200
    files_pending_ttl: timedelta = timedelta(hours=1)  # of an upload that does not move
    files_unclaimed_ttl: timedelta = timedelta(0)  # of uploads no record names; zero keeps them for good
    file_key: Callable[..., Any] | None = None
    file_scope: Callable[..., Any] | None = None
    log_level: str = "INFO"
    log_json: bool = False
    access_log: bool = True  # a line for every request, under `maniflex run` and `server.run()`
    logger: logging.Logger | None = None
    panic_logger: logging.Logger | None = None
    trace: Trace = field(default_factory=Trace)
    on_start: Callable[[], Any] | None = None
    on_shutdown: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        problems = list(self._settle())
        if problems:
            raise ConfigError(*problems)

    def _settle(self) -> list[str]:
        """Bring values to one form; returns the problems of those that cannot be."""
        problems = []
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(f.default, timedelta):
                duration = _as_duration(value)
                if duration is None:
                    problems.append(f"{f.name}: {value!r} is not a duration")
                else:
                    object.__setattr__(self, f.name, duration)
            elif isinstance(f.default, bool | int) and type(value) is not type(f.default):
                problems.append(f"{f.name}: {value!r} is not {type(f.default).__name__}")
            elif isinstance(f.default, str) and not isinstance(value, _TEXTS.get(f.name, str)):
                problems.append(f"{f.name}: {value!r} is not a text")
            elif f.name == "trace" and not isinstance(value, Trace):
                problems.append(f"trace: {value!r} is not a Trace, such as Trace(enabled=True)")
        if isinstance(self.trusted_proxies, list):
            object.__setattr__(self, "trusted_proxies", tuple(self.trusted_proxies))
        object.__setattr__(self, "path_prefix", _prefix(self.path_prefix))
        object.__setattr__(self, "static_prefix", _prefix(self.static_prefix))
        object.__setattr__(self, "files_path", _prefix(self.files_path))
        return problems or self._ranges()

    def _ranges(self) -> list[str]:
        problems = []
        if not 0 <= self.port <= 65535:
            problems.append(f"port: {self.port} is not a port number")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value < 1:
                problems.append(f"{name}: {value} is less than 1")
        problems += [f"{name}: must be more than nothing" for name in _INTERVALS if not getattr(self, name)]
        prefixes: Any = self.worker_type_prefixes
        if not isinstance(prefixes, tuple) or not all(p and isinstance(p, str) for p in prefixes):
            problems.append("worker_type_prefixes: it is a tuple of texts such as ('billing.', 'email.')")
        for name in ("path_prefix", "static_prefix", "files_path"):
            prefix = getattr(self, name)
            if _NOT_IN_A_PATH.search(prefix) or {".", ".."} & set(prefix.split("/")):
                problems.append(f"{name}: {prefix!r} is not a plain path such as /api/v1")
        if self.unknown_fields not in ("ignore", "refuse"):
            problems.append(f"unknown_fields: {self.unknown_fields!r} is neither 'ignore' nor 'refuse'")
        if problem := trust_problem(self.trusted_proxies):
            problems.append(f"trusted_proxies: {problem}")
        problems += [*self._addresses(), *self._files()]
        if logging.getLevelName(str(self.log_level).upper()) == f"Level {str(self.log_level).upper()}":
            problems.append(f"log_level: there is no level {self.log_level!r}")
        return problems

    def _addresses(self) -> list[str]:
        problems = []
        if not isinstance(self.database, str):
            if not hasattr(self.database, "transaction"):
                kind = type(self.database).__name__
                problems.append(f"database: a {kind} is neither an address nor an adapter")
        elif self.database.startswith("sqlite:"):
            problems += [f"database: {problem}" for problem in _sqlite_problems(self.database)]
        elif not self.database.startswith(_POSTGRES) and self.database != ":memory:":
            address = _harmless_part(self.database)
            problems.append(f"database: {address} is neither sqlite:///file nor postgresql://…")
        if self.read_database is not None:
            if not str(self.read_database).startswith(_POSTGRES):
                problems.append("read_database: a replica has an address like postgresql://…")
            elif not str(self.database).startswith(_POSTGRES):
                problems.append("read_database: only a database given as postgresql://… has a replica")
        return problems

    def _files(self) -> list[str]:
        problems = []
        if not self.files_path:
            problems.append("files_path: it is a path such as /files")
        if self.files_read not in FILES_READ:
            problems.append(f"files_read: {self.files_read!r} is none of {', '.join(FILES_READ)}")
        key: Any = self.files_signing_key
        if key is not None and (not isinstance(key, str) or len(key.encode()) < SHORTEST_SIGNING_KEY):
            problems.append(f"files_signing_key: it is a text of {SHORTEST_SIGNING_KEY} bytes or more")
        functions: dict[str, Any] = {"file_key": self.file_key, "file_scope": self.file_scope}
        problems += [
            f"{name}: {value!r} cannot be called"
            for name, value in functions.items()
            if value is not None and not callable(value)
        ]
        return problems

    def with_(self, **settings: Any) -> Config:
        """The same settings with some of them changed; another database leaves the replica behind."""
        if settings.get("database", self.database) != self.database:
            settings.setdefault("read_database", None)
        return replace(self, **settings)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **settings: Any) -> Config:
        """The settings the environment asks for; `settings` win over it."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        problems = []
        for variable, (name, read) in ENVIRONMENT.items():
            text = environ.get(variable)
            if text is None or text == "" or name in settings:
                continue
            try:
                values[name] = read(text)
            except ValueError as error:
                problems.append(f"{variable}: {error}")
        try:
            config = cls(**{**values, **settings})
        except ConfigError as error:
            variables = {name: variable for variable, (name, _) in ENVIRONMENT.items() if name in values}
            for problem in error.problems:
                name, colon, rest = problem.partition(":")
                problems.append(variables.get(name, name) + colon + rest)
        if problems:
            raise ConfigError(*problems)
        return config


def _prefix(text: str) -> str:
    """A URL prefix with one leading and no trailing slash; empty stays empty."""
    parts = [part for part in str(text).split("/") if part]
    return "/" + "/".join(parts) if parts else ""


def _harmless_part(url: str) -> str:
    """As much of an address as surely is no password: a plain file name, or the scheme."""
    if re.fullmatch(r"[\w./\\-]*", url):
        return repr(url)
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url)
    return repr(f"{scheme[0]}…") if scheme else "what is given"


def _as_duration(value: Any) -> timedelta | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            value = timedelta(seconds=value)
        except (OverflowError, ValueError):  # infinity, or not a number
            return None
    return value if isinstance(value, timedelta) and value >= timedelta(0) else None


ENVIRONMENT: dict[str, tuple[str, Callable[[str], Any]]] = {
    "DB_WRITE_URL": ("database", str),
    "DB_READ_URL": ("read_database", str),
    "AUTO_MIGRATE": ("auto_migrate", read_bool),
    "HOST": ("host", str),
    "PORT": ("port", read_int),
    "PATH_PREFIX": ("path_prefix", str),
    "SERVICE_NAME": ("service_name", str),
    "TRUSTED_PROXIES": ("trusted_proxies", read_proxies),
    "STATIC_DIR": ("static_dir", str),
    "STATIC_PREFIX": ("static_prefix", str),
    "STATIC_DISABLED": ("static_disabled", read_bool),
    "OPENAPI_ENABLED": ("openapi_enabled", read_bool),
    "OPENAPI_TITLE": ("openapi_title", str),
    "OPENAPI_VERSION": ("openapi_version", str),
    "OPENAPI_ALL_METHODS": ("openapi_all_methods", read_bool),
    "DOCS_ENABLED": ("docs_enabled", read_bool),
    "MAX_BODY_SIZE": ("max_body_size", parse_size),
    "UNKNOWN_FIELDS": ("unknown_fields", str),
    "MAX_EXPORTS": ("max_exports", read_int),
    "QUERY_TIMEOUT": ("query_timeout", read_duration),
    "SHUTDOWN_TIMEOUT": ("shutdown_timeout", read_duration),
    "HEALTH_CHECK_DB": ("health_check_db", read_bool),
    "HEALTH_TIMEOUT": ("health_timeout", read_duration),
    "READY_NEEDS_WORK": ("ready_needs_work", read_bool),
    "METRICS_ENABLED": ("metrics_enabled", read_bool),
    "DB_POOL_SIZE": ("pool_size", read_int),
    "DB_READ_POOL_SIZE": ("read_pool_size", read_int),
    "DB_STATEMENT_TIMEOUT": ("statement_timeout", read_duration),
    "DB_LOCK_TIMEOUT": ("lock_timeout", read_duration),
    "DB_POOL_TIMEOUT": ("pool_timeout", read_duration),
    "DB_IDLE_IN_TRANSACTION_TIMEOUT": ("idle_in_transaction_timeout", read_duration),
    "DB_APPLICATION_NAME": ("application_name", str),
    "DB_SCHEMA": ("schema", str),
    "DB_POOLER": ("pooler", read_bool),
    "SQLITE_READERS": ("sqlite_readers", read_int),
    "BACKGROUND": ("background", read_bool),
    "WORKER_TYPE_PREFIXES": ("worker_type_prefixes", read_texts),
    "WORK_CONCURRENCY": ("work_concurrency", read_int),
    "WORK_LEASE": ("work_lease", read_duration),
    "WORK_POLL_INTERVAL": ("work_poll_interval", read_duration),
    "WORK_EVENTS": ("work_events", read_bool),
    "WORK_RETENTION": ("work_retention", read_duration),
    "SCHEDULE_POLL_INTERVAL": ("schedule_poll_interval", read_duration),
    "SCHEDULE_LOCK_TIMEOUT": ("schedule_lock_timeout", read_duration),
    "SCHEDULE_EXECUTION_TIMEOUT": ("schedule_execution_timeout", read_duration),
    "OUTBOX_BATCH_SIZE": ("outbox_batch_size", read_int),
    "OUTBOX_MAX_ATTEMPTS": ("outbox_max_attempts", read_int),
    "OUTBOX_BASE_BACKOFF": ("outbox_base_backoff", read_duration),
    "OUTBOX_POLL_INTERVAL": ("outbox_poll_interval", read_duration),
    "OUTBOX_RETENTION": ("outbox_retention", read_duration),
    "SWEEP_INTERVAL": ("sweep_interval", read_duration),
    "SWEEP_BATCH_SIZE": ("sweep_batch_size", read_int),
    "FILE_STORAGE": ("storage", str),
    "FILES_ROUTES": ("files_routes", read_bool),
    "FILES_PATH": ("files_path", str),
    "FILES_READ": ("files_read", str),
    "FILES_ADMIN_ROLE": ("files_admin_role", str),
    "FILES_SIGNING_KEY": ("files_signing_key", str),
    "SIGNED_URL_TTL": ("signed_url_ttl", read_duration),
    "MAX_UPLOAD_SIZE": ("max_upload_size", parse_size),
    "UPLOAD_MEMORY": ("upload_memory", parse_size),
    "UPLOAD_DIR": ("upload_dir", str),
    "MAX_FORM_PARTS": ("max_form_parts", read_int),
    "FILES_PENDING_TTL": ("files_pending_ttl", read_duration),
    "FILES_UNCLAIMED_TTL": ("files_unclaimed_ttl", read_duration),
    "LOG_LEVEL": ("log_level", str),
    "LOG_JSON": ("log_json", read_bool),
    "ACCESS_LOG": ("access_log", read_bool),
}
# Objects and functions, which no text of the environment can be.
WITHOUT_VARIABLE = frozenset(
    {
        "limits",
        "files_middleware",
        "file_key",
        "file_scope",
        "logger",
        "panic_logger",
        "trace",
        "on_start",
        "on_shutdown",
    }
)


def sqlite_path(url: str) -> str:
    """The file a `sqlite:` URL names, or `:memory:`; `ConfigError` when it names none."""
    problems = _sqlite_problems(url)
    if problems:
        raise ConfigError(*problems)
    path = url.removeprefix("sqlite:").removeprefix("//")
    if path in ("", ":memory:", "/:memory:"):
        return ":memory:"
    return str(Path(path.removeprefix("/")))


def _sqlite_problems(url: str) -> list[str]:
    if url in ("sqlite:", "sqlite:///"):
        return ["the address names no file; a database in memory is sqlite:// or :memory:"]
    if "?" in url:
        return ["a sqlite: address takes no options; leave out what begins with '?'"]
    return []
