import asyncio
from datetime import timedelta

from maniflex import Fatal, Run, Server
from maniflex.testing import FakeClock

clock = FakeClock()
server = Server(clock=clock, background=False)
answers = {"flaky": [503, 200], "busy": [429, 200], "gone": [404]}


@server.work.handler("hook.call.v1", max_attempts=3, timeout=timedelta(seconds=20))
async def call(run: Run) -> str:
    status = answers[run.payload].pop(0)
    if status == 404:
        raise Fatal("there is nobody there")  # no retry can mend it
    if status == 429:
        run.retry_in(timedelta(minutes=10), "asked to come back later")
    if status != 200:
        raise RuntimeError(f"answered {status}")  # again after 1 to 1.5 s, then 2 to 3 s, …
    return "called"


async def main() -> None:
    answers.update({"flaky": [503, 200], "busy": [429, 200], "gone": [404]})
    async with server.lifespan():
        runs = await server.work.submit_many("hook.call.v1", ["flaky", "busy", "gone"])
        worker = server.work.worker()
        states = []
        for pause in (timedelta(0), timedelta(seconds=2), timedelta(minutes=10)):
            clock.advance(pause)
            await worker.drain()
            states.append([(await server.work.get(run.id)).status for run in runs])

        assert states == [
            ["pending", "pending", "failed"],
            ["succeeded", "pending", "failed"],
            ["succeeded", "succeeded", "failed"],
        ]
        assert (await server.work.get(runs[2].id)).last_error == "Fatal: there is nobody there"


if __name__ == "__main__":
    asyncio.run(main())
