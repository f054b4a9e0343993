import asyncio
from datetime import timedelta

from maniflex import Model, Server
from maniflex.errors import Fatal
from maniflex.events import Event, InProcessBus
from maniflex.testing import client


class Trouble(Model):
    event_type: str
    reason: str


server = Server()
server.register(Trouble)
bus = InProcessBus()


async def charge(event: Event) -> None:
    if event.data["total"] < 0:
        raise Fatal("nobody owes us a negative sum")  # no further attempt would mend it
    raise OSError("the bank is away")


async def note(letter: Event) -> None:
    about = letter.headers
    await server.db(Trouble).create(event_type=about["originaltype"], reason=about["deadletterreason"])


async def main() -> None:
    async with client(server) as http:
        await bus.subscribe("billing.dead", handler=note, group="operators")
        await bus.subscribe(
            "order.*",
            handler=charge,
            group="billing",
            max_retry=2,
            backoff=lambda failures: timedelta(milliseconds=10 * failures),
            dead_letter="billing.dead",
        )
        await bus.publish_many([Event("order.placed", {"total": 7}), Event("order.placed", {"total": -7})])
        await bus.close()

        troubles = (await http.get("/api/troubles")).json()["data"]
        assert sorted(trouble["reason"] for trouble in troubles) == [
            "Fatal: nobody owes us a negative sum",
            "OSError: the bank is away",
        ]


if __name__ == "__main__":
    asyncio.run(main())
