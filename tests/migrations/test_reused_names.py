"""A column that is renamed while another field takes its old name: it goes first, with its values."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from maniflex.errors import DeclarationError
from tests.kit.migrations import Application

BOOK = """
class Book(Model):
    title: str = field(searchable=True, unique=True)
    price: Decimal = field(default=Decimal("1"), index=True, sortable=True)
    note: str = ""
    hint: str = ""
"""
TITLE, PRICE = BOOK.splitlines()[2:4]
HEADLINE = '    headline: str = field(renamed_from="title", searchable=True, unique=True)\n'
COST = '    cost: Decimal = field(default=Decimal("1"), index=True, sortable=True, renamed_from="price")\n'


@pytest.fixture
def library(application: Application) -> Application:
    application.write(BOOK)
    return application


def add_book(application: Application) -> None:
    async def create() -> None:
        server = application.server
        async with server.lifespan(role="client"):
            await server.db("Book").create(title="Emma", price=Decimal("10.50"), note="n", hint="h")

    asyncio.run(create())


def stored(application: Application, columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in application.sql(f"SELECT {columns} FROM books")]


CASES = [
    pytest.param(BOOK.replace(TITLE, HEADLINE + '    title: str = ""'), "headline", "title", id="plain"),
    pytest.param(
        BOOK.replace(
            TITLE, HEADLINE + "    title: str | None = field(default=None, unique=True, searchable=True)"
        ),
        *("headline", "title"),
        id="both unique and searched",
    ),
    pytest.param(
        BOOK.replace(
            TITLE,
            "    title: str | None = field(default=None, unique=True)\n"
            '    headline: str = field(renamed_from="title")',
        ),
        *("headline", "title"),
        id="only the new one unique, and declared first",
    ),
    pytest.param(
        BOOK.replace(PRICE, COST + '    price: Decimal = field(default=Decimal("5"), index=True)'),
        *("cost", "price"),
        id="decimals",
    ),
    pytest.param(
        BOOK.replace(PRICE, COST + "    price: int = 0"), "cost", "price", id="the new one of another type"
    ),
    pytest.param(
        BOOK.replace('note: str = ""', 'remark: str = field(default="", renamed_from="note")').replace(
            'hint: str = ""', 'note: str = field(default="", renamed_from="hint")'
        ),
        *("remark", "note"),
        id="a chain",
    ),
    pytest.param(
        BOOK.replace('note: str = ""', 'note: str = field(default="", renamed_from="hint")').replace(
            'hint: str = ""', 'remark: str = field(default="", renamed_from="note")'
        ),
        *("remark", "note"),
        id="a chain, declared the other way round",
    ),
    pytest.param(
        BOOK.replace(TITLE, HEADLINE + '    title: str = ""').replace(
            'hint: str = ""', "hint: str | None = None"
        ),
        *("headline", "title"),
        id="beside a column that changes in place",
    ),
]


@pytest.mark.parametrize(("after", "renamed", "reused"), CASES)
def test_a_file_renames_first_and_goes_back(
    library: Application, after: str, renamed: str, reused: str
) -> None:
    library.migrate("make", "-m", "first")
    library.migrate("up")
    add_book(library)
    before = stored(library, f"{reused}, title, price, note, hint")
    old_value = before[0][0]
    library.write(after)

    library.migrate("make", "-m", "rename")

    text = library.files[-1].read_text()
    assert f'op.rename_column("books", "{reused}", "{renamed}")' in text
    library.migrate("up")
    assert library.migrate("make").endswith("nothing to do\n")
    assert "ok" in library.migrate("check", "--replay")
    [[renamed_value, reused_value]] = stored(library, f"{renamed}, {reused}")
    assert renamed_value == old_value
    assert reused_value != old_value

    library.migrate("down", "--yes")
    library.files[-1].unlink()
    library.write(BOOK)
    library.migrate("up")  # makes search and order keys of these models anew
    assert "ok" in library.migrate("check")
    assert stored(library, f"{reused}, title, price, note, hint") == before


@pytest.mark.parametrize(("after", "renamed", "reused"), [CASES[0], *CASES[3:7]])
def test_the_start_renames_first_too(library: Application, after: str, renamed: str, reused: str) -> None:
    library.start()
    add_book(library)
    [[old_value]] = stored(library, reused)

    library.write(after).start()

    [[renamed_value, reused_value]] = stored(library, f"{renamed}, {reused}")
    assert renamed_value == old_value
    assert reused_value != old_value
    assert library.migrate("make") == "nothing to do\n"


def test_check_says_what_make_will_do_and_nothing_of_the_new_field_twice(library: Application) -> None:
    library.migrate("make", "-m", "first")
    library.migrate("up")
    add_book(library)
    after = BOOK.replace(
        'note: str = ""',
        'remark: str = field(default="", renamed_from="note")\n    note: Literal["new", "used"] = "new"',
    )
    library.write(after)

    *problems, advice = library.migrate("check", code=1).splitlines()

    assert advice.startswith(
        "the models are ahead of the migrations; write a migration with `maniflex migrate make"
    )
    assert problems == [
        "books.note is to be renamed to 'remark'",
        "Book.note: 'books' has no column 'note'",
    ]


PAIR = """
class Book(Model):
    note: str = field({options})
    hint: str = field({options})
"""
CHAIN = """
class Book(Model):
    note: str = field({options}, renamed_from="hint")
    remark: str = field({options}, renamed_from="note")
"""


def add_pair(application: Application) -> None:
    async def create() -> None:
        server = application.server
        async with server.lifespan(role="client"):
            await server.db("Book").create(note="n", hint="h")

    asyncio.run(create())


@pytest.mark.parametrize("options", ["unique=True", "index=True"])
def test_a_chain_takes_its_indexes_along_in_a_file_and_back(application: Application, options: str) -> None:
    application.write(PAIR.format(options=options)).migrate("make", "-m", "first")
    application.migrate("up")
    add_pair(application)
    before = application.catalogue()
    application.write(CHAIN.format(options=options)).migrate("make", "-m", "rename")

    text = application.files[-1].read_text()
    assert text.count("op.rename_index(") == 4
    assert "op.create_index(" not in text
    application.migrate("up")
    assert stored(application, "remark, note") == [("n", "h")]
    assert application.migrate("make") == "nothing to do\n"
    assert "ok" in application.migrate("check", "--replay")

    application.migrate("down", "--yes")
    assert application.catalogue() == before


@pytest.mark.parametrize("options", ["unique=True", "index=True"])
@pytest.mark.parametrize("table", ["", 'Journal(Model, renamed_from="books")'])
def test_the_start_takes_the_indexes_of_a_chain_along(
    application: Application, other_url: str, options: str, table: str
) -> None:
    application.write(PAIR.format(options=options)).start()
    add_pair(application)
    after = CHAIN.format(options=options)
    if table:
        after = after.replace("Book(Model)", table)

    application.write(after).start()

    assert application.migrate("make") == "nothing to do\n"
    assert "ok" in application.migrate("check")
    after_rename = index_columns(application)
    application.on(other_url).start()
    assert index_columns(application) == after_rename


def index_columns(application: Application) -> list[str]:
    """The indexes by name and column, whatever the order of the columns of the table."""
    sql = "SELECT indexname || ' ' || indexdef FROM pg_indexes WHERE schemaname = 'public'"
    if application.url.startswith("sqlite"):
        sql = (
            "SELECT m.name || ' ' || i.name || ' ' || l.\"unique\" FROM sqlite_master m"
            " JOIN pragma_index_info(m.name) i JOIN pragma_index_list(m.tbl_name) l ON l.name = m.name"
            " WHERE m.type = 'index'"
        )
    return sorted(row[0] for row in application.sql(sql))


def test_the_way_back_of_a_chain_builds_a_dropped_index_on_its_own_column(application: Application) -> None:
    unique = PAIR.format(options='unique=True, default=""')
    application.write(unique).migrate("make", "-m", "first")
    application.migrate("up")
    before = application.catalogue()
    application.write(CHAIN.format(options='default=""')).migrate("make", "-m", "rename")
    application.migrate("up")
    assert "ok" in application.migrate("check")

    application.migrate("down", "--yes")

    assert application.catalogue() == before


CONTRADICTIONS = [
    pytest.param(
        """
        class Book(Model):
            note: str = field(default="", renamed_from="hint")
            hint: str = field(default="", renamed_from="note")
        """,
        "Book.note: renamed_from goes round in a circle (note from 'hint', hint from 'note')",
        id="a swap",
    ),
    pytest.param(
        """
        class Book(Model):
            note: str = field(default="", renamed_from="hint")
            hint: str = field(default="", renamed_from="remark")
            remark: str = field(default="", renamed_from="note")
        """,
        "Book.note: renamed_from goes round in a circle"
        " (note from 'hint', remark from 'note', hint from 'remark')",
        id="a circle of three",
    ),
    pytest.param(
        """
        class Book(Model):
            remark: str = field(default="", renamed_from="note")
            comment: str = field(default="", renamed_from="note")
            hint: str = ""
        """,
        "Book.comment: shares renamed_from='note' with remark",
        id="two from one",
    ),
]


@pytest.mark.parametrize(("after", "sentence"), CONTRADICTIONS)
def test_renames_that_contradict_each_other_are_refused(
    application: Application, after: str, sentence: str
) -> None:
    application.write(PAIR.format(options='default=""')).start()
    add_pair(application)
    application.write(after)

    with pytest.raises(DeclarationError) as refusal:
        application.start()
    assert sentence in str(refusal.value)
    assert sentence in application.migrate("make", code=1)
    assert stored(application, "note, hint") == [("n", "h")]


def test_a_swap_is_made_by_a_file_of_ones_own(application: Application) -> None:
    application.write(PAIR.format(options="unique=True")).migrate("make", "-m", "first")
    application.migrate("up")
    add_pair(application)
    application.migrate("make", "--empty", "-m", "swap")
    path = application.files[-1]
    steps = [("note", "third"), ("hint", "note"), ("third", "hint")]
    renames = "".join(f'    op.rename_column("books", "{old}", "{new}")\n' for old, new in steps)
    head, upgrade, _ = path.read_text().partition("def upgrade() -> None:\n")
    path.write_text(head + upgrade + renames + "\n\ndef downgrade() -> None:\n" + renames)

    application.migrate("up")

    assert stored(application, "note, hint") == [("h", "n")]
    application.migrate("down", "--yes")
    assert stored(application, "note, hint") == [("n", "h")]
