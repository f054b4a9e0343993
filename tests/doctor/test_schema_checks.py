"""Tables and migrations that are not what they should be: each planted fault under its code."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from maniflex import Model, field
from maniflex.doctor.check import Severity
from tests.kit.doctor import codes_of, report_on, sound_server, stored
from tests.kit.postgres import execute
from tests.kit.processes import run_command


class Book(Model, table="books"):
    title: str


class NewBook(Model, table="books"):
    title: str
    isbn: str | None = field(default=None, index=True)


async def start(url: str, model: type[Model]) -> None:
    async with sound_server(url, model).lifespan():
        pass


async def test_a_column_and_an_index_that_are_missing_are_drift(database_url: str) -> None:
    await start(database_url, Book)
    assert await stored(sound_server(database_url, Book)) == []

    findings = await stored(sound_server(database_url, NewBook))

    assert set(codes_of(findings)) == {"T151"}
    assert findings[0].severity is Severity.ERROR
    assert any("isbn" in finding.why for finding in findings)
    assert "`maniflex migrate make " in findings[0].fix


async def test_a_table_that_is_missing_is_drift(database_url: str) -> None:
    await start(database_url, Book)
    server = sound_server(database_url, Book)
    async with server.lifespan():
        await server.raw_exec("DROP TABLE books")

    [finding] = await stored(sound_server(database_url, Book))

    assert (finding.code, finding.where.split(" ")[0]) == ("T151", "Book")


async def test_a_database_without_tables_is_a_note(postgres_url: str) -> None:
    [finding] = [f for f in (await report_on(sound_server(postgres_url))).findings if f.code != "T135"]

    assert (finding.code, finding.severity) == ("T151", Severity.NOTE)


async def test_an_interrupted_build_of_an_index_is_found(postgres_url: str) -> None:
    await start(postgres_url, Book)
    server = sound_server(postgres_url, Book)
    async with server.lifespan():
        for _ in range(2):
            await server.db(Book).create(title="the same")
    with pytest.raises(asyncpg.UniqueViolationError):
        await execute(postgres_url, "CREATE UNIQUE INDEX CONCURRENTLY twice ON books (title)")

    findings = await stored(sound_server(postgres_url, Book))

    assert codes_of(findings) == ["T156"]
    assert findings[0].fix == 'REINDEX INDEX CONCURRENTLY "twice"'


APP = """
from maniflex import Model, Server, field
from maniflex.middleware import auth

class Book(Model):
    title: str
    {more}

server = Server("{url}", auto_migrate=False)
server.register(Book)
server.pipeline.auth.register(auth.allow_anonymous())
"""
CODES = "T15"


def codes_by_command(directory: Path) -> list[str]:
    done = run_command("doctor", "app:server", "--ignore", "T135", "--ignore", "T176", cwd=directory)
    return sorted({line[:4] for line in done.stdout.splitlines() if line.startswith(CODES)})


def test_pending_changed_and_forked_migrations_are_found(database_url: str, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP.format(url=database_url, more=""))
    assert run_command("migrate", "make", "app:server", "-m", "first", cwd=tmp_path).returncode == 0

    assert codes_by_command(tmp_path) == ["T152"]
    assert run_command("migrate", "up", "app:server", cwd=tmp_path).returncode == 0
    assert codes_by_command(tmp_path) == []

    [file] = (tmp_path / "migrations" / "versions").glob("*.py")
    text = file.read_text()
    file.write_text(text.replace("def upgrade", "# another line\ndef upgrade"))
    assert codes_by_command(tmp_path) == ["T153"]


async def test_two_ends_are_found(sqlite_url: str, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP.format(url=sqlite_url, more=""))
    for name in ("first", "second", "third"):
        done = run_command("migrate", "make", "app:server", "-m", name, "--empty", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    first, second, third = sorted((tmp_path / "migrations" / "versions").glob("*.py"))
    parents = [line for line in second.read_text().splitlines() if line.startswith("down_revision")]
    third.write_text(
        "\n".join(
            parents[0] if line.startswith("down_revision") else line
            for line in third.read_text().splitlines()
        )
        + "\n"
    )

    assert first.exists()
    assert "T154" in codes_by_command(tmp_path)


class Reader(Model, table="readers"):
    email: str = field(unique=True)


class ReaderWithoutCase(Model, table="readers"):
    email: str = field(unique=True, ignore_case=True)


async def test_capitals_from_before_a_field_ignored_case_are_found(database_url: str) -> None:
    await start(database_url, Reader)
    server = sound_server(database_url, Reader)
    async with server.lifespan():
        await server.db(Reader).create(email="Ada@example.org")

    [finding] = await stored(sound_server(database_url, ReaderWithoutCase))

    assert (finding.code, finding.severity) == ("T157", Severity.ERROR)
    assert "ReaderWithoutCase.email" in finding.where
    server = sound_server(database_url, ReaderWithoutCase)
    async with server.lifespan():
        await server.raw_exec(finding.fix.removesuffix(", in a migration"))
    assert await stored(sound_server(database_url, ReaderWithoutCase)) == []


async def test_values_of_tables_that_are_not_there_are_not_looked_at(database_url: str) -> None:
    report = await report_on(sound_server(database_url, ReaderWithoutCase))
    assert "T157" not in {finding.code for finding in report.findings}


async def test_capitals_beyond_ascii_are_found_where_the_database_does_not_know_them(sqlite_url: str) -> None:
    await start(sqlite_url, Reader)
    server = sound_server(sqlite_url, Reader)
    async with server.lifespan():
        reader = await server.db(Reader).create(email="Éva@example.org")
        await server.db(Reader).create(email="zoë@example.org")

    [finding] = await stored(sound_server(sqlite_url, ReaderWithoutCase))

    assert finding.code == "T157"
    assert "again by code" in finding.fix
    assert "Éva" not in finding.fix
    server = sound_server(sqlite_url, ReaderWithoutCase)
    async with server.lifespan():
        await server.db(ReaderWithoutCase).update(reader.id, email=reader.email)
    assert await stored(sound_server(sqlite_url, ReaderWithoutCase)) == []
