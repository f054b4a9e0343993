"""How `scripts/test` comes by a PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import asyncpg
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import _postgres


@pytest.fixture
def binaries() -> Path:
    found = _postgres._binaries()
    if found is None:
        pytest.skip("there are no server binaries on this machine")
    return found


def clusters() -> set[str]:
    return {name for name in os.listdir("/tmp") if name.startswith("maniflex-postgres-")}


async def version(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(connection.get_server_version().major)
    finally:
        await connection.close()


def test_a_temporary_cluster_serves_and_leaves_nothing_behind(binaries: Path) -> None:
    before = clusters()

    with _postgres._temporary_cluster(binaries) as url:
        assert asyncio.run(version(url)) >= _postgres.MINIMUM_VERSION

    assert clusters() == before
    with pytest.raises(OSError, match="Connect call failed"):
        asyncio.run(version(url))


def test_a_temporary_cluster_goes_away_when_the_tests_blow_up(binaries: Path) -> None:
    before = clusters()

    with pytest.raises(KeyboardInterrupt), _postgres._temporary_cluster(binaries):
        raise KeyboardInterrupt

    assert clusters() == before


def test_the_message_names_every_way_to_get_one() -> None:
    for way in ("MANIFLEX_TEST_POSTGRES", "127.0.0.1:5432", "apt-get install postgresql", "--sqlite-only"):
        assert way in _postgres.HELP
