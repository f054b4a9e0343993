import asyncio
from datetime import timedelta

from maniflex import Run, Server

server = Server(background=False)  # so that this sample can say itself when to work
sent: list[str] = []


@server.work.handler("mail.send.v1")
async def send(run: Run) -> None:
    sent.append(run.payload["to"])


async def main() -> None:
    sent.clear()
    async with server.lifespan():
        work = server.work
        await work.submit("mail.send.v1", {"to": "anybody"})
        await work.submit("mail.send.v1", {"to": "the boss"}, priority=10)
        await work.submit("mail.send.v1", {"to": "tomorrow"}, delay=timedelta(days=1))

        first = await work.submit("mail.send.v1", {"to": "Ada"}, idempotency_key="welcome:ada")
        again = await work.submit("mail.send.v1", {"to": "Ada"}, idempotency_key="welcome:ada")
        assert again.id == first.id  # there is one run of a key

        many = await work.submit_many("mail.send.v1", [{"to": name} for name in ("Grace", "Edsger")])
        assert len(many) == 2

        await work.worker(concurrency=1).drain()
        assert sent == ["the boss", "anybody", "Ada", "Grace", "Edsger"]


if __name__ == "__main__":
    asyncio.run(main())
