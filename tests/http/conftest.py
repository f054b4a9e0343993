"""The server with durable work that the tests of its routes call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.kit.run_routes import Site, a_server, site_on


@pytest.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    async with site_on(a_server(), database_url) as site:
        yield site
