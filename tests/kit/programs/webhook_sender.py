"""Writes orders and routes their events; then is killed, or sends them until it is."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from maniflex import Model, Server

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Order(Model, events=True):
    """What emits."""

    total: int = 0


def server_of(database: str, url: str) -> Server:
    server = Server(database, background=False)
    server.register(Order)
    server.webhooks.send(url, "order.*", secret=SECRET, allow_private=True)
    return server


async def main(database: str, url: str, count: int, sends: bool) -> None:
    server = server_of(database, url)
    async with server.lifespan():
        for number in range(count):
            await server.db(Order).create(total=number)
        await server.events.drain()
        if sends:
            await server.webhooks.drain()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "sends"))
