"""The machine under the databases: disks, libraries, servers, pools, clocks; each fault under its code."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from maniflex import Model, Server, field
from maniflex.config import sqlite_path
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.doctor import database_checks
from maniflex.doctor.check import Severity
from maniflex.middleware import auth
from maniflex.testing import FakeClock
from tests.kit.doctor import Leaflet, codes_of, declared, report_on, sound_server, stored
from tests.kit.postgres import as_role, execute
from tests.kit.processes import accepts, free_port
from tests.kit.waiting import until

ANOTHER_USER = 65534 if os.getuid() == 0 else None  # for whom rights count
PATH = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"
SESSION_SETTINGS = (
    *("jit", "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"),
    *("default_transaction_read_only", "extra_float_digits"),
)
GRANTS = "GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON leaflets TO {role}"
SET_ZONE = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I {}', current_database()); END $$"


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that other users can read."""
    with TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


class Article(Model):
    text: str = field(searchable=True)


async def made(url: str) -> Server:
    """A server whose tables are there."""
    server = sound_server(url)
    async with server.lifespan():
        pass
    return sound_server(url)


# -- SQLite


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        ("nfs4", Severity.ERROR),
        ("cifs", Severity.ERROR),
        ("fuse.sshfs", Severity.ERROR),
        ("9p", Severity.ERROR),
        ("overlay", Severity.WARNING),
    ],
)
async def test_a_file_on_a_network_or_overlay_disk_is_found(
    tmp_path: Path, kind: str, severity: Severity, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    place = str(tmp_path / "my data").replace(" ", "\\040")
    mounts.write_text(
        f"/dev/vda / ext4 rw 0 0\nhost:/x {place} {kind} rw 0 0\ntmpfs /dev/other tmpfs rw 0 0\n"
    )
    monkeypatch.setattr(database_checks, "MOUNTS", mounts)
    (tmp_path / "my data").mkdir()

    [finding] = await declared(sound_server(f"sqlite:///{tmp_path}/my data/app.db"))

    assert (finding.code, finding.severity) == ("T141", severity)
    assert f"({kind})" in finding.where


async def test_a_local_disk_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nhost:/x {tmp_path}/da nfs rw 0 0\n")
    monkeypatch.setattr(database_checks, "MOUNTS", mounts)
    (tmp_path / "data").mkdir()

    assert await declared(sound_server(f"sqlite:///{tmp_path}/data/app.db")) == []


async def test_a_file_without_write_ahead_log_is_found(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "old.db") as connection:
        connection.execute("CREATE TABLE other (a)")

    findings = await declared(sound_server(f"sqlite:///{tmp_path}/old.db"))

    assert codes_of(findings) == ["T143", "T176"]


async def test_commits_that_do_not_wait_for_the_disk_are_found(tmp_path: Path) -> None:
    server = Server(SqliteAdapter(str(tmp_path / "fast.db"), durable=False))
    server.register(Leaflet)
    server.pipeline.auth.register(auth.allow_anonymous())

    assert codes_of(await declared(server)) == ["T144"]


async def test_an_old_library_is_found(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))

    assert codes_of(await declared(sound_server(sqlite_url))) == ["T145"]


async def test_a_library_without_search_is_found(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_checks, "FTS5", "ENABLE_NO_SUCH_THING")

    assert codes_of(await declared(sound_server(sqlite_url, Article))) == ["T146"]
    assert await declared(sound_server(sqlite_url)) == []


def test_a_directory_that_cannot_be_written_is_found() -> None:
    with open_directory() as directory:
        directory.chmod(0o555)
        subject = sound_server(f"sqlite:///{directory}/app.db").doctor_subject()
        user = os.geteuid()
        os.seteuid(ANOTHER_USER or user)
        try:
            problems = list(database_checks.readonly_directories(subject))
        finally:
            os.seteuid(user)

    [problem] = problems
    assert problem.where == str(directory)
    assert "every write fails" in problem.why


async def test_a_directory_that_is_not_there_is_found(tmp_path: Path) -> None:
    assert codes_of(await declared(sound_server(f"sqlite:///{tmp_path}/nowhere/app.db"))) == ["T147"]


async def test_a_disk_that_is_nearly_full_is_found(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_checks, "LEAST_FREE", 1 << 62)

    assert codes_of(await declared(sound_server(sqlite_url))) == ["T148"]


async def test_a_long_log_is_found(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_checks, "WARN_BYTES", 1)
    server = sound_server(sqlite_url)
    async with server.lifespan():
        await server.db(Leaflet).create(title="x")

        assert "T150" in codes_of(await declared(sound_server(sqlite_url)))
    assert "T150" not in codes_of(await declared(sound_server(sqlite_url)))


async def test_a_damaged_file_is_found(sqlite_url: str) -> None:
    server = await made(sqlite_url)
    async with server.lifespan():
        await server.db(Leaflet).create(title="x")
    damage(Path(sqlite_path(sqlite_url)))

    findings = await report_on(sound_server(sqlite_url))

    assert "T149" in codes_of([f for f in findings.findings if f.severity is Severity.ERROR])


def damage(path: Path) -> None:
    """Write nonsense into a page that holds rows or an index."""
    with path.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * 2048)


async def test_a_sound_file_is_not_found(sqlite_url: str) -> None:
    assert await stored(await made(sqlite_url)) == []


# -- PostgreSQL


async def test_a_pool_above_half_of_the_connections_is_found(postgres_url: str) -> None:
    await made(postgres_url)

    [finding] = await stored(sound_server(postgres_url, pool_size=5_000))

    assert finding.code == "T131"
    assert "pool_size=" in finding.fix


async def test_a_pool_smaller_than_the_concurrency_is_found(postgres_url: str, sqlite_url: str) -> None:
    def server_on(url: str) -> Server:
        server = sound_server(url, pool_size=2, work_concurrency=5)
        server.work.handler("a.b")(lambda run: None)
        return server

    assert codes_of(await declared(server_on(postgres_url))) == ["T132"]
    assert await declared(server_on(sqlite_url)) == []  # it has no pool


@pytest.mark.parametrize("name", ["statement_timeout", "lock_timeout", "pool_timeout"])
async def test_a_timeout_of_nothing_is_found(name: str) -> None:
    settings: dict[str, Any] = {name: timedelta(0)}

    [finding] = await declared(sound_server(**settings))

    assert (finding.code, finding.where) == ("T133", f"{name}=0")


@contextmanager
def pgbouncer(url: str, ignored: str) -> Iterator[str]:
    """A transaction pooler before the database."""
    port, address = free_port(), urlsplit(url)
    settings = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "auth_type": "any",
        "pool_mode": "transaction",
        "unix_socket_dir": "",
        "ignore_startup_parameters": ignored,
    }
    lines = [f"{name} = {value}" for name, value in settings.items()]
    target = f"* = host={address.hostname} port={address.port} user={address.username}"
    with open_directory() as directory:
        file = directory / "bouncer.ini"
        file.write_text("\n".join(["[databases]", target, "[pgbouncer]", *lines, ""]))
        process = subprocess.Popen(
            [which("pgbouncer", path=PATH) or "pgbouncer", str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=ANOTHER_USER,
        )
        try:
            until(lambda: accepts(port), "the pooler")
            yield f"postgresql://{address.username}@127.0.0.1:{port}{address.path}"
        finally:
            process.kill()
            process.wait()


@pytest.mark.skipif(which("pgbouncer", path=PATH) is None, reason="pgbouncer is not installed")
@pytest.mark.parametrize(
    "ignored",
    ["extra_float_digits", ",".join(SESSION_SETTINGS)],
    ids=["refuses settings", "takes settings"],
)
async def test_a_pooler_that_the_settings_do_not_know_is_found(postgres_url: str, ignored: str) -> None:
    await made(postgres_url)
    with pgbouncer(postgres_url, ignored) as url:
        findings = (await report_on(sound_server(url))).findings

    [finding] = [finding for finding in findings if finding.code == "T134"]
    assert finding.severity is Severity.ERROR
    assert "pooler=True" in finding.fix


async def test_a_superuser_is_found_and_an_ordinary_role_is_not(postgres_url: str) -> None:
    await made(postgres_url)
    role = f"app_{os.getpid()}"
    await execute(postgres_url, f"CREATE ROLE {role} LOGIN; {GRANTS.format(role=role)}")
    try:
        as_owner = (await report_on(sound_server(postgres_url))).findings
        as_app = await report_on(sound_server(as_role(postgres_url, role)))
    finally:
        await execute(postgres_url, f"DROP OWNED BY {role}; DROP ROLE {role}")

    assert codes_of(list(as_owner)) == ["T135"]
    assert as_app.findings == ()


async def test_another_time_zone_is_found(postgres_url: str) -> None:
    await made(postgres_url)
    await execute(postgres_url, SET_ZONE.format("SET timezone = ''Asia/Tokyo''"))
    try:
        findings = await stored(sound_server(postgres_url, pooler=True))
    finally:
        await execute(postgres_url, SET_ZONE.format("RESET timezone"))

    assert codes_of(findings) == ["T136"]
    assert "Asia/Tokyo" in findings[0].why


async def test_an_old_server_is_found(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await made(postgres_url)
    monkeypatch.setattr(database_checks, "OLDEST_SERVER", 990_000)

    assert codes_of(await stored(sound_server(postgres_url))) == ["T136"]


async def test_a_clock_that_differs_is_found(postgres_url: str) -> None:
    await made(postgres_url)
    server = Server(postgres_url, clock=FakeClock(datetime.now(UTC) + timedelta(seconds=30)))
    server.register(Leaflet)
    server.pipeline.auth.register(auth.allow_anonymous())

    [finding] = await stored(server)

    assert finding.code == "T137"
    assert " s apart" in finding.why


async def test_an_old_transaction_is_found_with_its_session(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(postgres_url)
    monkeypatch.setattr(database_checks, "OLD_TRANSACTION", timedelta(microseconds=1))
    other = await asyncpg.connect(postgres_url, server_settings={"application_name": "report"})
    transaction = other.transaction()
    await transaction.start()
    session = await other.fetchrow("SELECT pg_backend_pid(), current_user")
    assert session is not None
    pid, role = session

    findings = await stored(sound_server(postgres_url))

    await transaction.rollback()
    await other.close()
    [finding] = findings
    assert finding.code == "T138"
    assert f"session {pid} of {role} (report, idle in transaction)" in finding.where
    assert f"pg_terminate_backend({pid})" in finding.fix
