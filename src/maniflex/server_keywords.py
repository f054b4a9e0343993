"""The keywords of `Server(...)`, for editors and type checkers.

`Config` is where settings are defined and checked; a test holds this list to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

from maniflex.config import Limits, Trace

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
    admin_retention: Duration
    outbox_retention: Duration
    sweep_interval: Duration
    sweep_batch_size: int
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
    log_level: str
    log_json: bool
    access_log: bool
    logger: logging.Logger | None
    panic_logger: logging.Logger | None
    trace: Trace
    on_start: Callable[[], Any] | None
    on_shutdown: Callable[[], Any] | None
    on_background_panic: Callable[[str, BaseException], Any] | None
