"""Every setting of a server, frozen; the one reader of the environment.

Durations are `timedelta`s (or seconds); in the environment they are written `30s`, `500ms`, `5m`.
A value that cannot be used stops the start, and all of them are listed together.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from types import UnionType
from typing import Any, Self

from maniflex._arguments import explain_class
from maniflex._environment import read_environment, read_file
from maniflex._limits import DEFAULT_LIMITS
from maniflex._limits import Limits as Limits  # settings are made here
from maniflex._setting_checks import setting_problems, sqlite_problems
from maniflex.errors import ConfigError

DEFAULT, CODE = "default", "code"  # where the value of a setting comes from
_TEXTS: dict[str, type | UnionType] = {
    "static_dir": str | Path,
    "upload_dir": str | Path,
    "migrations_dir": str | Path,
    "database": object,
}


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


class _WithOrigins:
    """Remembers which settings were given, beside the fields of the dataclass."""

    __slots__ = ("_origins",)
    _origins: dict[str, str]

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        config = super().__new__(cls)
        names = [*list(cls.__dataclass_fields__)[: len(args)], *settings]  # type: ignore[attr-defined]  # of Config
        object.__setattr__(config, "_origins", dict.fromkeys(names, CODE))
        return config


@explain_class
@dataclass(frozen=True, slots=True)
class Config(_WithOrigins):
    """All settings; every one has a default."""

    # Addresses carry passwords, so they are kept out of the representation.
    database: Any = field(default="sqlite:///maniflex.db", repr=False)  # a URL or an adapter
    read_database: str | None = field(default=None, repr=False)
    auto_migrate: bool = True
    migrations_dir: str | Path = "migrations"  # relative to the module that makes the server
    migrate_on_start: bool = False
    strict: bool = False  # what a start would warn of stops it
    production: bool = False  # and so does what should not be served to the world
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
    welcome_enabled: bool = True  # a page at / for a browser on the machine itself
    limits: Limits = DEFAULT_LIMITS
    max_body_size: int = 4 * 1024 * 1024
    unknown_fields: str = "ignore"  # or "refuse": keys of a body that name no field
    strict_params: bool = False  # query parameters that nothing reads are 400
    max_exports: int = 2
    query_timeout: timedelta = timedelta(seconds=30)
    head_timeout: timedelta = timedelta(seconds=20)  # for the headers of a request to arrive
    body_timeout: timedelta = timedelta(seconds=60)  # and for its body; uploads have one for each part
    keep_alive_timeout: timedelta = timedelta(seconds=120)  # of a connection between two requests
    max_header_size: int = 64 * 1024
    shutdown_timeout: timedelta = timedelta(seconds=30)
    drain_delay: timedelta = timedelta(0)  # between /ready turning 503 and the end of the listener
    health_check_db: bool = False
    health_timeout: timedelta = timedelta(seconds=3)
    ready_needs_work: bool = False  # /ready also asks whether the work of this process goes on
    publish_readiness_checks: bool = False  # /ready names the checks of `server.readiness`
    probes: tuple[str, ...] = ("health", "live", "ready")
    probes_token: str | None = field(default=None, repr=False)  # who asks the probes sends it as a bearer
    metrics_enabled: bool = False
    metrics_token: str | None = field(default=None, repr=False)  # who reads the numbers sends it as a bearer
    metrics_port: int = 0  # a port of its own for the numbers; 0: that of everything else
    slow_after: timedelta = timedelta(
        seconds=1
    )  # requests and statements that take longer are logged; 0: none
    admin_role: str = "admin"  # is shown the times of its requests, where `trace.timings` is on
    pool_size: int = 10
    read_pool_size: int = 10
    read_max_lag: timedelta = timedelta(seconds=10)  # of a replica that is read from; zero: any
    position_cookie: str = ""  # the name of a cookie that says what its client has written; empty: none
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
    history_retention: timedelta = timedelta(0)  # of versions in histories; zero keeps them
    audit_retention: timedelta = timedelta(0)  # of records in the tables of audit trails; zero keeps them
    schedule_poll_interval: timedelta = timedelta(seconds=10)
    schedule_lock_timeout: timedelta = timedelta(minutes=5)
    schedule_execution_timeout: timedelta = timedelta(minutes=10)
    outbox_batch_size: int = 50
    outbox_max_attempts: int = 10
    outbox_base_backoff: timedelta = timedelta(seconds=5)
    outbox_poll_interval: timedelta = timedelta(seconds=5)
    admin_retention: timedelta = timedelta(days=365)  # of what was done in the panel
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
    upload_memory: int = 1024 * 1024  # of all files of a form; larger ones wait in `upload_dir`
    upload_dir: str | Path = ""  # empty: the directory of the system for temporary files
    max_form_parts: int = 200
    files_pending_ttl: timedelta = timedelta(hours=1)  # of an upload that does not move
    files_unclaimed_ttl: timedelta = timedelta(0)  # of uploads no record names; zero keeps them for good
    file_key: Callable[..., Any] | None = None
    file_scope: Callable[..., Any] | None = None
    file_quota: Callable[..., Any] | None = None  # of a scope: the bytes its files may have in all
    log_level: str = "INFO"
    log_json: bool = False
    access_log: bool = True  # a line for every request, under `maniflex run` and `server.run()`
    logger: logging.Logger | None = None
    panic_logger: logging.Logger | None = None
    trace: Trace = field(default_factory=Trace)
    on_start: Callable[[], Any] | None = None
    on_shutdown: Callable[[], Any] | None = None
    on_background_panic: Callable[[str, BaseException], Any] | None = None  # what failed, and its exception

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
                    problems.append(f"{f.name}: {value!r} is not a duration; use a timedelta or seconds")
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
        if isinstance(self.database, str):
            object.__setattr__(self, "database", database_address(self.database))
        object.__setattr__(self, "path_prefix", _prefix(self.path_prefix))
        object.__setattr__(self, "static_prefix", _prefix(self.static_prefix))
        object.__setattr__(self, "files_path", _prefix(self.files_path))
        return problems or setting_problems(self)

    def with_(self, **settings: Any) -> Config:
        """The same settings with some of them changed; another database leaves the replica behind."""
        if settings.get("database", self.database) != self.database:
            settings.setdefault("read_database", None)
        return replace(self, **settings)._from({**self._origins, **dict.fromkeys(settings, CODE)})

    def origin(self, name: str) -> str:
        """Where the value of a setting comes from: `default`, `code`, or the name of a variable."""
        return self._origins.get(name, DEFAULT)

    def _from(self, origins: dict[str, str]) -> Config:
        object.__setattr__(self, "_origins", origins)
        return self

    @property
    def is_strict(self) -> bool:
        """Whether warnings stop the start."""
        return self.strict or self.production

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        prefix: str = "",
        file: str | Path | None = None,
        ignore: Iterable[str] = (),
        **settings: Any,
    ) -> Config:
        """The settings the environment asks for; `settings` win over it.

        With a `prefix`, variables begin with it, and one that no setting has is refused unless it is among
        those to `ignore`. A `file` such as `.env` is read for what the environment does not set.
        """
        environ = os.environ if environ is None else environ
        read = read_environment(environ, prefix=prefix, file=file, ignore=ignore, given=set(settings))
        problems = read.problems
        try:
            config = cls(**{**read.values, **settings})
        except ConfigError as error:
            for problem in error.problems:
                name, colon, rest = problem.partition(":")
                problems.append(read.variables.get(name, name) + colon + rest)
        if problems:
            raise ConfigError(*problems)
        return config._from({**read.variables, **dict.fromkeys(settings, CODE)})


def read_variables(file: str | Path) -> dict[str, str]:
    """The variables of the environment, and those of a file such as `.env` that it does not set.

    For what an application itself wants to be told; settings of the server are read by `Config.from_env`.
    """
    variables, problems = read_file(Path(file))
    if problems:
        raise ConfigError(*problems)
    return {**variables, **os.environ}


def _prefix(text: str) -> str:
    """A URL prefix with one leading and no trailing slash; empty stays empty."""
    parts = [part for part in str(text).split("/") if part]
    return "/" + "/".join(parts) if parts else ""


def _as_duration(value: Any) -> timedelta | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            value = timedelta(seconds=value)
        except (OverflowError, ValueError):  # infinity, or not a number
            return None
    return value if isinstance(value, timedelta) and value >= timedelta(0) else None


def database_address(text: str) -> str:
    """The address of a database; a bare file such as `./app.db` is one of SQLite.

    >>> database_address("./app.db"), database_address("file:app.sqlite"), database_address("/var/lib/app.db")
    ('sqlite:///./app.db', 'sqlite:///app.sqlite', 'sqlite:////var/lib/app.db')
    """
    path = text.removeprefix("file:")
    is_file = path.startswith(("./", "../", "/")) or path.endswith((".db", ".sqlite", ".sqlite3"))
    return f"sqlite:///{path}" if is_file and ":" not in path else text


def sqlite_path(url: str) -> str:
    """The file a `sqlite:` URL names, or `:memory:`; `ConfigError` when it names none."""
    problems = sqlite_problems(url)
    if problems:
        raise ConfigError(*problems)
    path = url.removeprefix("sqlite:").removeprefix("//")
    if path in ("", ":memory:", "/:memory:"):
        return ":memory:"
    return str(Path(path.removeprefix("/")))
