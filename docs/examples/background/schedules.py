import asyncio
from datetime import UTC, datetime, timedelta

from maniflex import Context, Run, Server
from maniflex.testing.clock import FakeClock

clock = FakeClock(datetime(2026, 3, 28, tzinfo=UTC))
server = Server(background=False, clock=clock)  # so that this sample decides what time it is
reports: list[str] = []


@server.work.handler("report.daily.v1")
async def report(run: Run) -> None:
    firing = await server.schedules.firing_of(run.id)
    assert firing is not None
    reports.append(f"{run.payload['for']} {firing.due_at:%d %H:%M}")


@server.action("POST", "/tidy")
async def tidy(ctx: Context) -> dict[str, str]:
    return {"tidied_by": ctx.auth.user_id if ctx.auth else "nobody"}


server.schedules.add(
    "nightly", cron="30 2 * * *", timezone="Europe/Berlin", run="report.daily.v1", payload={"for": "sales"}
)
server.schedules.add("tidy up", cron="@hourly", action="tidy", policy="skip")


async def main() -> None:
    clock.move_to(datetime(2026, 3, 28, tzinfo=UTC))
    reports.clear()
    async with server.lifespan():
        await server.schedules.declare()  # a scheduler that is started does this by itself
        scheduler, worker = server.schedules.scheduler(), server.work.worker()
        for _ in range(72):
            clock.advance(timedelta(hours=0.5))
            await scheduler.tick()
            await worker.run_once()

        # 02:30 in Berlin; on the 29th there is no such time, so it is 03:00 there.
        assert reports == ["sales 28 01:30", "sales 29 01:00"]
        nightly = await server.schedules.get("nightly")
        assert nightly.next_run_at == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)


if __name__ == "__main__":
    asyncio.run(main())
