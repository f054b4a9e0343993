import asyncio
from datetime import timedelta

from maniflex import Run, Server
from maniflex.testing import FakeClock

clock = FakeClock()
server = Server(clock=clock, background=False)
called: list[str] = []


def render(name: str) -> str:  # a plain function runs on a thread
    called.append("render")
    return f"Dear {name}"


async def send(text: str) -> None:
    called.append(f"send {text}")
    if called == ["render", "send Dear Ada"]:
        raise ConnectionError("the mail server is away")


@server.work.handler("mail.invite.v1")
async def invite(run: Run) -> None:
    text = await run.step("render", render, run.payload["name"])
    await run.step("send", send, text)
    await run.sleep(timedelta(days=3))  # the run leaves the worker; a restart does not matter
    await run.step("remind", send, f"{text}, have you seen this?")


async def main() -> None:
    called.clear()
    async with server.lifespan():
        run = await server.work.submit("mail.invite.v1", {"name": "Ada"})
        worker = server.work.worker()
        for _ in range(4):
            await worker.drain()
            clock.advance(timedelta(days=2))

        assert (await server.work.get(run.id)).status == "succeeded"
        assert called == ["render", "send Dear Ada", "send Dear Ada", "send Dear Ada, have you seen this?"]


if __name__ == "__main__":
    asyncio.run(main())
