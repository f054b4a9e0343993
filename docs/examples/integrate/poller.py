import asyncio
from datetime import timedelta

from maniflex import Model, Server
from maniflex.ext.integration import Poller


class Reading(Model):
    celsius: float


server = Server(database="sqlite:///:memory:")
server.register(Reading)
synced = asyncio.Event()


async def read_thermometer() -> None:
    await server.db(Reading).create(celsius=21.5)
    synced.set()


server.add_service(Poller(timedelta(seconds=30), read_thermometer, run_on_start=True))


async def main() -> None:
    async with server.lifespan():
        await synced.wait()


if __name__ == "__main__":
    asyncio.run(main())
