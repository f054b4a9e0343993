"""The first `up` on a database whose tables the start has made."""

from __future__ import annotations

import asyncio
import logging

import pytest

from maniflex.db.port import Adapter
from maniflex.sql.statement import Sql
from tests.kit.migrations import Application, on_adapter

PAGE = """
class Page(Model):
    title: str = field(unique=True, searchable=True)
    price: Decimal = field(default=Decimal(0), sortable=True)

class Line(Model):
    page_id: str = field(on_delete="cascade", filterable=True)

@server.work.handler("default.note")
async def note(run): ...
"""
MORE = PAGE.replace("class Line", '    colour: str = ""\n\nclass Line')
SEED = """    async def seed(pages):
        await pages.create(title="seeded")

    op.run("Page", seed)"""


@pytest.fixture
def pages(application: Application, other_url: str) -> Application:
    """An application with one file, on a database that only a start has seen, with a row in it."""
    application.write(PAGE).migrate("make", "-m", "first")
    application.on(other_url).start()
    add_page(application, "kept")
    return application


def add_page(application: Application, title: str) -> None:
    async def create() -> None:
        server = application.server
        async with server.lifespan(role="client"):
            await server.db("Page").create(title=title)

    asyncio.run(create())


def titles(application: Application) -> list[str]:
    return [row[0] for row in application.sql("SELECT title FROM pages ORDER BY 1")]


def add_file(application: Application, title: str, body: str) -> None:
    """Write a file of one step by hand, on whatever database it is."""
    application.migrate("make", "--empty", "-m", title)
    path = application.files[-1]
    path.write_text(path.read_text().replace("    pass", body, 1))


def test_tables_as_the_files_make_them_are_noted_and_kept(pages: Application) -> None:
    before = pages.catalogue()

    output = pages.migrate("up")

    assert output.endswith(
        "first.py  noted as applied: the start has made what it makes\nnothing more to do\n"
    )
    assert pages.catalogue() == before
    assert titles(pages) == ["kept"]
    assert pages.migrate("up") == "nothing to do\n"
    assert "ok" in pages.migrate("check")
    pages.start()
    pages.write(MORE).migrate("make", "-m", "colour")
    assert "applied 1 file" in pages.migrate("up")
    assert titles(pages) == ["kept"]


def test_files_behind_that_are_applied(pages: Application) -> None:
    add_file(pages, "seed", SEED)

    output = pages.migrate("up")

    assert "first.py  noted as applied" in output
    assert output.endswith("applied 1 file\n")
    assert titles(pages) == ["kept", "seeded"]


def test_the_start_that_applies_files_notes_them_too(
    pages: Application, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "maniflex.migrate"):
        pages.write(PAGE, migrate_on_start=True).start()

    assert "noted as applied: an earlier start has made what it makes" in caplog.text
    assert "ok" in pages.migrate("check")


def test_models_ahead_of_the_files_are_refused_with_the_way_out(pages: Application, third_url: str) -> None:
    made_by_start = pages.url
    pages.write(MORE).start()
    before = pages.catalogue()

    refusal = pages.migrate("up", code=1)

    assert "the column pages.colour" in refusal
    assert "is in no file" in refusal
    assert "`maniflex migrate stamp app:server head`" in refusal
    assert pages.catalogue() == before
    assert "at no revision" in pages.migrate("status")

    pages.on(third_url).migrate("up")  # the way out that it names
    pages.migrate("make", "-m", "colour")
    output = pages.on(made_by_start).migrate("up")
    assert output.count("noted as applied") == 2
    assert "ok" in pages.migrate("check")
    assert titles(pages) == ["kept"]


def test_files_that_change_rows_are_not_passed_over(pages: Application) -> None:
    pages.sql("DROP TABLE lines")  # so that the tables are no file's before the one with the rows
    add_file(pages, "seed", SEED)

    refusal = pages.migrate("up", code=1)

    assert "_seed.py also changes rows, which the start has not done" in refusal
    assert titles(pages) == ["kept"]
    for step in (
        '    op.execute("UPDATE pages SET title = title")',
        '    op.backfill("pages", set={"title": "title"})',
    ):
        pages.files[-1].unlink()
        add_file(pages, "seed", step)
        assert "also changes rows" in pages.migrate("up", code=1)


def test_tables_of_others_do_not_matter(pages: Application) -> None:
    pages.sql("CREATE TABLE others (id integer)")

    assert "noted as applied" in pages.migrate("up")


def test_a_dry_run_notes_nothing(pages: Application) -> None:
    assert "the start has made the tables already" in pages.migrate("up", "--dry-run")
    assert "at no revision" in pages.migrate("status")


def test_nothing_is_left_beside_the_database(pages: Application) -> None:
    pages.migrate("up")

    if pages.url.startswith("postgres"):
        question = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'maniflex%'"

        async def ask(adapter: Adapter) -> list[object]:
            return list(await adapter.fetch(Sql(question)))

        assert asyncio.run(on_adapter(pages.url, ask)) == []


def test_a_replay_calls_no_function_of_a_file(application: Application) -> None:
    application.write(PAGE).migrate("make", "-m", "first")
    application.migrate("up")
    add_file(application, "seed", SEED)
    application.migrate("up")

    assert "ok" in application.migrate("check", "--replay")

    assert titles(application) == ["seeded"]
