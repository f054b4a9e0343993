"""Databases of the sites that browsers visit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest


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
