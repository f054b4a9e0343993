"""The start and migration files change a schema alike: by the same operations, to the same tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from maniflex.errors import DeclarationError
from tests.kit.migrations import Application
from tests.kit.processes import run_program

FIRST = """
class Book(Model):
    title: str = field(searchable=True)
    code: str = field(unique=True)

class Shelf(Model, versioned=True):
    room: str

@server.work.handler("default.note")
async def note(run): ...
"""
THEN = """
class Tome(Model, renamed_from="books"):
    title: str = field(searchable=True)
    mark: str = field(unique=True, renamed_from="code")
    summary: str | None = field(default=None, searchable=True)
    pages: int = field(default=0, index=True)
    price: Decimal = field(default_factory=lambda: Decimal("9.50"), unique=True)
    token: str = field(default_factory=lambda: "made")
    stars: int | None = 5

class Shelf(Model, versioned=True):
    room: str
    width: Decimal | None = None

class Label(Model):
    text: str = field(index=True)

@server.work.handler("default.note")
async def note(run): ...
"""
LAST = THEN.replace("    room: str\n", "    room: str\n    height: int\n")
INSERT = (
    "INSERT INTO books (id, title, code, created_at, updated_at)"
    " VALUES ('b', 'one', 'c', '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z')"
)


def test_what_a_start_adds_is_what_files_add(application: Application, other_url: str) -> None:
    application.write(FIRST).start()
    application.sql(INSERT)
    application.write(THEN).start()
    application.write(LAST).start()  # a required column for a table without rows
    by_start = application.catalogue()
    rows = application.sql("SELECT title, mark, price, token, stars FROM tomes")

    application.on(other_url).write(FIRST)
    application.migrate("make", "-m", "first")
    application.migrate("up")
    application.sql(INSERT)
    for models in (THEN, LAST):
        application.write(models).migrate("make")
        application.migrate("up")

    assert application.catalogue() == by_start
    assert [tuple(row) for row in application.sql("SELECT title, mark, price, token, stars FROM tomes")] == [
        tuple(row) for row in rows
    ]
    assert [str(value) for value in rows[0]] == ["one", "c", "9.50", "made", "5"]


SECOND_START = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
import app

async def live():
    async with app.server.lifespan(role="client"):
        pass

asyncio.run(live())
print("alembic" in sys.modules, flush=True)
"""


def test_a_start_that_finds_everything_as_it_should_be_changes_nothing(application: Application) -> None:
    application.write(THEN).start()
    before = application.catalogue()

    with run_program(SECOND_START, application.directory) as program:
        assert program.hear() == "False"
    assert application.catalogue() == before


def test_a_table_that_is_made_anew_takes_no_rows_of_others_with_it(tmp_path: Path, sqlite_url: str) -> None:
    application = Application(tmp_path, sqlite_url).write(FIRST)
    application.start()
    application.sql(
        INSERT,
        "CREATE TABLE loans (book TEXT REFERENCES books (id) ON DELETE CASCADE)",
        "INSERT INTO loans VALUES ('b')",
    )

    application.write(
        FIRST.replace("    code:", "    token: int = field(default_factory=lambda: 1)\n    code:")
    )
    application.start()

    assert [tuple(row) for row in application.sql("SELECT count(*) FROM loans")] == [(1,)]
    assert [tuple(row) for row in application.sql("SELECT token FROM books")] == [(1,)]


def test_a_refusal_names_the_commands_where_there_are_files(application: Application, other_url: str) -> None:
    application.write(FIRST).migrate("make", "-m", "first")
    application.on(other_url).start()
    application.write(FIRST.replace("    code: str", "    name: str"))

    for auto_migrate in (True, False):
        with pytest.raises(DeclarationError) as stopped:
            application.write(
                FIRST.replace("    code: str", "    name: str"), auto_migrate=auto_migrate
            ).start()
        *problems, advice = stopped.value.problems
        assert any("books.code has no field on Book" in problem for problem in problems)
        assert not any("ALTER TABLE" in problem for problem in problems)
        assert "`maniflex migrate up app:server`" in advice
        assert "`maniflex migrate make app:server`" in advice


def test_an_indexed_column_is_dropped_by_a_file(application: Application) -> None:
    application.write(
        FIRST + "\nclass Tag(Model):\n    name: str\n    size: Decimal = field(default=0, index=True)\n"
    )
    application.migrate("make", "-m", "first")
    application.migrate("up")

    application.write(FIRST + "\nclass Tag(Model):\n    name: str\n")
    application.migrate("make", "--drop")
    application.migrate("up")

    assert "ok" in application.migrate("check", "--replay")
