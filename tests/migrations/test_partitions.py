"""PostgreSQL: files change partitioned tables of durable work, and find no difference where there is none."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from maniflex.background.partitions.layout import Period
from maniflex.background.partitions.mover import TABLES, partition_tables
from maniflex.db.port import Adapter
from tests.kit.migrations import Application, on_adapter

WORK = "server.work.enable()\nserver.outbox.enable()\n"
PARTS = "SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass('{}')"


async def partition_all(adapter: Adapter) -> None:
    tables = [table for tables in TABLES.values() for table in tables]
    await partition_tables(adapter, tables, Period.DAY, datetime.now(UTC))


def test_an_index_is_built_partition_by_partition_and_nothing_else_is_to_do(
    tmp_path: Path, postgres_url: str
) -> None:
    application = Application(tmp_path, postgres_url).write(WORK)
    application.migrate("make", "-m", "first")
    application.migrate("up")
    asyncio.run(on_adapter(postgres_url, partition_all))
    application.migrate("check")
    assert "nothing to do" in application.migrate("make")
    application.start()

    application.sql("DROP INDEX workflow_run_actor_idx")
    application.migrate("check", code=1)
    application.migrate("make", "-m", "index")
    application.migrate("up")

    application.migrate("check")
    [[parts]], [[tables]] = (
        application.sql(PARTS.format(name)) for name in ("workflow_run_actor_idx", "workflow_run")
    )
    assert parts == tables == 4
