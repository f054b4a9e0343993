"""A worker on a loop where Python itself turns Ctrl-C into an exception, in a handler that blocks."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from maniflex import Run, Server

server = Server(sys.argv[1])


@server.work.handler("default.block")
async def block(run: Run) -> None:
    print("working", flush=True)
    for _ in range(1200):  # a signal that comes just before a sleep is seen only after it
        time.sleep(0.1)  # noqa: ASYNC251  # to block the loop is the point


async def main() -> None:
    async with server.lifespan():
        await server.work.submit("default.block")
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.new_event_loop().run_until_complete(main())
    except KeyboardInterrupt:
        os._exit(9)
