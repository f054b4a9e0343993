import asyncio

from maniflex import Run, Server

server = Server()
started = asyncio.Event()


@server.work.handler("report.build.v1")
async def build(run: Run) -> None:
    started.set()
    for _page in range(100_000):
        await run.heartbeat()  # raises RunCancelled once somebody cancelled the run
        await asyncio.sleep(0.01)


async def main() -> None:
    started.clear()
    async with server.lifespan():
        run = await server.work.submit("report.build.v1")
        await started.wait()
        assert (await server.work.cancel(run.id)).status == "cancelled"
    # Here the server has stopped, and did not wait for 100,000 pages.


if __name__ == "__main__":
    asyncio.run(main())
