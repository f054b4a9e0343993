"""A column that is renamed while another field takes its old name: it goes first, with its values."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

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

    problems = library.migrate("check", code=1).splitlines()

    assert problems == [
        "books.note is to be renamed to 'remark'",
        "Book.note: 'books' has no column 'note'",
    ]
