"""Open while declaring, sealed when the application starts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from maniflex.errors import DeclarationError
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.model.registry import Registry
from tests.kit.declarations import problems_of, sealed


class User(Model):
    name: str


class Post(Model):
    title: str


class Comment(Model):
    body: str


class Base(Model, abstract=True):
    tenant: str


def test_options_belong_to_the_class_right_before_them() -> None:
    metas = sealed(User, Post, ModelOptions(table="articles"), [Comment, ModelOptions(table="replies")])

    assert [meta.table for meta in metas.values()] == ["users", "articles", "replies"]


@pytest.mark.parametrize(
    "arguments",
    [
        (ModelOptions(), User),
        (User, ModelOptions(), ModelOptions()),
        (User, [ModelOptions()]),
        (User, [Post], ModelOptions()),
        ([[ModelOptions(), User]],),
        ([User, ModelOptions(), ModelOptions()],),
    ],
)
def test_options_without_a_class_of_their_own_are_refused(arguments: tuple[Any, ...]) -> None:
    registry = Registry()

    with pytest.raises(DeclarationError, match="follow no model"):
        registry.register(*arguments)

    assert len(registry) == 0


@pytest.mark.parametrize(
    ("argument", "part"),
    [
        (User(name="x"), "give the class User, not an instance"),
        (dict, "dict is not a model; inherit from maniflex.Model"),
        ("User", "'User' is not a model class"),
        (None, "None is not a model class"),
        (Base, "Base is abstract"),
        (Model, "Model is abstract"),
    ],
)
def test_one_wrong_argument_adds_nothing(argument: Any, part: str) -> None:
    registry = Registry()

    with pytest.raises(DeclarationError) as caught:
        registry.register(User, [Post, argument])

    assert part in str(caught.value)
    assert len(registry) == 0


def test_all_wrong_arguments_are_named_at_once() -> None:
    with pytest.raises(DeclarationError) as caught:
        Registry().register(ModelOptions(), dict, [5])

    assert len(caught.value.problems) == 3


def test_two_models_with_one_name_or_one_table_are_refused() -> None:
    class Article(Model, table="Posts"):
        title: str

    assert problems_of(Post, Article) == ("Article: shares the table 'Posts' with Post; set table=",)
    assert problems_of(Post, Post) == ("Post: two models have this name, or one is registered twice",)


def test_sealing_twice_gives_the_same_models() -> None:
    registry = Registry()
    registry.register(User)

    assert registry.seal() == registry.seal()


def test_an_application_without_models_can_be_sealed() -> None:
    assert Registry().seal() == ()


def test_registration_after_sealing_is_refused_and_leaves_nothing_behind() -> None:
    registry = Registry()
    registry.register(User)
    before = registry.seal()

    with pytest.raises(DeclarationError, match="Post: the server has started"):
        registry.register(Post, ModelOptions(table="x"))

    assert registry.seal() == before
    assert len(registry) == 1


def test_a_registry_that_failed_to_seal_stays_open() -> None:
    class Broken(Model):
        value: set[int]

    registry = Registry()
    registry.register(Broken)

    with pytest.raises(DeclarationError):
        registry.seal()

    assert not registry.sealed


def test_a_race_of_registration_and_sealing_loses_nothing_half_way() -> None:
    for _ in range(20):
        registry = Registry()
        registry.register(User)

        def register(model: type[Model], registry: Registry = registry) -> bool:
            try:
                registry.register(model)
            except DeclarationError:
                return False
            return True

        with ThreadPoolExecutor(3) as pool:
            added = {cls: pool.submit(register, cls) for cls in (Post, Comment)}
            metas = pool.submit(registry.seal).result()
            taken = {cls for cls, outcome in added.items() if outcome.result()}

        assert {meta.cls for meta in metas} == {User} | taken
        assert len(registry) == 1 + len(taken)
