import asyncio
from datetime import timedelta

from maniflex import Run, Server
from maniflex.testing import FakeClock

clock = FakeClock()
server = Server(clock=clock)
reminded: list[str] = []


@server.work.handler("mail.remind.v1")
async def remind(run: Run) -> None:
    reminded.append(run.payload["to"])


async def test_a_reminder_goes_out_after_a_day() -> None:
    reminded.clear()
    async with server.lifespan(role="client"):  # nothing works but what the test tells to
        worker = server.work.worker()
        run = await server.work.submit("mail.remind.v1", {"to": "Ada"}, delay=timedelta(days=1))
        assert await worker.run_once() == 0

        clock.advance(timedelta(days=1))
        assert await worker.run_once() == 1
        assert reminded == ["Ada"]
        assert (await server.work.get(run.id)).status == "succeeded"


if __name__ == "__main__":
    asyncio.run(test_a_reminder_goes_out_after_a_day())
