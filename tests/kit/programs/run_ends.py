"""A worker that dies while it settles runs: `run_ends.py DATABASE SEED`.

It handles what waits, and is killed by its own hand after a number of settled runs that the seed says.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys

from maniflex import Run, Server
from maniflex.errors import Fatal

COUNT = 40


def server_of(database: str) -> Server:
    """The server whose runs are over by and by."""
    server = Server(database, background=False)
    server.work.enable(events=True)

    @server.work.handler("odd.one", max_attempts=1)
    async def odd(run: Run) -> int:
        if run.payload["n"] % 3 == 0:
            raise Fatal("by three")
        return int(run.payload["n"])

    return server


async def main(database: str, seed: int) -> None:
    """Work until the end that nobody announced."""
    server, count = server_of(database), random.Random(seed).randrange(1, COUNT)
    settled_ids: list[str] = []

    def note(id: str) -> None:
        settled_ids.append(id)
        if len(settled_ids) >= count:
            os.kill(os.getpid(), signal.SIGKILL)

    async with server.lifespan(role="client"):
        server.work.engine.observers.append(note)
        worker = server.work.worker(concurrency=2)
        await worker.drain()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
