import asyncio
from datetime import timedelta

from maniflex import Run, Server

server = Server(background=False)


@server.work.handler("expense.approve.v1")
async def approve(run: Run) -> str:
    try:
        answer = await run.wait_for("answer", timeout=timedelta(days=7))
    except TimeoutError:
        return "nobody answered"
    return f"{answer['by']} said {answer['verdict']}"


async def main() -> None:
    async with server.lifespan():
        run = await server.work.submit("expense.approve.v1")
        worker = server.work.worker()
        await worker.drain()
        waiting = await server.work.get(run.id)
        assert (waiting.status, waiting.waiting_for, waiting.attempt) == ("pending", "answer", 0)

        await server.work.signal(run.id, "answer", {"by": "Grace", "verdict": "yes"})
        await worker.drain()
        assert (await server.work.get(run.id)).result == "Grace said yes"


if __name__ == "__main__":
    asyncio.run(main())
