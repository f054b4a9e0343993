"""`migrate up --sql`: the statements, run by hand in their order, make what `up` makes."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import asyncpg
import pytest

from tests.kit.migrations import Application

ARTICLE = """
class Article(Model):
    title: str = field(default="", searchable=True)
    body: str = field(default="", searchable=True)
"""
TABLE = ARTICLE.replace("Article(Model)", 'Book(Model, renamed_from="articles")')
COLUMN = ARTICLE.replace("title: str = field(", 'headline: str = field(renamed_from="title", ')


def run_by_hand(application: Application, statements: str) -> None:
    if application.url.startswith("sqlite"):
        with closing(sqlite3.connect(application.url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(statements)
        return

    async def work() -> None:
        connection = await asyncpg.connect(application.url)
        try:
            await connection.execute(statements)
        finally:
            await connection.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("renamed", "dropped"),
    [
        pytest.param(TABLE, "title", id="of a renamed table"),
        pytest.param(COLUMN, "headline", id="renamed before"),
        pytest.param(ARTICLE, "title", id="as it is"),
    ],
)
def test_a_searched_column_that_a_later_file_drops(
    application: Application, renamed: str, dropped: str
) -> None:
    application.write(ARTICLE).migrate("make", "-m", "first")
    application.migrate("up")
    application.write(renamed).migrate("make", "-m", "rename")
    application.migrate("up")
    after = "\n".join(line for line in renamed.splitlines() if f"{dropped}: str" not in line)
    application.write(after).migrate("make", "-m", "drop", "--drop")
    if renamed != ARTICLE:
        application.write(ARTICLE).migrate("down", "--yes")
        application.write(after)

    run_by_hand(application, application.migrate("up", "--sql"))

    assert application.migrate("up") == "nothing to do\n"
    application.start()
    assert "ok" in application.migrate("check")


def test_a_required_column_is_added_filled_and_closed(application: Application) -> None:
    application.write(ARTICLE).migrate("make", "-m", "first")
    application.migrate("up")
    application.write(ARTICLE + "    size: int\n").migrate("make", "-m", "size")

    run_by_hand(application, application.migrate("up", "--sql"))

    assert application.migrate("up") == "nothing to do\n"
    assert "ok" in application.migrate("check")
