"""Model instances in code."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from pydantic import PrivateAttr

from maniflex.errors import ValidationFailed
from maniflex.model.base import Model
from maniflex.model.field import LocaleString, field
from maniflex.model.relation import NotLoaded, belongs_to, has_many
from tests.kit.declarations import messages_of, meta_of, sealed


class Colour(StrEnum):
    RED = "red"


@dataclass
class Point:
    x: int


class Author(Model):
    name: str
    books: list[Book] = has_many()


class Book(Model):
    title: str = field(max_length=10)
    author_id: str | None = None
    author: Author = belongs_to()
    password: str = field(default="hunter2", writeonly=True)
    token: str = field(default="hunter2", hidden=True)
    pin: str = field(default="hunter2", encrypted=True)


class Shape(Model):
    colour: Colour
    point: Point
    tags: list[str]
    names: LocaleString | None = None


def test_making_an_instance_checks_it() -> None:
    with pytest.raises(ValidationFailed):
        Book(title="far too long a title")
    with pytest.raises(ValidationFailed) as caught:
        Book(titel="x", title="x")  # type: ignore[call-arg]
    assert messages_of(caught) == ["field \"titel\" does not exist; did you mean 'title'?"]


def test_an_instance_gets_an_id_and_its_times() -> None:
    book = Book(title="a")

    assert len(book.id) == 36
    assert book.created_at.tzinfo is UTC
    assert isinstance(book.updated_at, datetime)


def test_repr_shows_fields_but_no_secrets() -> None:
    text = repr(Book(title="Emma"))

    assert "title='Emma'" in text
    assert "hunter2" not in text


def test_a_relation_that_is_not_loaded_says_how_to_load_it() -> None:
    with pytest.raises(NotLoaded, match=r"Book.author is not loaded; include it when reading"):
        Book(title="a").author  # noqa: B018 - reading is what fails
    assert not hasattr(Author(name="a"), "books")


def test_a_relation_can_be_set_and_read_and_is_no_column() -> None:
    author = Author(name="Jane")
    book = Book(title="Emma")

    book.author = author
    author.books = [book]

    assert book.author is author
    assert author.books == [book]
    assert "author" not in sealed(Author, Book)["Book"].by_name
    assert "Jane" not in repr(book)


def test_an_attribute_that_is_no_field_cannot_be_set() -> None:
    with pytest.raises(ValueError, match="titel"):
        Book(title="a").titel = "b"  # type: ignore[attr-defined]


def test_stored_values_become_an_instance_unchecked() -> None:
    book = Book._from_db({"id": "1", "title": "longer than ten characters"})

    assert (book.id, book.title) == ("1", "longer than ten characters")
    assert isinstance(book, Book)


def test_stored_json_and_enums_come_back_in_their_declared_types() -> None:
    meta_of(Shape)

    shape = Shape._from_db(
        {"colour": "red", "point": '{"x": 1}', "tags": '["a"]', "names": '{"en": "Red"}', "id": "1"}
    )

    assert shape.colour is Colour.RED
    assert shape.point == Point(1)
    assert shape.tags == ["a"]
    assert isinstance(shape.names, LocaleString)
    assert Shape._from_db({"names": None}).names is None


def test_values_that_were_never_text_stay_as_they_are() -> None:
    meta_of(Shape)

    shape = Shape._from_db({"colour": Colour.RED, "point": Point(1), "tags": ["a"]})

    assert (shape.colour, shape.point, shape.tags) == (Colour.RED, Point(1), ["a"])


def test_instances_can_be_copied_compared_and_pickled() -> None:
    book = Book(title="a")

    assert copy.deepcopy(book) == book
    assert pickle.loads(pickle.dumps(book)) == book


def test_private_attributes_work_on_made_and_on_stored_records() -> None:
    class Counter(Model):
        name: str
        _hits: int = PrivateAttr(default=0)

    made, stored = Counter(name="a"), Counter._from_db({"name": "a"})
    made._hits += 1
    stored._hits += 2

    assert (made._hits, stored._hits) == (1, 2)


def test_a_models_own_constructor_is_respected() -> None:
    class Loud(Model):
        name: str

        def __init__(self, **values: Any) -> None:
            super().__init__(**{**values, "name": values["name"].upper()})

    assert Loud(name="a").name == "A"
