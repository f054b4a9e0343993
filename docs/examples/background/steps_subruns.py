import asyncio

from maniflex import Run, RunFailed, Server

server = Server(background=False)


@server.work.handler("report.page.v1", max_attempts=1)
async def page(run: Run) -> int:
    return 100 // int(run.payload["parts"])


@server.work.handler("report.build.v1")
async def build(run: Run) -> dict[str, int]:
    quarter = await run.call("report.page.v1", {"parts": 4}, name="quarter")
    try:
        nothing = await run.call("report.page.v1", {"parts": 0}, name="nothing")
    except RunFailed as failed:
        run.logger.warning("run %s is %s: %s", failed.run_id, failed.status, failed.error)
        nothing = 0
    await run.submit("report.page.v1", {"parts": 1}, name="whole")  # not waited for
    return {"quarter": quarter, "nothing": nothing}


async def main() -> None:
    async with server.lifespan():
        run = await server.work.submit("report.build.v1")
        worker = server.work.worker()
        while not (done := await server.work.get(run.id)).finished:
            await worker.drain()

        assert done.result == {"quarter": 25, "nothing": 0}
        pages = await server.work.list(type="report.page.v1")
        assert {page.parent_id for page in pages} == {run.id}


if __name__ == "__main__":
    asyncio.run(main())
