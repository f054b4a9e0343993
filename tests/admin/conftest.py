"""The browser of a file of tests, and the databases of the sites that it visits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser

from tests.kit.chromium import chromium


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def site_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty database for all tests of a file; on PostgreSQL with --long."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('database')}/site.db"
        return
    pool = request.getfixturevalue("postgres_pool")
    with ThreadPoolExecutor(1) as beside:  # the browser has an event loop on this thread
        name = beside.submit(pool.take).result()
    yield pool.url(name)
    pool.give_back(name)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a file, which make contexts of their own."""
    with chromium() as one:
        yield one
