"""Three processes sweep what is kept no longer, and two of them are killed: each record goes once."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from maniflex import Model, Retention, Server, field, file
from maniflex.storage import LocalStorage
from tests.kit.processes import nursery
from tests.kit.waiting import eventually


class Paper(Model, table="ret_papers", versioned=True, retention=Retention("90d", since="seen_at")):
    number: int
    seen_at: datetime | None = None
    scan: str | None = file(default=None)


class Pin(Model, table="ret_pins"):
    paper_id: str = field(relation=Paper, on_delete="restrict")


LIFE = """
import asyncio, sys
from maniflex import Server
from maniflex.storage import LocalStorage
from tests.retention.test_kills import Paper, Pin

async def main():
    server = Server(sys.argv[1], storage=LocalStorage(sys.argv[2]), auto_migrate=False, sweep_batch_size=10)
    server.register(Paper, Pin)
    async with server.lifespan(role="client"):
        while (await server.retention.sweep()).changed:
            pass

def live(line):
    asyncio.run(main())
"""


def a_server(url: str, directory: Path) -> Server:
    server = Server(url, storage=LocalStorage(directory), background=False)
    server.register(Paper, Pin)
    return server


@pytest.mark.parametrize("papers", [600, pytest.param(10_000, marks=pytest.mark.long)])
async def test_each_record_goes_once_whoever_is_killed(
    database_url: str, tmp_path: Path, papers: int
) -> None:
    server, now = a_server(database_url, tmp_path / "files"), datetime.now(UTC)
    async with server.lifespan():
        scans = [await server.files.store(b"scan", filename="a.bin") for _ in range(6)]
        async with server.transaction():
            old = [
                await server.db(Paper).create(
                    number=number,
                    seen_at=now - timedelta(days=91),
                    scan=scans[number].key if number < 3 else None,
                )
                for number in range(papers)
            ]
            tomorrow = [
                await server.db(Paper).create(
                    number=number, seen_at=now - timedelta(days=89), scan=scans[number].key
                )
                for number in (3, 4, 5)
            ]
            await server.db(Paper).create(number=-1)  # nobody has seen it
            needed = {old[0].id, old[papers // 2].id}
            for record_id in needed:
                await server.db(Pin).create(paper_id=record_id)

        async def left() -> int:
            return await server.db(Paper).count()

        start, kills = await left(), 0
        with ExitStack() as stack:
            places = [stack.enter_context(nursery(LIFE, database_url, tmp_path / "files")) for _ in range(3)]
            for place in places:
                place.start()
            for place in places[:2]:
                goal = start - (kills + 1) * papers // 6

                async def is_under_way(goal: int = goal) -> bool:
                    return await left() <= goal

                await eventually(is_under_way, "some records are gone")
                place.kill()
                place.start()
                kills += 1
            for place in places:
                place.until_gone()

        assert {paper.id for paper in await server.db(Paper).list(limit=100)} >= {one.id for one in tomorrow}
        assert await left() == 2 + len(tomorrow) + 1
        report = await server.retention.sweep()
        assert (report.deleted, report.skipped) == (0, 2)
        assert {failure.id for failure in report.errors} == needed
        [row] = await server.raw_query(
            "SELECT count(*) AS rows, count(DISTINCT record_id) AS records FROM paper_histories"
            " WHERE operation = 'delete' AND source = 'retention'"
        )
        assert (row["rows"], row["records"]) == (papers - 2, papers - 2)
        await server.files.sweep()
        kept = {scans[0].key, scans[3].key, scans[4].key, scans[5].key}
        assert {key async for key in LocalStorage(tmp_path / "files").list_keys()} == kept
