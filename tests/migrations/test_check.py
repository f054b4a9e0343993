"""What `migrate check` says: each difference once, in words that fit the number of rows."""

from __future__ import annotations

import logging

import pytest

from maniflex.errors import DeclarationError
from tests.kit.migrations import Application

BOOK = """
class Book(Model):
    title: str = field(index=True)
    note: str | None = None
    kind: Literal["new", "used"] = "new"
    pages: int = 0
"""
KEPT = """
class Book(Model):
    title: str = field(index=True)
    kind: Literal["new", "used"] = "new"
    pages: int = 0
"""


@pytest.fixture
def shop(application: Application) -> Application:
    application.write(BOOK).migrate("make", "-m", "first")
    application.migrate("up")
    return application


def add_books(application: Application, *kinds: str) -> None:
    for number, kind in enumerate(kinds):
        application.sql(
            "INSERT INTO books (id, title, kind, pages, created_at, updated_at)"
            f" VALUES ('{number}', 't', '{kind}', 1, '2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z')"
        )


@pytest.mark.parametrize("options", [(), ("--replay",)])
def test_a_column_without_a_field_is_told_once(
    shop: Application, options: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    shop.write(KEPT)

    with caplog.at_level(logging.WARNING):
        output = shop.migrate("check", *options)

    assert output == (
        "warning: books.note has no field on Book\nok: the database, the files and the models agree\n"
    )
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("options", [(), ("--replay",)])
def test_a_changed_model_is_told_once(
    shop: Application, options: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    shop.write(
        KEPT.replace("title: str = field(index=True)", "title: str | None = None\n    extra: str = ''")
    )

    with caplog.at_level(logging.WARNING):
        output = shop.migrate("check", *options, code=1)

    assert sorted(output.splitlines()) == [
        "Book.extra: 'books' has no column 'extra'",
        "books.title may not be null in the database and may on Book",
        "warning: books.note has no field on Book",
        "warning: the index idx_books_title of books is declared no longer",
    ]
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize(
    ("kinds", "sentence"),
    [
        (
            ("used",),
            "1 row of books holds a value in kind that Book declares no longer; change it with op",
        ),
        (
            ("used", "used"),
            "2 rows of books hold a value in kind that Book declares no longer; change them with op",
        ),
    ],
)
def test_rows_are_counted_in_words_that_fit_even_beside_other_differences(
    shop: Application, kinds: tuple[str, ...], sentence: str
) -> None:
    add_books(shop, "new", *kinds)
    shop.write(KEPT.replace('"new", "used"', '"new"'))

    output = shop.migrate("check", code=1)

    assert sentence in output
    assert "warning: books.note has no field on Book" in output


def test_one_row_without_a_value_is_one_row(shop: Application) -> None:
    add_books(shop, "new")
    shop.write(BOOK.replace("note: str | None = None", "note: str"))
    shop.migrate("make", "-m", "note")

    output = shop.migrate("up", code=1)

    assert "1 row of books has no value in note; fill it in the file before this step" in output


def test_without_files_the_start_keeps_the_tables_and_that_is_said(application: Application) -> None:
    application.write(BOOK)
    sentence = (
        "there are no migration files: a start with auto_migrate makes the tables and columns that are"
        " missing; to change them by files instead, write the first with `maniflex migrate make app:server`\n"
    )

    assert sentence in application.migrate("status")
    assert application.migrate("check", code=1) == f"Book: there is no table 'books'\n{sentence}"

    application.start()
    assert sentence in application.migrate("status")
    assert application.migrate("check") == "ok: the database and the models agree; there are no files\n"


SEARCHED = """
class Note(Model):
    text: str = field(searchable=True)
    price: Decimal = Decimal(0)
"""


@pytest.mark.parametrize("mends", ["up", "start"])
def test_pieces_of_search_that_were_dropped_are_noticed_and_made_again(
    application: Application, mends: str
) -> None:
    application.write(SEARCHED).migrate("make", "-m", "first")
    application.migrate("up")
    made = application.catalogue()
    is_sqlite = application.url.startswith("sqlite")
    drops = (
        ["DROP TRIGGER notes_fts_update", "DROP TRIGGER notes$order_update"]
        if is_sqlite
        else ["DROP INDEX idx_notes_search_vector", "ALTER TABLE notes DROP COLUMN search_vector"]
    )
    for drop in drops:
        application.sql(drop.replace("notes$order_update", '"notes$order_update"'))
        page = application.migrate("check", code=1)
        assert "notes: " in page
        assert "is not as Note declares it" in page
        assert "`maniflex migrate up` makes it anew" in page
        application.write(SEARCHED, auto_migrate=False)
        with pytest.raises(DeclarationError, match="is not as Note declares it"):
            application.start()
        application.write(SEARCHED)
        if mends == "up":
            application.migrate("up")
        else:
            application.start()
        assert application.catalogue() == made
        assert "ok" in application.migrate("check")


def test_a_start_without_files_makes_dropped_pieces_of_search_again(application: Application) -> None:
    application.write(SEARCHED).start()
    made = application.catalogue()
    is_sqlite = application.url.startswith("sqlite")
    application.sql("DROP TRIGGER notes_fts_insert" if is_sqlite else "DROP INDEX idx_notes_search_vector")
    application.start()
    assert application.catalogue() == made
