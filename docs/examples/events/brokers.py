import asyncio

from maniflex import Model, Server
from maniflex.events import Event, InProcessBus, dedupe
from maniflex.testing import client


class Parcel(Model):
    address: str


server = Server()
server.register(Parcel)
server.outbox.enable()  # the inbox remembers in its tables
bus = (
    InProcessBus()
)  # in production: RedisBus("redis://10.0.0.5:6379"), NatsBus(…), RabbitBus(…), KafkaBus(…)


async def ship(event: Event) -> None:
    await server.db(Parcel).create(address=event.data["address"])


async def main() -> None:
    async with client(server) as http:
        await bus.subscribe("order.*", handler=dedupe(ship, server.inbox), group="shipping")

        order = Event("order.placed", {"address": "Arrakeen 1"}, subject="order/7", tenant_id="red")
        await bus.publish(order)
        await bus.publish(order)  # a second delivery, as a crash would cause one
        await bus.close()  # waits for what is under way

        parcels = (await http.get("/api/parcels")).json()["data"]
        assert [parcel["address"] for parcel in parcels] == ["Arrakeen 1"]


if __name__ == "__main__":
    asyncio.run(main())
