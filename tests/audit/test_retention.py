"""`audit_retention`: old records leave the tables of audit trails, others stay."""

from __future__ import annotations

from datetime import timedelta

from maniflex import Server
from maniflex.middleware import db
from maniflex.testing import FakeClock
from tests.audit.world import Order, Shop
from tests.kit.waiting import eventually


async def _trail(url: str, keep: timedelta) -> list[str]:
    """The records that are left of one a hundred days old and one of today."""
    clock = FakeClock()
    server = Server(database=url, audit_retention=keep, clock=clock)
    server.register(Order, Shop)
    server.pipeline.db.register(db.audit_log())
    async with server.lifespan():
        await server.db(Order).create(number=1, note="old")
        clock.advance(timedelta(days=100))
        await server.db(Order).create(number=2, note="new")

        async def notes() -> list[str]:
            rows = await server.raw_query("SELECT result FROM audit_log ORDER BY timestamp")
            return ["old" if "old" in str(row["result"]) else "new" for row in rows]

        if keep:

            async def is_swept() -> bool:
                clock.advance(timedelta(minutes=2))
                return await notes() == ["new"]

            await eventually(is_swept, "the old record is gone")
        else:
            clock.advance(timedelta(days=4000))
        return await notes()


async def test_old_records_go_and_others_stay(database_url: str) -> None:
    assert await _trail(database_url, timedelta(days=30)) == ["new"]


async def test_all_are_kept_unless_said_otherwise(database_url: str) -> None:
    assert await _trail(database_url, timedelta(0)) == ["old", "new"]
