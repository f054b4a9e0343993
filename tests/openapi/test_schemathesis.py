"""Schemathesis: whatever the description promises, the server keeps; whatever it forbids is refused."""

from __future__ import annotations

import pytest

from examples.blog.app import create_server
from tests.openapi.app import rich_server
from tests.openapi.harness import failures, served


@pytest.fixture
def examples(long_mode: bool) -> int:
    """How many requests each operation gets in each phase."""
    return 100 if long_mode else 3


def test_the_blog_does_what_its_description_says(database_url: str, examples: int, long_mode: bool) -> None:
    with served(create_server(), database_url) as url:
        assert failures(url, examples, coverage=long_mode) == []


@pytest.mark.long
def test_an_application_with_everything_does_what_its_description_says(
    database_url: str, examples: int
) -> None:
    with served(rich_server(), database_url) as url:
        assert failures(url, examples) == []
