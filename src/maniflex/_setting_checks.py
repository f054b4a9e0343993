"""What is wrong with the values of settings, beyond their types."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from maniflex._client_address import trust_problem

if TYPE_CHECKING:
    from maniflex.config import Config

PROBES = ("health", "live", "ready")
FILES_READ = ("key", "owner", "record")
SHORTEST_PENDING = timedelta(minutes=1)  # clients and storages may be silent for half of it
SHORTEST_SECRET = 16  # bytes, of a signing key or a token
_POSTGRES = ("postgresql://", "postgres://")
_POSITIVE = (
    "pool_size",
    "read_pool_size",
    "sqlite_readers",
    "max_body_size",
    "max_header_size",
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
    "head_timeout",
    "body_timeout",
    "keep_alive_timeout",
    "work_lease",
    "work_poll_interval",
    "schedule_poll_interval",
    "schedule_lock_timeout",
    "schedule_execution_timeout",
    "outbox_poll_interval",
    "sweep_interval",
    "signed_url_ttl",
)
_COOKIE_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# A request's path comes decoded and without a query, so none of these would ever be found in it.
_NOT_IN_A_PATH = re.compile(r"[\s\x00-\x1f\x7f{}?#%\\]")


def setting_problems(config: Config) -> list[str]:
    """The problems of settings that all have the right type, one sentence each."""
    return [
        *_number_problems(config),
        *_path_problems(config),
        *_choice_problems(config),
        *_address_problems(config),
        *_file_problems(config),
        *_secret_problems(config),
        *_function_problems(config),
    ]


def _number_problems(config: Config) -> Iterator[str]:
    for name in ("port", "metrics_port"):
        if not 0 <= getattr(config, name) <= 65535:
            yield f"{name}: {getattr(config, name)} is not a port number"
    if config.metrics_port and config.metrics_port == config.port:
        yield "metrics_port: it is the same as port; leave it out to have the numbers there"
    for name in _POSITIVE:
        value = getattr(config, name)
        if value < 1:
            yield f"{name}: {value} is less than 1"
    yield from (f"{name}: must be more than nothing" for name in _INTERVALS if not getattr(config, name))


def _path_problems(config: Config) -> Iterator[str]:
    for name in ("path_prefix", "static_prefix", "files_path"):
        prefix = getattr(config, name)
        if _NOT_IN_A_PATH.search(prefix) or {".", ".."} & set(prefix.split("/")):
            yield f"{name}: {prefix!r} is not a plain path such as /api/v1"


def _choice_problems(config: Config) -> Iterator[str]:
    prefixes: Any = config.worker_type_prefixes
    if not isinstance(prefixes, tuple) or not all(p and isinstance(p, str) for p in prefixes):
        yield "worker_type_prefixes: it is a tuple of texts such as ('billing.', 'email.')"
    probes: Any = config.probes
    if not isinstance(probes, tuple) or not set(probes) <= set(PROBES):
        yield f"probes: it is a tuple of some of {', '.join(PROBES)}"
    if config.unknown_fields not in ("ignore", "refuse"):
        yield f"unknown_fields: {config.unknown_fields!r} is neither 'ignore' nor 'refuse'"
    if problem := trust_problem(config.trusted_proxies):
        yield f"trusted_proxies: {problem}"
    level = str(config.log_level).upper()
    if logging.getLevelName(level) == f"Level {level}":
        yield f"log_level: there is no level {config.log_level!r}"


def _address_problems(config: Config) -> Iterator[str]:
    if not isinstance(config.database, str):
        if not hasattr(config.database, "transaction"):
            kind = type(config.database).__name__
            yield f"database: a {kind} is neither an address nor an adapter"
    elif config.database.startswith("sqlite:"):
        yield from (f"database: {problem}" for problem in sqlite_problems(config.database))
    elif not config.database.startswith(_POSTGRES) and config.database != ":memory:":
        yield f"database: {_harmless_part(config.database)} is neither sqlite:///file nor postgresql://…"
    if config.position_cookie and not _COOKIE_NAME.fullmatch(config.position_cookie):
        yield f"position_cookie: {config.position_cookie!r} is not the name of a cookie"
    if config.read_database is not None:
        if not str(config.read_database).startswith(_POSTGRES):
            yield "read_database: a replica has an address like postgresql://…"
        elif not str(config.database).startswith(_POSTGRES):
            yield "read_database: only a database given as postgresql://… has a replica"


def _file_problems(config: Config) -> Iterator[str]:
    if not config.files_path:
        yield "files_path: it is a path such as /files"
    if config.files_pending_ttl < SHORTEST_PENDING:
        yield "files_pending_ttl: an upload that does not move is kept for a minute or longer"
    if config.files_read not in FILES_READ:
        yield f"files_read: {config.files_read!r} is none of {', '.join(FILES_READ)}"


def _secret_problems(config: Config) -> Iterator[str]:
    for name in ("files_signing_key", "metrics_token", "probes_token"):
        secret: Any = getattr(config, name)
        if secret is not None and (not isinstance(secret, str) or len(secret.encode()) < SHORTEST_SECRET):
            yield f"{name}: it is a text of {SHORTEST_SECRET} bytes or more"


def _function_problems(config: Config) -> Iterator[str]:
    for name in ("file_key", "file_scope", "file_quota", "on_start", "on_shutdown", "on_background_panic"):
        value: Any = getattr(config, name)
        if value is not None and not callable(value):
            yield f"{name}: {value!r} cannot be called"


def sqlite_problems(url: str) -> list[str]:
    """Why a `sqlite:` address cannot be used."""
    if url in ("sqlite:", "sqlite:///"):
        return ["the address names no file; a database in memory is sqlite:// or :memory:"]
    if "?" in url:
        return ["a sqlite: address takes no options; leave out what begins with '?'"]
    return []


def _harmless_part(url: str) -> str:
    """As much of an address as surely is no password: a plain file name, or the scheme."""
    if re.fullmatch(r"[\w./\\-]*", url):
        return repr(url)
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url)
    return repr(f"{scheme[0]}…") if scheme else "what is given"
