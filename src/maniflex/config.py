"""Every setting of a server, declared once; frozen, and brought to one form.

Durations are `timedelta`s (or seconds); in the environment they are written `30s`, `500ms`, `5m`.
A value that cannot be used stops the start, and all of them are listed together.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypedDict

from maniflex._callables import explain_class
from maniflex._client_address import trust_problem
from maniflex._locales import DEFAULT_LOCALES, LocaleOptions
from maniflex._messages import catalogue_problems, unreachable_catalogues
from maniflex._settings import (
    at_least_one,
    is_function,
    is_plain_path,
    is_port,
    is_secret_text,
    is_some_time,
    is_source,
    not_negative,
    one_of,
    parse_size,
    read_environment,
    read_file,
    read_proxies,
    setting,
    settings_of,
)
from maniflex.errors import ConfigError

DEFAULT, CODE = "default", "code"  # where the value of a setting comes from
DEFAULT_LIMIT = 20


@explain_class
@dataclass(frozen=True, slots=True)
class Limits:
    """The caps of a request; what goes beyond those of a query is refused before any SQL is written."""

    max_limit: int = 200
    max_page: int = 1_000_000_000
    uri_length: int = 8192
    filters: int = 50
    groups: int = 20
    values: int = 500  # in one `in` or `not_in`
    pattern_length: int = 200  # characters behind a text operator
    wildcards: int = 10  # in one pattern
    sorts: int = 10
    selects: int = 100
    includes: int = 10
    include_depth: int = 2
    included_rows: int = 10_000  # related records in one answer
    path_depth: int = 3  # relations in one dotted filter
    nested_depth: int = 2  # levels of records in one body, below its own
    nested_items: int = 100  # records in one body besides its own, those named by their ids among them
    search_length: int = 500
    aggregates: int = 20  # values one aggregate computes
    group_keys: int = 10  # fields one aggregate groups by
    answer_size: int = 16 * 1024 * 1024  # bytes of a list, an aggregate or what is included
    body_values: int = 100_000  # values in one JSON body: numbers, texts, lists, objects


DEFAULT_LIMITS = Limits()


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


# What single settings may be.


def _prefix(text: str) -> str:
    """A URL prefix with one leading and no trailing slash; empty stays empty."""
    parts = [part for part in text.split("/") if part]
    return "/" + "/".join(parts) if parts else ""


def database_address(text: str) -> str:
    """The address of a database; a bare file such as `./app.db` is one of SQLite.

    >>> database_address("./app.db"), database_address("file:app.sqlite"), database_address("/var/lib/app.db")
    ('sqlite:///./app.db', 'sqlite:///app.sqlite', 'sqlite:////var/lib/app.db')
    """
    path = text.removeprefix("file:")
    is_file = path.startswith(("./", "../", "/")) or path.endswith((".db", ".sqlite", ".sqlite3"))
    return f"sqlite:///{path}" if is_file and ":" not in path else text


_POSTGRES = ("postgresql://", "postgres://")


def _database_problem(database: Any) -> str:
    if not isinstance(database, str):
        is_adapter = hasattr(database, "transaction")
        return "" if is_adapter else f"a {type(database).__name__} is neither an address nor an adapter"
    if database.startswith("sqlite:"):
        return _sqlite_problem(database)
    if database.startswith(_POSTGRES) or database == ":memory:":
        return ""
    return f"{_harmless_part(database)} is neither sqlite:///file nor postgresql://…"


def _sqlite_problem(url: str) -> str:
    """Why a `sqlite:` address cannot be used."""
    if url in ("sqlite:", "sqlite:///"):
        return "the address names no file; a database in memory is sqlite:// or :memory:"
    return "a sqlite: address takes no options; leave out what begins with '?'" if "?" in url else ""


def _harmless_part(url: str) -> str:
    """As much of an address as surely is no password: a plain file name, or the scheme."""
    if re.fullmatch(r"[\w./\\-]*", url):
        return repr(url)
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url)
    return repr(f"{scheme[0]}…") if scheme else "what is given"


def _replica_problem(address: Any) -> str:
    is_address = address is None or str(address).startswith(_POSTGRES)
    return "" if is_address else "a replica has an address like postgresql://…"


def _cookie_problem(name: str) -> str:
    is_name = not name or re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name)
    return "" if is_name else f"{name!r} is not the name of a cookie"


_PROBES = ("health", "live", "ready")


def _probes_problem(names: Any) -> str:
    is_right = isinstance(names, tuple) and set(names) <= set(_PROBES)
    return "" if is_right else f"it is a tuple of some of {', '.join(_PROBES)}"


def _prefixes_problem(prefixes: Any) -> str:
    is_right = isinstance(prefixes, tuple) and all(p and isinstance(p, str) for p in prefixes)
    return "" if is_right else "it is a tuple of texts such as ('billing.', 'email.')"


def _files_path_problem(path: str) -> str:
    return is_plain_path(path) if path else "it is a path such as /files"


def _pending_problem(kept: timedelta) -> str:
    # Clients and storages may be silent for half of it.
    is_long = kept >= timedelta(minutes=1)
    return "" if is_long else "an upload that does not move is kept for a minute or longer"


def _provider_problem(provider: Any) -> str:
    methods = ("encrypt", "decrypt", "key_id_of", "hmac", "check")
    is_one = provider is None or all(hasattr(provider, name) for name in methods)
    return "" if is_one else f"a {type(provider).__name__} is no key provider, which has {', '.join(methods)}"


def _version_problem(version: int) -> str:
    return "" if version in (1, 2, 3) else "envelopes have the versions 1, 2 and 3"


def _level_problem(level: str) -> str:
    is_none = logging.getLevelName(level.upper()) == f"Level {level.upper()}"
    return f"there is no level {level!r}" if is_none else ""


def _trace_problem(value: Any) -> str:
    return "" if isinstance(value, Trace) else f"{value!r} is not a Trace, such as Trace(enabled=True)"


def _locale_problem(value: Any) -> str:
    if not isinstance(value, LocaleOptions):
        return f"{value!r} is not a LocaleOptions, such as LocaleOptions(supported=('en', 'de'))"
    return "; ".join(value.problems())


class _WithOrigins:
    """Remembers which settings were given, beside the fields of the dataclass."""

    __slots__ = ("_file", "_origins")
    _origins: dict[str, str]
    _file: Path | None  # that was read beside the environment

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        config = super().__new__(cls)
        names = [*list(cls.__dataclass_fields__)[: len(args)], *settings]  # type: ignore[attr-defined]  # of Config
        object.__setattr__(config, "_origins", dict.fromkeys(names, CODE))
        object.__setattr__(config, "_file", None)
        return config


@explain_class
@dataclass(frozen=True, slots=True)
class Config(_WithOrigins):
    """All settings; every one has a default."""

    # A URL or an adapter.
    database: Any = setting(
        "sqlite:///maniflex.db",
        _database_problem,
        variable="DB_WRITE_URL",
        host_name="DATABASE_URL",
        types=object,
        form=lambda value: database_address(value) if isinstance(value, str) else value,
        is_secret=True,
    )
    read_database: str | None = setting(
        None, _replica_problem, variable="DB_READ_URL", read=str, is_secret=True
    )
    auto_migrate: bool = True
    # Relative to the module that makes the server.
    migrations_dir: str | Path = setting("migrations", types=str | Path)
    migrate_on_start: bool = False
    strict: bool = False  # what a start would warn of stops it
    production: bool = False  # and so does what should not be served to the world
    host: str = "127.0.0.1"
    port: int = setting(8080, is_port)
    path_prefix: str = setting("/api", is_plain_path, form=_prefix)
    service_name: str = ""
    # How many before the server, or their networks.
    trusted_proxies: int | Sequence[str] = setting(
        (),
        lambda value: trust_problem(value) or "",
        read=read_proxies,
        form=lambda value: tuple(value) if isinstance(value, list) else value,
    )
    static_dir: str | Path = setting("", types=str | Path)  # nothing is served unless a directory is named
    static_prefix: str = setting("/static", is_plain_path, form=_prefix)
    static_disabled: bool = False
    openapi_enabled: bool = True
    openapi_title: str = ""
    openapi_version: str = "1.0.0"
    openapi_all_methods: bool = False  # describe HEAD and OPTIONS too
    docs_enabled: bool = True
    welcome_enabled: bool = True  # a page at / for a browser on the machine itself
    limits: Limits = setting(DEFAULT_LIMITS, variable=None)
    max_body_size: int = setting(4 * 1024 * 1024, at_least_one, read=parse_size)
    # What becomes of keys of a body that name no field: "ignore" or "refuse".
    unknown_fields: str = setting("ignore", one_of("ignore", "refuse"))
    strict_params: bool = False  # query parameters that nothing reads are 400
    max_exports: int = setting(2, at_least_one)
    query_timeout: timedelta = setting(timedelta(seconds=30), unit="ms")
    # For the headers of a request to arrive.
    head_timeout: timedelta = setting(timedelta(seconds=20), is_some_time)
    # For its body; uploads have one for each part.
    body_timeout: timedelta = setting(timedelta(seconds=60), is_some_time)
    # Of a connection between two requests.
    keep_alive_timeout: timedelta = setting(timedelta(seconds=120), is_some_time)
    max_header_size: int = setting(64 * 1024, at_least_one, read=parse_size)
    shutdown_timeout: timedelta = setting(timedelta(seconds=30), unit="s")
    drain_delay: timedelta = timedelta(0)  # between /ready turning 503 and the end of the listener
    health_check_db: bool = False
    health_timeout: timedelta = timedelta(seconds=3)
    ready_needs_work: bool = False  # /ready also asks whether the work of this process goes on
    publish_readiness_checks: bool = False  # /ready names the checks of `server.readiness`
    probes: tuple[str, ...] = setting(_PROBES, _probes_problem)
    # Who asks the probes sends it as a bearer.
    probes_token: str | None = setting(None, is_secret_text, read=str, is_secret=True)
    metrics_enabled: bool = False
    # Who reads the numbers sends it as a bearer.
    metrics_token: str | None = setting(None, is_secret_text, read=str, is_secret=True)
    metrics_port: int = setting(0, is_port)  # a port of its own for the numbers; 0: that of everything else
    # Requests and statements that take longer are logged; 0: none.
    slow_after: timedelta = timedelta(seconds=1)
    admin_role: str = "admin"  # is shown the times of its requests, where `trace.timings` is on
    pool_size: int = setting(10, at_least_one, variable="DB_POOL_SIZE")
    read_pool_size: int = setting(10, at_least_one, variable="DB_READ_POOL_SIZE")
    # Of a replica that is read from; zero: any.
    read_max_lag: timedelta = setting(timedelta(seconds=10), variable="DB_READ_MAX_LAG")
    # The name of a cookie that says what its client has written; empty: none.
    position_cookie: str = setting("", _cookie_problem, variable="DB_POSITION_COOKIE")
    statement_timeout: timedelta = setting(timedelta(seconds=30), variable="DB_STATEMENT_TIMEOUT")
    lock_timeout: timedelta = setting(timedelta(seconds=5), variable="DB_LOCK_TIMEOUT")
    pool_timeout: timedelta = setting(timedelta(seconds=10), variable="DB_POOL_TIMEOUT")
    idle_in_transaction_timeout: timedelta = setting(
        timedelta(seconds=60), variable="DB_IDLE_IN_TRANSACTION_TIMEOUT"
    )
    application_name: str = setting("maniflex", variable="DB_APPLICATION_NAME")
    schema: str | None = setting(None, variable="DB_SCHEMA", read=str)
    pooler: bool = setting(False, variable="DB_POOLER")
    sqlite_readers: int = setting(4, at_least_one)
    background: bool = True  # whether this process works: runs, schedules, outbox, scheduled fields
    # None: `default.` and the types that have a handler here.
    worker_type_prefixes: tuple[str, ...] = setting((), _prefixes_problem)
    work_concurrency: int = setting(10, at_least_one)
    work_lease: timedelta = setting(timedelta(seconds=30), is_some_time)
    work_poll_interval: timedelta = setting(timedelta(seconds=1), is_some_time)
    work_events: bool = True
    work_retention: timedelta = timedelta(days=30)  # of finished runs; zero keeps them for good
    history_retention: timedelta = timedelta(0)  # of versions in histories; zero keeps them
    audit_retention: timedelta = timedelta(0)  # of records in the tables of audit trails; zero keeps them
    schedule_poll_interval: timedelta = setting(timedelta(seconds=10), is_some_time)
    schedule_lock_timeout: timedelta = setting(timedelta(minutes=5), is_some_time)
    schedule_execution_timeout: timedelta = setting(timedelta(minutes=10), is_some_time)
    outbox_batch_size: int = setting(50, at_least_one)
    outbox_max_attempts: int = setting(10, at_least_one)
    outbox_base_backoff: timedelta = timedelta(seconds=5)
    outbox_poll_interval: timedelta = setting(timedelta(seconds=5), is_some_time)
    event_source: str = setting("", is_source)  # of own events; empty: / and service name, or /maniflex
    event_max_size: int = setting(256 * 1024, at_least_one, read=parse_size)
    event_retention: timedelta = timedelta(days=7)  # zero keeps events for good
    event_poll_interval: timedelta = setting(timedelta(seconds=1), is_some_time)
    webhook_concurrency: int = setting(200, at_least_one)  # requests at once
    webhook_retention: timedelta = timedelta(days=30)  # of settled deliveries; zero keeps them for good
    admin_retention: timedelta = timedelta(days=365)  # of what was done in the panel
    outbox_retention: timedelta = timedelta(days=7)  # of delivered messages; zero keeps them for good
    sweep_interval: timedelta = setting(timedelta(minutes=1), is_some_time)
    sweep_batch_size: int = setting(500, at_least_one)
    retention_interval: timedelta = setting(timedelta(hours=1), is_some_time)  # of `retention=` of models
    # Keys at the top of payloads of runs, messages and schedules that name the person they are about.
    subject_fields: tuple[str, ...] = ()
    # Of files: an address or a Storage; None: there is none.
    storage: Any = setting(None, variable="FILE_STORAGE", read=str, is_secret=True)
    files_routes: bool = True  # POST, GET and DELETE of single files, where there is a storage
    files_path: str = setting("/files", _files_path_problem, form=_prefix)
    # Of these routes alone, behind the auth step.
    files_middleware: Sequence[Callable[..., Any]] = setting((), variable=None)
    # What opens a file on these routes: "key", "owner" or "record".
    files_read: str = setting("key", one_of("key", "owner", "record"))
    files_admin_role: str = "admin"  # may delete files of others
    # None: a key that the database keeps.
    files_signing_key: str | None = setting(None, is_secret_text, read=str, is_secret=True)
    signed_url_ttl: timedelta = setting(timedelta(hours=1), is_some_time)
    max_upload_size: int = setting(32 * 1024 * 1024, at_least_one, read=parse_size)  # of a whole form
    # Of all files of a form; larger ones wait in `upload_dir`.
    upload_memory: int = setting(1024 * 1024, at_least_one, read=parse_size)
    # Empty: the directory of the system for temporary files.
    upload_dir: str | Path = setting("", types=str | Path)
    max_form_parts: int = setting(200, at_least_one)
    # Of an upload that does not move.
    files_pending_ttl: timedelta = setting(timedelta(hours=1), _pending_problem)
    files_unclaimed_ttl: timedelta = timedelta(0)  # of uploads no record names; zero keeps them for good
    file_key: Callable[..., Any] | None = setting(None, is_function, variable=None)
    file_scope: Callable[..., Any] | None = setting(None, is_function, variable=None)
    # Of a scope: the bytes its files may have in all.
    file_quota: Callable[..., Any] | None = setting(None, is_function, variable=None)
    # Of encrypted fields; None: the variables of the environment.
    key_provider: Any = setting(None, _provider_problem, variable=None, is_secret=True)
    key_timeout: timedelta = setting(timedelta(seconds=15), is_some_time)  # of a key provider's answer
    keys_required: bool = True  # a key that lacks stops the start
    # What becomes of stored values of encrypted fields that are plain text: "allow" or "refuse".
    encryption_legacy: str = setting("allow", one_of("allow", "refuse"))
    # Of envelopes: earlier ones do not open.
    encryption_min_version: int = setting(1, _version_problem)
    # What becomes of a request that meets a value that does not open: "fail", or "null" in its place.
    decrypt_errors: str = setting("fail", one_of("fail", "null"))
    # How many opened values of encrypted fields a process remembers; 0: none.
    encryption_cache: int = setting(4096, not_negative)
    # The languages of texts, and how they are shown.
    locale: LocaleOptions = setting(
        DEFAULT_LOCALES,
        _locale_problem,
        variable=None,
        parts={
            "supported": "LOCALE_SUPPORTED",
            "default": "LOCALE_DEFAULT",
            "from_header": "LOCALE_FROM_HEADER",
        },
    )
    # Texts of refusals in other languages, by locale: mappings or .mo files.
    messages: Mapping[str, Any] | None = setting(None, catalogue_problems, variable=None)
    log_level: str = setting("INFO", _level_problem)
    log_json: bool = False
    access_log: bool = True  # a line for every request, under `maniflex run` and `server.run()`
    logger: logging.Logger | None = setting(None, variable=None)
    panic_logger: logging.Logger | None = setting(None, variable=None)
    trace: Trace = setting(Trace(), _trace_problem, variable=None)
    on_start: Callable[[], Any] | None = setting(None, is_function, variable=None)
    on_shutdown: Callable[[], Any] | None = setting(None, is_function, variable=None)
    # Called with what failed, and its exception.
    on_background_panic: Callable[[str, BaseException], Any] | None = setting(
        None, is_function, variable=None
    )

    def __post_init__(self) -> None:
        problems = {}
        for name, one in SETTINGS.items():
            try:
                object.__setattr__(self, name, one.settle(getattr(self, name)))
            except ValueError as problem:
                problems[name] = f"{name}: {problem}"
        together = [text for names, text in self._problems_together() if problems.keys().isdisjoint(names)]
        if problems or together:
            raise ConfigError(*problems.values(), *together)

    def _problems_together(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """What is wrong with two settings beside each other, which may be right on their own."""
        if self.metrics_port and self.metrics_port == self.port:
            why = "it is the same as port; leave it out to have the numbers there"
            yield ("metrics_port", "port"), f"metrics_port: {why}"
        if self.read_database is not None and not str(self.database).startswith(_POSTGRES):
            why = "only a database given as postgresql://… has a replica"
            yield ("read_database",), f"read_database: {why}"
        for code in unreachable_catalogues(self.messages or {}, self.locale.supported):
            yield ("messages", "locale"), f"messages: {code!r} is not among the supported locales"

    def with_(self, **settings: Any) -> Config:
        """The same settings with some of them changed; another database leaves the replica behind."""
        if settings.get("database", self.database) != self.database:
            settings.setdefault("read_database", None)
        origins = {**self._origins, **dict.fromkeys(settings, CODE)}
        return replace(self, **settings)._from(origins, self._file)

    def origin(self, name: str) -> str:
        """Where the value of a setting comes from: `default`, `code`, or the name of a variable."""
        return self._origins.get(name, DEFAULT)

    def _from(self, origins: dict[str, str], file: Path | None) -> Config:
        object.__setattr__(self, "_origins", origins)
        object.__setattr__(self, "_file", file)
        return self

    def variables(self) -> Mapping[str, str]:
        """The variables of the environment, and those of the file of `from_env` that it does not set."""
        return os.environ if self._file is None else read_variables(self._file)

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
        read = read_environment(
            SETTINGS, environ, prefix=prefix, file=file, ignore=ignore, given=set(settings)
        )
        problems = read.problems
        try:
            config = cls(**{**read.values, **settings})
        except ConfigError as error:
            for problem in error.problems:
                name, colon, rest = problem.partition(":")
                problems.append(read.variables.get(name, name) + colon + rest)
        if problems:
            raise ConfigError(*problems)
        origins = {**read.variables, **dict.fromkeys(settings, CODE)}
        return config._from(origins, None if file is None else Path(file))


SETTINGS = settings_of(Config)


def read_variables(file: str | Path) -> dict[str, str]:
    """The variables of the environment, and those of a file such as `.env` that it does not set.

    For what an application itself wants to be told; settings of the server are read by `Config.from_env`.
    """
    variables, problems = read_file(Path(file))
    if problems:
        raise ConfigError(*problems)
    return {**variables, **os.environ}


def sqlite_path(url: str) -> str:
    """The file a `sqlite:` URL names, or `:memory:`; `ConfigError` when it names none."""
    if problem := _sqlite_problem(url):
        raise ConfigError(problem)
    path = url.removeprefix("sqlite:").removeprefix("//")
    if path in ("", ":memory:", "/:memory:"):
        return ":memory:"
    return str(Path(path.removeprefix("/")))


# The keywords of `Server(...)`, for editors and type checkers; a test holds them to the fields of `Config`.


Duration = timedelta | float  # a number is seconds


class Settings(TypedDict, total=False):
    """Every setting of `Config` but the database, each optional."""

    read_database: str | None
    auto_migrate: bool
    migrations_dir: str | Path
    migrate_on_start: bool
    strict: bool
    production: bool
    host: str
    port: int
    path_prefix: str
    service_name: str
    trusted_proxies: int | Sequence[str]
    static_dir: str | Path
    static_prefix: str
    static_disabled: bool
    openapi_enabled: bool
    openapi_title: str
    openapi_version: str
    openapi_all_methods: bool
    docs_enabled: bool
    welcome_enabled: bool
    limits: Limits
    max_body_size: int
    unknown_fields: str
    strict_params: bool
    max_exports: int
    query_timeout: Duration
    head_timeout: Duration
    body_timeout: Duration
    keep_alive_timeout: Duration
    max_header_size: int
    shutdown_timeout: Duration
    drain_delay: Duration
    health_check_db: bool
    health_timeout: Duration
    ready_needs_work: bool
    publish_readiness_checks: bool
    probes: tuple[str, ...]
    probes_token: str | None
    metrics_enabled: bool
    metrics_token: str | None
    metrics_port: int
    slow_after: Duration
    admin_role: str
    pool_size: int
    read_pool_size: int
    read_max_lag: Duration
    position_cookie: str
    statement_timeout: Duration
    lock_timeout: Duration
    pool_timeout: Duration
    idle_in_transaction_timeout: Duration
    application_name: str
    schema: str | None
    pooler: bool
    sqlite_readers: int
    background: bool
    worker_type_prefixes: tuple[str, ...]
    work_concurrency: int
    work_lease: Duration
    work_poll_interval: Duration
    work_events: bool
    work_retention: Duration
    history_retention: Duration
    audit_retention: Duration
    schedule_poll_interval: Duration
    schedule_lock_timeout: Duration
    schedule_execution_timeout: Duration
    outbox_batch_size: int
    outbox_max_attempts: int
    outbox_base_backoff: Duration
    outbox_poll_interval: Duration
    event_source: str
    event_max_size: int
    event_retention: Duration
    event_poll_interval: Duration
    webhook_concurrency: int
    webhook_retention: Duration
    admin_retention: Duration
    outbox_retention: Duration
    sweep_interval: Duration
    sweep_batch_size: int
    retention_interval: Duration
    subject_fields: tuple[str, ...]
    storage: Any
    files_routes: bool
    files_path: str
    files_middleware: Sequence[Callable[..., Any]]
    files_read: str
    files_admin_role: str
    files_signing_key: str | None
    signed_url_ttl: Duration
    max_upload_size: int
    upload_memory: int
    upload_dir: str | Path
    max_form_parts: int
    files_pending_ttl: Duration
    files_unclaimed_ttl: Duration
    file_key: Callable[..., Any] | None
    file_scope: Callable[..., Any] | None
    file_quota: Callable[..., Any] | None
    key_provider: Any
    key_timeout: Duration
    keys_required: bool
    encryption_legacy: str
    encryption_min_version: int
    decrypt_errors: str
    encryption_cache: int
    locale: LocaleOptions
    messages: Mapping[str, Any] | None
    log_level: str
    log_json: bool
    access_log: bool
    logger: logging.Logger | None
    panic_logger: logging.Logger | None
    trace: Trace
    on_start: Callable[[], Any] | None
    on_shutdown: Callable[[], Any] | None
    on_background_panic: Callable[[str, BaseException], Any] | None
