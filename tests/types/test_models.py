"""What a type checker makes of a model. mypy reads this file; running it proves the same at run time.

A line with an ignore is one that must not type-check: mypy reports an ignore nothing needs.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, assert_type

import pytest

from maniflex.errors import ValidationFailed
from maniflex.model.base import Model, WithDeletedAt
from maniflex.model.field import field, file, scheduled
from maniflex.model.relation import belongs_to, has_many, many_to_many


class Author(Model):
    name: str = field(filterable=True)
    books: list[Book] = has_many()


class Book(Model, WithDeletedAt, table="library_books", versioned=True):
    title: str = field(max_length=80)
    price: Decimal = field(default=Decimal(0), min=0)
    status: Literal["draft", "live"] = field(default="draft")
    tags: list[str] = field(default_factory=list)
    json: dict[str, Any] = field(default_factory=dict)
    copy: int = 1
    cover: str | None = file(default=None, acl="public")
    publish_at: datetime | None = scheduled(default=None, set_field="status", to="live")
    author_id: str = ""
    author: Author = belongs_to()
    shelves: list[Shelf] = many_to_many(through="BookShelf")


class Shelf(Model):
    label: str


def test_attributes_have_their_declared_types() -> None:
    book = Book(title="Emma", json={"a": 1})

    assert_type(book, Book)
    assert_type(book.id, str)
    assert_type(book.created_at, datetime)
    assert_type(book.deleted_at, datetime | None)
    assert_type(book.title, str)
    assert_type(book.price, Decimal)
    assert_type(book.status, Literal["draft", "live"])
    assert_type(book.tags, list[str])
    assert_type(book.json, dict[str, Any])
    assert_type(book.copy, int)
    assert_type(book.cover, str | None)


def test_relations_have_their_declared_types_and_are_no_arguments() -> None:
    book, author = Book(title="Emma"), Author(name="Jane")
    book.author = author
    author.books = [book]

    assert_type(book.author, Author)
    assert_type(author.books, list[Book])
    with pytest.raises(ValidationFailed):
        Book(title="Emma", author=author)  # type: ignore[call-arg]


def test_arguments_are_checked_by_name_and_by_type() -> None:
    with pytest.raises(ValidationFailed):
        Book()  # type: ignore[call-arg]
    with pytest.raises(ValidationFailed):
        Book(title=5)  # type: ignore[arg-type]
    with pytest.raises(ValidationFailed):
        Book(title="Emma", titel="x")  # type: ignore[call-arg]
    with pytest.raises(ValidationFailed):
        Book(title="Emma", status="gone")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Book("Emma")  # type: ignore[call-arg]


def test_misspelt_options_are_seen_by_the_checker_too() -> None:
    class Odd(Model):
        title: str = field(read_only=True)  # type: ignore[call-overload]
        rank: int = field(default="first")  # type: ignore[assignment]

    assert "title" in Odd.__annotations__


def test_an_alias_is_the_argument_a_checker_expects_and_both_names_work() -> None:
    class Page(Model):
        url_name: str = field(alias="urlName")

    assert Page(urlName="a").url_name == "a"
    assert Page(url_name="a").url_name == "a"  # type: ignore[call-arg] # checkers know the alias only
