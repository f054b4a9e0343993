"""Changed models: what `make` writes, what it refuses, and that no value is lost."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from maniflex import DeclarationError
from maniflex.testing import client
from tests.kit.migrations import Application

BOOK = """
class Book(Model):
    title: str = field(searchable=True, unique=True)
    price: Decimal = field(default=Decimal("1"), index=True, sortable=True)
    note: str = ""
"""


def book(application: Application, title: str, **values: Any) -> None:
    """Create a book by the application as it is now."""
    asyncio.run(_create(application, title, values))


async def _create(application: Application, title: str, values: dict[str, Any]) -> None:
    server = application.server
    async with server.lifespan(role="client"):
        await server.db("Book").create(title=title, **values)


def books(application: Application, **query: Any) -> list[Any]:
    async def read() -> list[Any]:
        server = application.server
        async with server.lifespan(role="client"):
            return list(await server.db("Book").list(**query))

    return asyncio.run(read())


async def search(application: Application, words: str) -> list[str]:
    async with client(application.server, database=application.url) as http:
        answer = await http.get(f"/api/books?q={words}")
        return [one["title"] for one in answer.json()["data"]]


@pytest.fixture
def shop(application: Application) -> Application:
    """An application that files keep, with one book."""
    application.write(BOOK).migrate("make", "-m", "first")
    application.migrate("up")
    book(application, "Emma", price=Decimal("10.50"))
    return application


def make_and_apply(application: Application, *options: str) -> str:
    """Write a file, apply it, and see that the application is where it says it is."""
    application.migrate("make", *options)
    text = application.files[-1].read_text()
    application.migrate("up")
    assert application.migrate("make").endswith("nothing to do\n")
    assert "ok" in application.migrate("check", "--replay")
    return text


def test_a_renamed_column_keeps_its_values_and_its_uniqueness(shop: Application) -> None:
    shop.write(BOOK.replace("title: str = field(", 'headline: str = field(renamed_from="title", '))

    text = make_and_apply(shop, "-m", "rename")

    assert 'op.rename_column("books", "title", "headline")' in text
    assert [one.headline for one in books(shop)] == ["Emma"]
    assert [one.headline for one in books(shop, filters={"headline": "Emma"})] == ["Emma"]


def test_a_renamed_decimal_is_still_compared_by_value(shop: Application) -> None:
    book(shop, "Cheap", price=Decimal(9))
    shop.write(BOOK.replace("price: Decimal = field(", 'cost: Decimal = field(renamed_from="price", '))

    make_and_apply(shop)

    assert [one.cost for one in books(shop, sorts="cost")] == [Decimal(9), Decimal("10.50")]


def test_a_renamed_table_keeps_its_rows(shop: Application) -> None:
    shop.write(BOOK.replace("class Book(Model)", 'class Novel(Model, renamed_from="books")'))

    text = make_and_apply(shop, "-m", "rename")

    assert 'op.rename_table("books", "novels")' in text
    assert [tuple(row) for row in shop.sql("SELECT title FROM novels")] == [("Emma",)]


def test_the_start_renames_too(application: Application) -> None:
    application.write(BOOK).start()
    book(application, "Emma", price=Decimal("10.50"))
    application.write(
        BOOK.replace("class Book(Model)", 'class Novel(Model, renamed_from="books")').replace(
            "title: str = field(", 'headline: str = field(renamed_from="title", '
        )
    ).start()

    assert [tuple(row) for row in application.sql("SELECT headline FROM novels")] == [("Emma",)]
    assert application.migrate("make") == "nothing to do\n"


def test_a_rename_that_nobody_declared_is_refused(shop: Application) -> None:
    shop.write(BOOK.replace("note: str", "remark: str"))

    output = shop.migrate("make", code=1)

    assert "books.note" in output
    assert "books.remark" in output
    assert "renamed_from='note'" in output
    assert "--drop" in output
    assert len(shop.files) == 1


def test_a_drop_is_a_file_of_its_own_that_says_what_is_lost(shop: Application) -> None:
    shop.write(BOOK.replace("note: str", "remark: str"))

    shop.migrate("make", "--drop", "-m", "remarks")

    _, addition, drop = shop.files
    assert "op.add_column" in addition.read_text()
    assert "drop_column" not in addition.read_text().partition("def downgrade")[0]
    assert 'op.drop_column("books", "note")' in drop.read_text()
    assert "Lost for good when this is applied: books.note." in drop.read_text()
    assert "drops data" in shop.migrate("status")
    shop.migrate("up")
    assert "cannot go back" in shop.migrate("down", "--yes", code=1)
    assert [one.title for one in books(shop)] == ["Emma"]


SUBTITLE = BOOK + '    subtitle: str = field(default="", searchable=True)\n'


@pytest.mark.parametrize("words", [("down", "--yes"), ("up",)])
def test_a_searched_column_goes_and_the_others_are_searched_on(
    shop: Application, words: tuple[str, ...]
) -> None:
    shop.write(SUBTITLE)
    make_and_apply(shop, "-m", "subtitle")
    if words == ("up",):
        shop.write(BOOK).migrate("make", "--drop")
    shop.migrate(*words)
    if words != ("up",):
        shop.files[-1].unlink()
    shop.write(BOOK)

    assert asyncio.run(search(shop, "emma")) == ["Emma"]
    assert "ok" in shop.migrate("check")


def test_a_field_that_is_gone_leaves_its_column_and_never_stops_creates(shop: Application) -> None:
    required = BOOK.replace('note: str = ""', "code: str | None = None\n    stock: int = field(default=0)")
    shop.write(required).migrate("make", "--drop")
    shop.migrate("up")
    shop.sql("UPDATE books SET code = 'x'")
    shop.write(required.replace("code: str | None = None", "code: str"))
    make_and_apply(shop)
    shop.write(required.replace("code: str | None = None\n", "\n"))

    text = make_and_apply(shop)

    assert 'sa.Column("code", types.TEXT(), nullable=True)' in text
    book(shop, "Persuasion")
    assert "--drop writes a file" in shop.migrate("make")


def test_a_required_field_waits_for_its_backfill(shop: Application) -> None:
    shop.write(BOOK + "    isbn: str\n")
    shop.migrate("make", "-m", "isbn")
    path = shop.files[-1]
    text = path.read_text()

    assert "1 row of books has no value in isbn" in shop.migrate("up", code=1)
    place = next(line for line in text.splitlines() if line.strip().startswith("# op.backfill"))
    call = place.replace("# ", "").replace("\"'…'\"", "\"'none-' || title\"")
    path.write_text(text.replace(place, call))

    assert "applied 1 file" in shop.migrate("up")
    assert [one.isbn for one in books(shop)] == ["none-Emma"]
    assert "ok" in shop.migrate("check", "--replay")


def test_nullability_changes_both_ways_on_a_searchable_table_with_decimals(shop: Application) -> None:
    nullable = BOOK.replace('note: str = ""', 'note: str | None = ""')
    make_and_apply(shop.write(nullable))
    shop.sql("UPDATE books SET note = NULL")
    make_and_apply(shop.write(BOOK))

    assert [one.note for one in books(shop)] == [""]
    book(shop, "Sanditon", price=Decimal(9))
    assert [one.price for one in books(shop, sorts="price")] == [Decimal(9), Decimal("10.50")]
    assert found(shop, "sanditon") == ["Sanditon"]
    with pytest.raises(Exception, match="exists"):
        book(shop, "Emma")


def found(application: Application, words: str) -> list[str]:
    async def search() -> list[str]:
        from maniflex.testing import client

        server = application.server
        async with client(server, database=None) as http:
            answer = await http.get(f"/api/books?q={words}")
        return [one["title"] for one in answer.json()["data"]]

    return asyncio.run(search())


def test_another_type_is_refused_without_being_allowed(shop: Application) -> None:
    shop.sql("UPDATE books SET note = '17'")
    shop.write(BOOK.replace('note: str = ""', "note: int = 0"))

    assert "--allow-rewrite" in shop.migrate("make", code=1)
    make_and_apply(shop, "--allow-rewrite")

    assert [one.note for one in books(shop)] == [17]


TRANSLATED = 'note: LocaleString = field(default_factory=dict, filterable=True, locale={"default": "de"})'


def test_a_start_that_meets_a_text_without_translations_says_what_writes_them(
    application: Application,
) -> None:
    application.write(BOOK).start()
    application.write("from maniflex import LocaleString\n" + BOOK.replace('note: str = ""', TRANSLATED))

    with pytest.raises(DeclarationError, match=r"migrate make --allow-rewrite.*the one in de"):
        application.start()


def test_a_text_becomes_one_in_several_languages_and_a_text_again(shop: Application) -> None:
    odd = ["Grüße", "it's \\\"", "", 'a: b {"x"}\n%_']
    for place, note in enumerate(odd):
        book(shop, f"book {place}", note=note)
    before = [one.note for one in books(shop, sorts="created_at")]
    shop.write("from maniflex import LocaleString\n" + BOOK.replace('note: str = ""', TRANSLATED))
    make_and_apply(shop, "--allow-rewrite")

    expected = [{"de": note} if note else {} for note in before]
    assert [one.note for one in books(shop, sorts="created_at")] == expected
    assert [one.title for one in books(shop, filters={"note": "Grüße"})] == ["book 0"]
    texts = '{"fr": "ici", "de": "", "es": ""}'
    shop.sql(f"UPDATE books SET note = '{texts}' WHERE title = 'book 0'")
    shop.migrate("down", "--yes")
    shop.files[-1].unlink()
    shop.write(BOOK)
    assert "ok" in shop.migrate("check")
    assert [one.note for one in books(shop, sorts="created_at")] == [
        "ici" if note == "Grüße" else note for note in before
    ]


def test_a_value_that_is_no_number_stops_the_conversion(shop: Application) -> None:
    shop.sql("UPDATE books SET note = 'seven'")
    shop.write(BOOK.replace('note: str = ""', "note: int = 0"))
    shop.migrate("make", "--allow-rewrite")

    shop.migrate("up", code=1)

    assert [tuple(row) for row in shop.sql("SELECT note FROM books")] == [("seven",)]


ENUM = BOOK + '    state: Literal["new", "used", "lost"] = "new"\n'


def test_a_new_value_of_an_enum_needs_no_file_and_one_that_is_gone_is_looked_for(shop: Application) -> None:
    make_and_apply(shop.write(ENUM))
    shop.write(ENUM.replace('"lost"]', '"lost", "sold"]'))
    assert shop.migrate("make") == "nothing to do\n"

    shop.sql("UPDATE books SET state = 'lost'")
    shop.write(ENUM.replace(', "lost"]', "]"))
    assert "1 row of books holds a value in state" in shop.migrate("check", code=1)
    shop.migrate("make")
    assert "op.require_values" in shop.files[-1].read_text()
    assert "holds a value in state" in shop.migrate("up", code=1)

    shop.sql("UPDATE books SET state = 'used'")
    shop.migrate("up")
    assert "ok" in shop.migrate("check")


def test_a_value_that_is_gone_is_looked_for_under_new_names_too(shop: Application) -> None:
    make_and_apply(shop.write(ENUM))
    renamed = ENUM.replace("class Book(Model)", 'class Volume(Model, renamed_from="books")')
    renamed = renamed.replace('] = "new"', '] = field(default="new", renamed_from="state")')
    renamed = renamed.replace("state: ", "condition: ")
    make_and_apply(shop.write(renamed))
    shop.sql("UPDATE volumes SET condition = 'lost'")

    shop.write(renamed.replace(', "lost"]', "]"))
    shop.migrate("make")

    assert "op.require_values" in shop.files[-1].read_text()
    assert "holds a value in condition" in shop.migrate("up", code=1)


def test_a_value_that_is_gone_is_looked_for_in_the_step_that_renames(shop: Application) -> None:
    make_and_apply(shop.write(ENUM))
    fewer = 'condition: Literal["new", "used"] = field(default="new", renamed_from="state")'
    shop.write(ENUM.replace('state: Literal["new", "used", "lost"] = "new"', fewer))

    make_and_apply(shop)

    assert 'op.require_values("books", "condition"' in shop.files[-1].read_text()


def test_a_message_may_hold_quotes_and_backslashes(shop: Application) -> None:
    shop.migrate("make", "--empty", "-m", 'the """old""" C:\\x\\users\nand "more"')

    shop.migrate("up")
    assert "ok" in shop.migrate("check")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (BOOK.replace("class Book(Model)", "class Book(Model, WithDeletedAt)"), "deleted_at"),
        (BOOK.replace('Decimal("1")', 'Decimal("2")'), "default"),
        (BOOK.replace("unique=True", 'unique="note"'), "uq_books_note_title"),
        (BOOK.replace("index=True, ", ""), "idx_books_price"),
    ],
)
def test_a_change_that_autogenerate_would_miss_is_noticed(shop: Application, change: str, words: str) -> None:
    shop.write(change)

    assert words in shop.migrate("check", code=0 if "idx" in words else 1)
    make_and_apply(shop)


def test_a_unique_index_over_equal_values_is_refused_with_the_sizes_of_the_groups(shop: Application) -> None:
    for n in range(3):
        book(shop, f"Copy {n}", note="same")
    shop.write(BOOK.replace('note: str = ""', 'note: str = field(default="", unique=True)'))
    shop.migrate("make")

    output = shop.migrate("up", code=1)

    assert "books has rows with equal values in note, so the unique index uq_books_note" in output
    assert "The largest groups have 3 rows" in output
    shop.sql("UPDATE books SET note = title")
    shop.migrate("up")
    assert "ok" in shop.migrate("check")


def test_changes_by_hand_are_noticed(shop: Application) -> None:
    shop.sql("DROP INDEX uq_books_title", "ALTER TABLE books ADD COLUMN extra TEXT")

    output = shop.migrate("check", code=1)

    assert "books has no index uq_books_title" in output
    assert "warning: books.extra has no field on Book" in output


def test_an_index_of_the_same_name_with_another_condition_is_noticed(shop: Application) -> None:
    shop.sql(
        "DROP INDEX uq_books_title", "CREATE UNIQUE INDEX uq_books_title ON books (title) WHERE note = ''"
    )

    assert "uq_books_title" in shop.migrate("check", code=1)


def test_files_go_down_and_up_again(shop: Application) -> None:
    before = shop.catalogue()
    shop.write(BOOK + "    pages: int = field(default=0, index=True)\n")
    make_and_apply(shop)

    shop.migrate("down", "--yes")
    assert shop.catalogue() == before
    shop.migrate("up")
    assert "ok" in shop.migrate("check")


PAGES = BOOK + "    pages: int = 0\n"


def test_a_column_that_is_renamed_and_of_another_type_keeps_its_values_both_ways(shop: Application) -> None:
    shop.write(PAGES)
    make_and_apply(shop, "-m", "pages")
    book(shop, "Persuasion", pages=249)
    shop.write(BOOK + '    length: str = field(default="none", renamed_from="pages")\n')

    make_and_apply(shop, "-m", "length", "--allow-rewrite")

    assert [one.length for one in books(shop, sorts="created_at")] == ["0", "249"]
    shop.migrate("down", "--yes")
    shop.files[-1].unlink()
    shop.write(PAGES)
    assert "ok" in shop.migrate("check")
    assert [one.pages for one in books(shop, sorts="created_at")] == [0, 249]


def test_a_column_that_is_renamed_and_of_another_default_needs_one_file(shop: Application) -> None:
    shop.write(BOOK.replace('note: str = ""', 'remark: str = field(default="new", renamed_from="note")'))

    make_and_apply(shop, "-m", "remark")

    shop.migrate("down", "--yes")
    shop.files[-1].unlink()
    shop.write(BOOK)
    assert "ok" in shop.migrate("check")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("Model", "Model, WithDeletedAt", id="of all rows, then of those not deleted"),
        pytest.param("Model, WithDeletedAt", "Model", id="of those not deleted, then of all rows"),
        pytest.param("Model, WithIsDeleted", "Model", id="of those without the mark, then of all rows"),
        pytest.param("Model", None, id="unique, then not"),
    ],
)
def test_an_index_that_a_file_changes_or_drops_comes_back_when_it_is_undone(
    shop: Application, before: str, after: str | None
) -> None:
    models = BOOK.replace("Model", before)
    if before != "Model":
        shop.write(models)
        make_and_apply(shop, "-m", "before")
    shop.write(models.replace(before, after) if after else models.replace(", unique=True", ""))
    make_and_apply(shop, "-m", "after")

    shop.migrate("down", "--yes")

    shop.files[-1].unlink()
    shop.write(models)
    assert "ok" in shop.migrate("check")


UNIQUE_PAGES = BOOK + "    pages: int = field(default=0, unique=True)\n"
LENGTH = BOOK + '    length: int = field(default=0, unique=True, renamed_from="pages")\n'
NOVEL = BOOK.replace("class Book(Model)", 'class Book(Model, table="novels", renamed_from="books")')
KEPT = "Model, WithDeletedAt"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(PAGES, UNIQUE_PAGES.replace("int", "str").replace("=0", '="0"'), id="retyped, unique"),
        pytest.param(
            PAGES, LENGTH.replace("int", "str").replace("=0", '="0"'), id="renamed, retyped, unique"
        ),
        pytest.param(
            UNIQUE_PAGES,
            UNIQUE_PAGES.replace("int", "str").replace("=0", '="0"').replace("Model", KEPT),
            id="retyped, then unique among rows not deleted",
        ),
        pytest.param(UNIQUE_PAGES, LENGTH.replace("Model", KEPT), id="renamed, then among rows not deleted"),
        pytest.param(UNIQUE_PAGES.replace("Model", KEPT), LENGTH, id="renamed, then among all rows"),
        pytest.param(UNIQUE_PAGES, LENGTH.replace("unique=True, ", ""), id="renamed, then not unique"),
        pytest.param(UNIQUE_PAGES, NOVEL + "    pages: int = 0\n", id="of a renamed table, then not unique"),
    ],
)
def test_an_index_follows_its_column_in_one_file_and_back(shop: Application, before: str, after: str) -> None:
    shop.write(before)
    make_and_apply(shop, "-m", "before")
    book(shop, "Persuasion", pages=249)
    shop.write(after)

    make_and_apply(shop, "-m", "after", "--allow-rewrite")

    shop.migrate("down", "--yes")
    shop.files[-1].unlink()
    shop.write(before)
    shop.migrate("up")
    assert "ok" in shop.migrate("check")
    assert [one.pages for one in books(shop, sorts="created_at")] == [0, 249]
