import asyncio
from collections.abc import Sequence
from typing import Any

from maniflex import Run, Server

server = Server("sqlite:///shop.db")


@server.work.handler("media.thumbnail.v1")
async def thumbnail(run: Run) -> Any:
    return {"of": run.payload["image"]}


def media_worker() -> Sequence[Any]:
    return server.work.services(["media."], concurrency=2)


async def main() -> None:
    async with server.lifespan(role="worker", work=media_worker):
        run = await server.work.submit("media.thumbnail.v1", {"image": "cat.png"})
        done = await server.work.wait(run.id, timeout=10)
        assert done.result == {"of": "cat.png"}


if __name__ == "__main__":
    asyncio.run(main())
