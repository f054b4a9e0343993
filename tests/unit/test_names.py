from __future__ import annotations

import pytest

from maniflex._names import (
    did_you_mean,
    is_api_name,
    is_identifier,
    pluralise,
    snake_case,
    suggest,
    table_name,
)


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("Post", "post"),
        ("BlogPost", "blog_post"),
        ("HTTPLog", "http_log"),
        ("UserID", "user_id"),
        ("S3Object", "s3_object"),
    ],
)
def test_class_names_become_snake_case(name: str, snake: str) -> None:
    assert snake_case(name) == snake


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("post", "posts"),
        ("category", "categories"),
        ("day", "days"),
        ("person", "people"),
        ("salesperson", "salespeople"),
        ("analysis", "analyses"),
        ("status", "statuses"),
        ("preferences", "preferences"),
        ("address", "addresses"),
        ("alias", "aliases"),
        ("lens", "lenses"),
        ("bus", "buses"),
        ("child", "children"),
        ("grandchild", "grandchildren"),
        ("man", "men"),
        ("woman", "women"),
        ("human", "humans"),
        ("mouse", "mice"),
        ("ox", "oxen"),
        ("box", "boxes"),
        ("datum", "data"),
        ("index", "indices"),
        ("quiz", "quizzes"),
        ("branch", "branches"),
        ("hero", "heroes"),
        ("photo", "photos"),
        ("knife", "knives"),
        ("series", "series"),
        ("settings", "settings"),
        ("sales_category", "sales_categories"),
        ("home_address", "home_addresses"),
    ],
)
def test_the_last_word_of_a_name_is_pluralised(one: str, many: str) -> None:
    assert pluralise(one) == many


def test_a_table_is_named_after_its_class() -> None:
    assert table_name("BlogCategory") == "blog_categories"


@pytest.mark.parametrize("name", ["read_only", "Readonly", "READONLY", "readnoly", "read-only"])
def test_a_misspelt_option_is_recognised(name: str) -> None:
    assert suggest(name, ["readonly", "writeonly", "hidden"]) == "readonly"


def test_nothing_is_suggested_for_a_name_that_resembles_none() -> None:
    assert suggest("zebra", ["readonly", "hidden"]) is None
    assert did_you_mean("zebra", ["readonly", "hidden"]) == ""


@pytest.mark.parametrize("name", ["", "1st", "drop table", 'a"b', "a;b", "naïve", "a" * 64, "a\n"])
def test_names_a_database_would_quote_or_cut_are_no_identifiers(name: str) -> None:
    assert not is_identifier(name)


def test_plain_names_are_identifiers() -> None:
    assert is_identifier("_posts_2024")
    assert is_identifier("a" * 63)


def test_api_names_may_have_hyphens_but_no_separators_of_the_query_grammar() -> None:
    assert is_api_name("first-name")
    assert not any(map(is_api_name, ["a.b", "a:b", "a,b", "a b", ""]))
