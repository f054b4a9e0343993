import asyncio
from typing import Any

from maniflex import Fatal, Run, Server

server = Server(background=False)
letters: list[dict[str, Any]] = []


@server.work.handler("billing.charge.v1", dead_letter="billing.dead.v1")
async def charge(run: Run) -> None:
    raise Fatal("the card was refused")


@server.work.handler("billing.dead.v1", internal=True)
async def dead(run: Run) -> None:
    letters.append(run.payload)


async def main() -> None:
    letters.clear()
    async with server.lifespan():
        run = await server.work.submit("billing.charge.v1", {"invoice": 7})
        await server.work.worker().drain()

        [letter] = letters
        assert (letter["run_id"], letter["type"]) == (run.id, "billing.charge.v1")
        assert (letter["payload"], letter["attempt"]) == ({"invoice": 7}, 1)
        assert letter["error"] == "Fatal: the card was refused"


if __name__ == "__main__":
    asyncio.run(main())
