import asyncio

from maniflex import Run, Server
from maniflex.testing import client

server = Server(metrics_enabled=True, ready_needs_work=True)


@server.work.handler("default.hello")
async def hello(run: Run) -> None: ...


async def main() -> None:
    async with client(server, background=True) as http:
        run = await server.work.submit("default.hello")
        await server.work.wait(run.id, timeout=10)

        page = (await http.get("/metrics")).text
        assert 'maniflex_runs_succeeded_total{type="default.hello"} 1.0' in page
        assert (await http.get("/ready")).status_code == 200


if __name__ == "__main__":
    asyncio.run(main())
