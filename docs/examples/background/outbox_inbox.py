import asyncio

from maniflex import Model, Server
from maniflex.background.outbox.message import Message
from maniflex.testing import client


class Shipment(Model):
    order: str


server = Server(background=False)
server.register(Shipment)


@server.outbox.handler("order.placed")
async def ship(message: Message) -> None:
    async with server.transaction():
        if await server.inbox.once(message.id, consumer="shipping"):
            await server.db(Shipment).create(order=message.payload["id"])


async def main() -> None:
    async with client(server):
        async with server.transaction():
            message = await server.outbox.enqueue("order.placed", {"id": "7"})
        await server.outbox.drainer().drain()

        await ship(message)  # as after a crash between handling and noting that it was handled

        assert len(await server.db(Shipment).list()) == 1


if __name__ == "__main__":
    asyncio.run(main())
