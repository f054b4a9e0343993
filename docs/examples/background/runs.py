import asyncio

from maniflex import Run, Server

server = Server()


@server.work.handler("mail.welcome.v1", max_attempts=5)
async def welcome(run: Run) -> dict[str, str]:
    run.logger.info("attempt %d", run.attempt)
    return {"said": f"Welcome, {run.payload['name']}"}


async def main() -> None:
    async with server.lifespan():
        run = await server.work.submit("mail.welcome.v1", {"name": "Ada"})
        assert run.status == "pending"

        done = await server.work.wait(run.id, timeout=30)
        assert (done.status, done.result) == ("succeeded", {"said": "Welcome, Ada"})

        happened = [event.event_type for event in await server.work.events(run.id)]
        assert happened == ["created", "leased", "succeeded"]


if __name__ == "__main__":
    asyncio.run(main())
