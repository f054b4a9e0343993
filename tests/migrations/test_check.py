"""What `migrate check` says: each difference once, in words that fit the number of rows."""

from __future__ import annotations

import logging
import re

import pytest
from click.testing import CliRunner

from maniflex.cli import main
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
        "the models are ahead of the migrations; write a migration with `maniflex migrate make app:server`"
        " and apply it with `maniflex migrate up app:server`",
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
    with_tables = sentence.replace("app:server`", "app:server --baseline`")
    assert with_tables in application.migrate("status")
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


def named_commands(text: str) -> list[tuple[str, ...]]:
    """The commands that a message names, in their order and each once in a row."""
    commands = [tuple(words.split()) for words in re.findall(r"`maniflex migrate ([^`]*)`", text)]
    return [words for place, words in enumerate(commands) if commands[place - 1 : place] != [words]]


def follow(application: Application, text: str) -> None:
    """Run the commands that a message names, one after the other; each has to work."""
    for word, _, *options in named_commands(text):
        application.migrate(word, *options)


AHEAD = BOOK.replace("pages: int = 0", "pages: int = 0\n    isbn: str = ''")
AGREE = "ok: the database, the files and the models agree\n"


def check_declarations(application: Application) -> str:
    """What `maniflex check app:server` says, which asks no database."""
    with application.loaded():
        result = CliRunner().invoke(main, ["check", "app:server"])
    return result.output


def test_a_new_project_is_told_the_commands_that_work(application: Application) -> None:
    application.write(BOOK)
    follow(application, application.migrate("check", code=1))
    assert len(application.files) == 1
    follow(application, application.migrate("check", code=1))
    assert application.migrate("check") == AGREE
    assert check_declarations(application).startswith("ok: ")


@pytest.mark.parametrize("asks", ["migrate check", "check"])
def test_models_ahead_are_told_the_commands_that_work(shop: Application, asks: str) -> None:
    shop.write(AHEAD)
    told = shop.migrate("check", code=1) if asks == "migrate check" else check_declarations(shop)
    assert "isbn" in told
    follow(shop, told)
    assert shop.migrate("check") == AGREE


@pytest.mark.parametrize("asks", ["migrate check", "check", "make"])
def test_files_ahead_of_the_database_come_first(application: Application, asks: str) -> None:
    application.write(BOOK).migrate("make", "-m", "first")
    application.write(AHEAD)
    if asks == "make":
        told = application.migrate("make", "-m", "second", code=1)
        assert named_commands(told) == [("up", "app:server")]
    else:
        told = (
            application.migrate("check", code=1)
            if asks == "migrate check"
            else check_declarations(application)
        )
    follow(application, told)
    if asks == "make":
        follow(application, application.migrate("check", code=1))
    assert application.migrate("check") == AGREE


def test_a_database_that_starts_have_made_is_told_of_a_baseline(application: Application) -> None:
    application.write(BOOK).start()
    application.write(AHEAD)
    for words in (("check",), ("make", "-m", "first")):
        told = application.migrate(*words, code=1)
        assert "start" in told
        assert named_commands(told)[-1] == ("make", "app:server", "--baseline")
    assert application.files == []  # no first file that begins in the middle

    application.start()
    follow(application, told)
    assert application.migrate("check") == AGREE


def test_a_database_ahead_of_the_files_is_told_to_get_the_file(shop: Application) -> None:
    shop.write(AHEAD).migrate("make", "-m", "second")
    shop.migrate("up")
    shop.files[-1].unlink()
    shop.write(AHEAD.replace("isbn: str = ''", "isbn: str = ''\n    shelf: str = ''"))
    for words in (("check",), ("make", "-m", "third"), ("up",)):
        told = shop.migrate(*words, code=1)
        assert "which no file has; get it from the release that applied it" in told
        assert named_commands(told) == []
    assert len(shop.files) == 1
