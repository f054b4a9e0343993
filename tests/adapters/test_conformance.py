"""Both our adapters, and SQLite's private database, keep the promises of the port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from maniflex.db.port import Adapter
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.testing.conformance import AdapterConformance


class TestSqliteFile(AdapterConformance):
    @pytest.fixture
    async def adapter(self, tmp_path: Path) -> AsyncIterator[Adapter]:
        adapter = SqliteAdapter(str(tmp_path / "app.db"))
        await adapter.open()
        yield adapter
        await adapter.close()


class TestSqliteMemory(AdapterConformance):
    keeps_data = False

    @pytest.fixture
    async def adapter(self) -> AsyncIterator[Adapter]:
        adapter = SqliteAdapter(":memory:")
        await adapter.open()
        yield adapter
        await adapter.close()


class TestPostgres(AdapterConformance):
    @pytest.fixture
    async def adapter(self, postgres_url: str) -> AsyncIterator[Adapter]:
        from maniflex.db.postgres.adapter import PostgresAdapter

        adapter = PostgresAdapter(postgres_url)
        await adapter.open()
        yield adapter
        await adapter.close()
