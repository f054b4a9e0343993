import asyncio
from typing import Any

from maniflex import Server
from maniflex.background.jobs import Job
from maniflex.errors import Fatal
from maniflex.testing import client

server = Server(background=False)
inspected: list[Any] = []


class Bus:
    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def publish(self, type: str, payload: dict[str, Any], /) -> None:
        self.heard.put_nowait(type)


bus = Bus()
server.jobs.use(event_bus=bus, dlq_type="inspect")


@server.jobs.handler("send_receipt")
async def send_receipt(job: Job) -> None:
    raise Fatal("there is no such address")  # any other exception is tried again first


@server.jobs.handler("inspect")
async def inspect(job: Job) -> None:
    inspected.append((job.payload["type"], job.payload["error"]))


async def main() -> None:
    async with client(server):
        await server.jobs.enqueue(Job("send_receipt", {"order_id": 7}, group_key="customer:3"))
        await server.work.worker().drain()
        told = {await bus.heard.get(), await bus.heard.get()}

    assert inspected == [("send_receipt", "Fatal: there is no such address")]
    assert told == {"job.inspect.completed", "job.send_receipt.failed"}


if __name__ == "__main__":
    asyncio.run(main())
