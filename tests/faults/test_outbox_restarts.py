"""A relay whose PostgreSQL is restarted under it goes on by itself."""

from __future__ import annotations

from collections import Counter

from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Message
from tests.kit.outbox import a_bench
from tests.kit.private_postgres import private_postgres
from tests.kit.waiting import eventually

RESTARTS = 3


async def test_a_worker_resumes_after_every_restart_of_postgres() -> None:
    seen: Counter[int] = Counter()

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def note(message: Message) -> None:
            seen[message.payload] += 1

    with private_postgres() as postgres:
        await postgres.start()
        async with a_bench(postgres.url, declare, outbox_poll_interval=0.5) as bench:
            worker = bench.outbox.worker()
            await worker.start()
            try:
                for n in range(RESTARTS):
                    await bench.enqueue(*(("note", 10 * n + m, f"k{m % 3}") for m in range(10)))
                    await postgres.stop()
                    errors = worker.errors
                    worker.wake()
                    await eventually(lambda before=errors: worker.errors > before, patience=60)  # type: ignore[misc]
                    await postgres.start()
                    await eventually(lambda due=10 * n + 10: len(seen) == due, patience=60)  # type: ignore[misc]
            finally:
                await worker.stop()
            assert [row.status for row in await bench.rows()] == ["delivered"] * 10 * RESTARTS

    assert max(seen.values()) <= 2
