"""Plain functions that hang keep no thread from those of another part."""

from __future__ import annotations

import asyncio
import threading

from maniflex import Run, Server
from maniflex._threads import MOST
from maniflex.background.outbox.delivery import MOST_ASIDE
from maniflex.background.outbox.handlers import MOST_THREADS, MessageHandler
from tests.kit.runs import status, working
from tests.kit.waiting import eventually


async def test_hung_outbox_handlers_keep_no_run_from_its_plain_step(server: Server) -> None:
    may_end, begun = threading.Event(), threading.Semaphore(0)

    def hang(message: object) -> None:
        begun.release()
        may_end.wait(60)

    @server.work.handler("default.plain", max_attempts=1)
    async def handle(run: Run) -> int:
        return await run.step("plain", int, "1")

    handler = MessageHandler.of("hung", hang)
    hung = [asyncio.create_task(handler(None)) for _ in range(max(MOST, MOST_ASIDE))]
    try:
        for _ in hung:
            await eventually(lambda: begun.acquire(blocking=False), "a handler that hangs")
        async with working(server) as work:
            made = await work.submit("default.plain")
            async with asyncio.timeout(30):
                await work.worker().drain()
            assert await status(work, made.id) == "succeeded"
    finally:
        may_end.set()
        await asyncio.gather(*hung)


def test_there_are_more_threads_than_handlers_that_are_put_aside() -> None:
    assert MOST_THREADS > MOST_ASIDE
