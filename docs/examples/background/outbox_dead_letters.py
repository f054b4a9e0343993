import asyncio

from pydantic import BaseModel

from maniflex import Fatal, Server
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.model import OutboxMessage
from maniflex.testing import client


class Mail(BaseModel):
    to: str


server = Server(background=False)
blocked = {"nobody@example.com"}
told: list[str] = []


@server.outbox.handler("mail", payload=Mail)
async def send(message: Message) -> None:
    if message.payload.to in blocked:
        raise Fatal("no such mailbox")  # no retry can mend this


@server.outbox.dead_letter
def tell_somebody(message: Message, reason: str) -> None:
    told.append(reason)


async def main() -> None:
    told.clear()
    blocked.add("nobody@example.com")
    async with client(server):
        async with server.transaction():
            gone = await server.outbox.enqueue("mail", Mail(to="nobody@example.com"))
            await server.outbox.enqueue("mail", {"no": "address"})  # does not fit the handler's type
        assert await server.outbox.drainer().drain() == 0

        dead = await server.db(OutboxMessage).list(filters=[("status", "eq", "dead")], sorts=["seq"])
        assert [message.last_error for message in dead] == told
        assert told[0] == "Fatal: no such mailbox"

        blocked.clear()
        assert await server.outbox.redrive(gone.id)
        assert await server.outbox.drainer().drain() == 1


if __name__ == "__main__":
    asyncio.run(main())
