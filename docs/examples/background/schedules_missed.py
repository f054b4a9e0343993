import asyncio
from datetime import UTC, datetime, timedelta

from maniflex import Run, Server
from maniflex.testing.clock import FakeClock

START = datetime(2026, 1, 1, tzinfo=UTC)
clock = FakeClock(START)
server = Server(background=False, clock=clock)


@server.work.handler("count.v1")
async def count(run: Run) -> None:
    """Nothing to do."""


for policy in ("once", "all", "skip"):
    server.schedules.add(policy, cron="@hourly", run="count.v1", policy=policy)


async def main() -> None:
    clock.move_to(START)
    async with server.lifespan():
        await server.schedules.declare()
        clock.advance(timedelta(hours=5, minutes=20))  # nobody was there for five hours

        await server.schedules.scheduler().tick()

        fired = {
            name: [f.due_at.hour for f in await server.schedules.firings(name) if f.outcome == "fired"]
            for name in ("once", "all", "skip")
        }
        assert fired == {"once": [5], "all": [5, 4, 3, 2, 1], "skip": []}


if __name__ == "__main__":
    asyncio.run(main())
