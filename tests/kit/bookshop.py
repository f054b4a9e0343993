"""A book shop: every kind of field and relation, for the tests of the panel."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from maniflex import Model, Server, WithDeletedAt, belongs_to, field, file, has_many, many_to_many


class Author(Model):
    name: str = field(filterable=True, sortable=True, searchable=True)
    books: list[Book] = has_many()


class Tag(Model):
    name: str = field(filterable=True, sortable=True, unique=True)


class BookTag(Model):
    book_id: str = field(on_delete="cascade")
    tag_id: str = field()


class Book(Model, WithDeletedAt, versioned=True, restore=True, export=True):
    title: str = field(filterable=True, sortable=True, min_length=2, max_length=60)
    status: Literal["draft", "published", "archived"] = field(default="draft", filterable=True, sortable=True)
    price: Decimal = field(default=Decimal("1.10"), filterable=True, sortable=True, min=0)
    stock: int = field(default=0, filterable=True, sortable=True)
    weight: float | None = field(default=None, sortable=True)
    sold: bool = field(default=False, filterable=True)
    checked: bool | None = field(default=None)
    subtitle: str | None = field(default=None, filterable=True, sortable=True)
    published_at: datetime | None = field(default=None, filterable=True, sortable=True)
    printed_on: date | None = field(default=None, filterable=True)
    opens_at: time | None = field(default=None)
    extra: dict[str, Any] = field(default_factory=dict)
    code: UUID | None = field(default=None)
    raw: bytes | None = field(default=None)
    cover: str | None = file(default=None, accept=["image/*"], max_size="1MB")
    number: str = field(default="", immutable=True)
    views: int = field(default=0, readonly=True)
    pin: str | None = field(default=None, writeonly=True)
    internal: str = field(default="hidden-default", hidden=True)
    author_id: str | None = field(default=None, filterable=True, on_delete="restrict")
    author: Author | None = belongs_to()
    tags: list[Tag] = many_to_many(through="BookTag")


def make_shop(**options: Any) -> Server:
    server = Server(storage="memory:")
    server.register(Author, Tag, BookTag, Book)
    server.admin(**options)
    return server
