"""Settings: given in code, read from the environment, refused all at once and never shown with a password."""

from __future__ import annotations

import logging
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from maniflex import Config, Model, Server
from maniflex.config import SETTINGS, Settings, Trace, sqlite_path
from maniflex.errors import ConfigError, DeclarationError
from maniflex.testing import client

A_SECRET = "hunter2"

VARIABLES = {setting.variable: name for name, setting in SETTINGS.items() if setting.variable}

# What each variable is set to here, and what the setting must become.
READ: dict[str, tuple[str, Any]] = {
    "DB_WRITE_URL": ("postgresql://db/app", "postgresql://db/app"),
    "DB_READ_URL": ("postgresql://replica/app", "postgresql://replica/app"),
    "AUTO_MIGRATE": ("off", False),
    "MIGRATIONS_DIR": ("db/migrations", "db/migrations"),
    "MIGRATE_ON_START": ("on", True),
    "STRICT": ("on", True),
    "PRODUCTION": ("on", True),
    "HOST": ("0.0.0.0", "0.0.0.0"),
    "PORT": ("9001", 9001),
    "PATH_PREFIX": ("v1/", "/v1"),
    "SERVICE_NAME": ("orders", "orders"),
    "TRUSTED_PROXIES": ("2", 2),
    "STATIC_DIR": ("public", "public"),
    "STATIC_PREFIX": ("assets", "/assets"),
    "STATIC_DISABLED": ("yes", True),
    "MAX_BODY_SIZE": ("512KB", 512 * 1024),
    "UNKNOWN_FIELDS": ("refuse", "refuse"),
    "STRICT_PARAMS": ("true", True),
    "MAX_EXPORTS": ("5", 5),
    "QUERY_TIMEOUT": ("500ms", timedelta(milliseconds=500)),
    "HEAD_TIMEOUT": ("5s", timedelta(seconds=5)),
    "BODY_TIMEOUT": ("90s", timedelta(seconds=90)),
    "KEEP_ALIVE_TIMEOUT": ("75s", timedelta(seconds=75)),
    "MAX_HEADER_SIZE": ("16KB", 16 * 1024),
    "SHUTDOWN_TIMEOUT": ("2m", timedelta(minutes=2)),
    "DRAIN_DELAY": ("3s", timedelta(seconds=3)),
    "ADMIN_RETENTION": ("2m", timedelta(minutes=2)),
    "HEALTH_CHECK_DB": ("1", True),
    "HEALTH_TIMEOUT": ("1.5s", timedelta(seconds=1.5)),
    "DB_POOL_SIZE": ("7", 7),
    "DB_READ_POOL_SIZE": ("3", 3),
    "DB_READ_MAX_LAG": ("3s", timedelta(seconds=3)),
    "DB_POSITION_COOKIE": ("seen", "seen"),
    "DB_STATEMENT_TIMEOUT": ("1h", timedelta(hours=1)),
    "DB_LOCK_TIMEOUT": ("250 ms", timedelta(milliseconds=250)),
    "DB_POOL_TIMEOUT": ("3s", timedelta(seconds=3)),
    "DB_IDLE_IN_TRANSACTION_TIMEOUT": ("90", timedelta(seconds=90)),
    "DB_APPLICATION_NAME": ("orders-api", "orders-api"),
    "DB_SCHEMA": ("sales", "sales"),
    "DB_POOLER": ("true", True),
    "SQLITE_READERS": ("2", 2),
    "LOG_LEVEL": ("debug", "debug"),
    "LOG_JSON": ("on", True),
    "ACCESS_LOG": ("off", False),
    "OPENAPI_ENABLED": ("no", False),
    "OPENAPI_TITLE": ("Orders", "Orders"),
    "OPENAPI_VERSION": ("2.1", "2.1"),
    "OPENAPI_ALL_METHODS": ("true", True),
    "DOCS_ENABLED": ("off", False),
    "WELCOME_ENABLED": ("off", False),
    "READY_NEEDS_WORK": ("true", True),
    "PUBLISH_READINESS_CHECKS": ("true", True),
    "PROBES": ("live, ready", ("live", "ready")),
    "PROBES_TOKEN": ("a token of some length", "a token of some length"),
    "METRICS_ENABLED": ("on", True),
    "METRICS_TOKEN": ("a token of some length", "a token of some length"),
    "METRICS_PORT": ("9100", 9100),
    "SLOW_AFTER": ("250ms", timedelta(milliseconds=250)),
    "ADMIN_ROLE": ("operator", "operator"),
    "BACKGROUND": ("false", False),
    "WORKER_TYPE_PREFIXES": ("billing., email.,", ("billing.", "email.")),
    "WORK_CONCURRENCY": ("4", 4),
    "WORK_LEASE": ("45s", timedelta(seconds=45)),
    "WORK_POLL_INTERVAL": ("250ms", timedelta(milliseconds=250)),
    "WORK_EVENTS": ("no", False),
    "WORK_RETENTION": ("7d", timedelta(days=7)),
    "HISTORY_RETENTION": ("2y", timedelta(days=730)),
    "AUDIT_RETENTION": ("365d", timedelta(days=365)),
    "SCHEDULE_POLL_INTERVAL": ("5s", timedelta(seconds=5)),
    "SCHEDULE_LOCK_TIMEOUT": ("1m", timedelta(minutes=1)),
    "SCHEDULE_EXECUTION_TIMEOUT": ("2m", timedelta(minutes=2)),
    "OUTBOX_BATCH_SIZE": ("200", 200),
    "OUTBOX_MAX_ATTEMPTS": ("3", 3),
    "OUTBOX_BASE_BACKOFF": ("1s", timedelta(seconds=1)),
    "OUTBOX_POLL_INTERVAL": ("2s", timedelta(seconds=2)),
    "EVENT_SOURCE": ("/shop", "/shop"),
    "EVENT_MAX_SIZE": ("1MB", 1024 * 1024),
    "EVENT_RETENTION": ("0", timedelta(0)),
    "EVENT_POLL_INTERVAL": ("100ms", timedelta(milliseconds=100)),
    "WEBHOOK_CONCURRENCY": ("20", 20),
    "WEBHOOK_RETENTION": ("7d", timedelta(days=7)),
    "OUTBOX_RETENTION": ("0", timedelta(0)),
    "SWEEP_INTERVAL": ("10s", timedelta(seconds=10)),
    "SWEEP_BATCH_SIZE": ("50", 50),
    "SUBJECT_FIELDS": ("customer_id, user_id", ("customer_id", "user_id")),
    "RETENTION_INTERVAL": ("30m", timedelta(minutes=30)),
    "FILE_STORAGE": ("file:uploads", "file:uploads"),
    "FILES_ROUTES": ("no", False),
    "FILES_PATH": ("/media", "/media"),
    "FILES_READ": ("owner", "owner"),
    "FILES_ADMIN_ROLE": ("keeper", "keeper"),
    "FILES_SIGNING_KEY": ("a secret of some length", "a secret of some length"),
    "SIGNED_URL_TTL": ("10m", timedelta(minutes=10)),
    "MAX_UPLOAD_SIZE": ("64MB", 64 * 1024**2),
    "UPLOAD_MEMORY": ("64KB", 64 * 1024),
    "UPLOAD_DIR": ("/var/spool", "/var/spool"),
    "MAX_FORM_PARTS": ("20", 20),
    "FILES_PENDING_TTL": ("30m", timedelta(minutes=30)),
    "FILES_UNCLAIMED_TTL": ("7d", timedelta(days=7)),
    "KEYS_REQUIRED": ("no", False),
    "ENCRYPTION_LEGACY": ("refuse", "refuse"),
    "ENCRYPTION_MIN_VERSION": ("3", 3),
    "ENCRYPTION_CACHE": ("0", 0),
    "KEY_TIMEOUT": ("3", timedelta(seconds=3)),
    "DECRYPT_ERRORS": ("null", "null"),
}

UNREADABLE = {
    "AUTO_MIGRATE": "maybe",
    "PORT": "eighty",
    "STATIC_DISABLED": "2",
    "MAX_BODY_SIZE": "4 apples",
    "QUERY_TIMEOUT": "soon",
    "HEAD_TIMEOUT": "0",
    "MAX_HEADER_SIZE": "0",
    "SHUTDOWN_TIMEOUT": "-5s",
    "HEALTH_TIMEOUT": "9" * 400,
    "DB_STATEMENT_TIMEOUT": "99999999999999h",
    "DB_POOL_SIZE": "1.5",
    "LOG_JSON": "json",
    "LOG_LEVEL": "LOUD",
    "DB_WRITE_URL": "mysql://db/app",
    "SQLITE_READERS": "0",
    "WORK_CONCURRENCY": "0",
    "WORK_LEASE": "0s",
    "OUTBOX_BATCH_SIZE": "many",
    "SWEEP_INTERVAL": "0",
    "FILES_PATH": "/",
    "FILES_READ": "everybody",
    "FILES_SIGNING_KEY": "short",
    "METRICS_TOKEN": "short",
    "PROBES_TOKEN": "short",
    "PROBES": "life",
    "STRICT": "very",
    "METRICS_PORT": "70000",
    "SLOW_AFTER": "soon",
    "FILES_PENDING_TTL": "0",
    "ENCRYPTION_LEGACY": "keep",
    "ENCRYPTION_MIN_VERSION": "4",
    "ENCRYPTION_CACHE": "-1",
    "KEY_TIMEOUT": "0",
    "DECRYPT_ERRORS": "hide",
    "UPLOAD_MEMORY": "much",
}


def test_the_table_above_has_every_variable() -> None:
    assert READ.keys() == VARIABLES.keys()


@pytest.mark.parametrize("variable", READ)
def test_each_variable_sets_its_setting_and_nothing_else(variable: str) -> None:
    text, expected = READ[variable]
    setting = VARIABLES[variable]
    database = {"DB_WRITE_URL": "postgresql://db/other"}  # the default has no replica

    config = Config.from_env({**database, variable: text})

    assert getattr(config, setting) == expected
    untouched = Config.from_env(database)
    for other in fields(Config):
        if other.name != setting:
            assert getattr(config, other.name) == getattr(untouched, other.name), other.name


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Config.from_env({}) == Config()
    assert Config.from_env(dict.fromkeys(VARIABLES, "")) == Config()


def test_the_process_environment_is_read_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "9002")

    assert Config.from_env().port == 9002


def test_an_argument_wins_over_a_variable_even_over_an_unreadable_one() -> None:
    assert Config.from_env({"PORT": "eighty"}, port=81).port == 81


@pytest.mark.parametrize("variable", UNREADABLE)
def test_a_variable_that_cannot_be_used_stops_the_start_and_is_named(variable: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config.from_env({variable: UNREADABLE[variable]})

    [problem] = refused.value.problems
    assert problem.startswith(f"{variable}: ")


def test_all_bad_variables_are_listed_together() -> None:
    unreadable = {name: text for name, text in UNREADABLE.items() if name != "SQLITE_READERS"}

    with pytest.raises(ConfigError) as refused:
        Config.from_env({**unreadable, "HOST": "::1"})

    named = {problem.partition(":")[0] for problem in refused.value.problems}
    assert named == unreadable.keys()
    assert str(refused.value).startswith(f"{len(unreadable)} problems:")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (5, timedelta(seconds=5)),
        (0.25, timedelta(milliseconds=250)),
        (timedelta(minutes=1), timedelta(minutes=1)),
    ],
)
def test_a_duration_is_a_timedelta_or_seconds(given: Any, expected: timedelta) -> None:
    assert Config(query_timeout=given).query_timeout == expected


@pytest.mark.parametrize("wrong", [-1, "30s", True, float("inf"), float("nan"), timedelta(seconds=-1), None])
def test_what_is_no_duration_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"shutdown_timeout: .* is not a duration"):
        Config(shutdown_timeout=wrong)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"port": 70000}, "port"),
        ({"port": "8080"}, "port"),
        ({"port": True}, "port"),
        ({"auto_migrate": 1}, "auto_migrate"),
        ({"pool_size": 0}, "pool_size"),
        ({"read_pool_size": -1}, "read_pool_size"),
        ({"position_cookie": "a b"}, "position_cookie"),
        ({"sqlite_readers": 0}, "sqlite_readers"),
        ({"max_body_size": 0}, "max_body_size"),
        ({"log_level": "LOUD"}, "log_level"),
        ({"host": 5}, "host"),
        ({"service_name": None}, "service_name"),
        ({"trace": True}, "trace"),
        ({"database": "blog"}, "database"),
        ({"database": Path("blog.db")}, "database"),
        ({"database": "sqlite:///blog.db?mode=ro"}, "database"),
        ({"database": "sqlite:///"}, "database"),
        ({"database": "sqlite:"}, "database"),
        ({"path_prefix": "/api/{version}"}, "path_prefix"),
        ({"path_prefix": "/my api"}, "path_prefix"),
        ({"path_prefix": "/api?v=1"}, "path_prefix"),
        ({"path_prefix": "/api#1"}, "path_prefix"),
        ({"path_prefix": "/a%20b"}, "path_prefix"),
        ({"path_prefix": "/api/../v1"}, "path_prefix"),
        ({"path_prefix": "/api\n"}, "path_prefix"),
        ({"static_prefix": "/{static}"}, "static_prefix"),
        ({"read_database": "postgresql://replica/app"}, "read_database"),
        ({"database": ":memory:", "read_database": "postgresql://replica/app"}, "read_database"),
        ({"database": "postgresql://db/app", "read_database": "replica"}, "read_database"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}: "):
        Config(**settings)


def test_all_bad_values_are_listed_together() -> None:
    with pytest.raises(ConfigError) as refused:
        Config(port=70000, pool_size=0, log_level="LOUD", database="blog")

    assert len(refused.value.problems) == 4


@pytest.mark.parametrize(
    ("given", "meant"), [("databse", "database"), ("shutdown_timout", "shutdown_timeout"), ("Port", "port")]
)
def test_an_unknown_setting_names_the_one_that_was_meant(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no setting {given!r}; did you mean {meant!r}"):
        Server(None, **dict[str, Any]({given: 1}))


@pytest.mark.parametrize(
    "address",
    [
        f"mysql://root:{A_SECRET}@db/app",
        f"mysql://root:a/{A_SECRET}@db/app",
        f"mysql://root:a@{A_SECRET}@db/app",
        f"mysql:root:{A_SECRET}@db",
        f"mysql://db/app?password={A_SECRET}",
        f"host=db password={A_SECRET}",
        f"//root:{A_SECRET}@db/app",
    ],
)
def test_the_message_about_an_address_shows_no_password(address: str) -> None:
    with pytest.raises(ConfigError, match="database") as refused:
        Config(database=address)

    assert A_SECRET not in str(refused.value)


def test_an_address_in_a_setting_is_not_in_its_representation() -> None:
    secret = f"postgresql://app:{A_SECRET}@db/app"
    server = Server(database=secret, read_database=secret)

    assert A_SECRET not in repr(server.config) + repr(server)


def test_a_bad_postgres_address_is_refused_without_its_password() -> None:
    server = Server(database=f"postgresql://app:{A_SECRET}@ho:st:99999/app")

    with pytest.raises(ConfigError) as refused:
        server.seal()

    assert A_SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "prefix"), [("/api", "/api"), ("api/", "/api"), ("//api//v2/", "/api/v2"), ("/", ""), ("", "")]
)
async def test_a_path_prefix_is_the_same_however_its_slashes_are_written(given: str, prefix: str) -> None:
    server = Server(path_prefix=given)

    @server.action("GET", "/ping")
    async def ping(ctx: Any) -> dict[str, bool]:
        return {"pong": True}

    assert server.config.path_prefix == prefix
    assert ("GET", f"{prefix}/ping", "action ping") in server.routes


def test_with_changes_some_settings_and_keeps_the_rest() -> None:
    before = Config(port=9000, log_json=True)

    after = before.with_(port=9001)

    assert (before.port, after.port, after.log_json) == (9000, 9001, True)


def test_another_database_leaves_the_replica_of_the_first_behind() -> None:
    before = Config(database="postgresql://db/app", read_database="postgresql://replica/app")

    assert before.with_(database=":memory:").read_database is None
    assert before.with_(database="postgresql://db/other").read_database is None
    assert before.with_(database="postgresql://db/app").read_database == "postgresql://replica/app"
    assert before.with_(port=1).read_database == "postgresql://replica/app"


@pytest.mark.parametrize("address", [":memory:", "sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_asked_for_by_name(address: str) -> None:
    assert sqlite_path(Config(database=address).database) == ":memory:"


def test_a_model_on_a_sqlite_address_with_options_is_named() -> None:
    class Elsewhere(Model, database="sqlite:///x.db?mode=ro"):
        text: str

    server = Server(":memory:")
    server.register(Elsewhere)

    with pytest.raises(DeclarationError, match=r"Elsewhere: database: a sqlite: address takes no options"):
        server.seal()


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        Config().port = 9  # type: ignore[misc]


async def test_a_config_object_and_single_settings_can_be_combined() -> None:
    server = Server(Config(port=9000, service_name="orders"), port=9001)

    assert (server.config.port, server.config.service_name) == (9001, "orders")
    async with client(server) as http:
        assert (await http.get("/live")).headers["x-service-name"] == "orders"


def test_trace_enabled_stands_for_steps_timings_and_aborts() -> None:
    trace = Trace(enabled=True)

    on = {flag.name for flag in fields(Trace) if trace.on(flag.name)}
    assert on == {"enabled", "steps", "timings", "aborts"}


async def test_lines_go_to_the_logger_that_was_given(caplog: pytest.LogCaptureFixture) -> None:
    mine, panics = logging.getLogger("mine"), logging.getLogger("mine.panics")
    server = Server(logger=mine, panic_logger=panics)

    @server.action("GET", "/boom")
    async def boom(ctx: Any) -> None:
        ctx.logger.warning("about to fail")
        raise RuntimeError("the cause")

    async with client(server) as http:
        failed = await http.get("/api/boom", headers={"X-Request-Id": "r-1"})

    assert failed.status_code == 500
    assert "the cause" not in failed.text
    lines = [(r.name, r.getMessage()) for r in caplog.records if getattr(r, "request_id", "") == "r-1"]
    assert lines[0] == ("mine", "about to fail")
    assert lines[1][0] == "mine.panics"
    assert "the cause" in lines[1][1]


def test_the_typed_keywords_of_a_server_are_the_settings() -> None:
    duration = "timedelta"
    declared = {f.name: str(f.type).replace(duration, "Duration") for f in fields(Config)}
    del declared["database"]  # the first argument of a server

    keywords = {name: str(t.__forward_arg__) for name, t in Settings.__annotations__.items()}
    lines = [f"{name}: {kind}" for name, kind in declared.items() if keywords.get(name) != kind]
    assert not lines, "write into Settings of config.py:\n    " + "\n    ".join(lines)
    assert keywords.keys() == declared.keys()
