import asyncio

from maniflex import Model, Server, field
from maniflex.events import Event
from maniflex.testing import client


class Order(Model, events=True):
    item: str
    total: int = field(default=0)


class Bill(Model):
    order_id: str = field(relation=None, filterable=True)
    amount: int


server = Server(background=False)  # so that the sample says itself when events are delivered
server.register(Order, Bill)


@server.events.subscribe("order.created", once=True)
async def write_bill(event: Event) -> None:
    await server.db(Bill).create(order_id=event.record_id, amount=event.data["total"])


@server.events.subscribe("*", group="audit", ordered=False)
def print_event(event: Event) -> None:
    print(event.type, event.subject, event.changed)


async def main() -> None:
    async with client(server) as http:
        order = (await http.post("/api/orders", json={"item": "tea", "total": 7})).json()["data"]
        await http.patch(f"/api/orders/{order['id']}", json={"total": 8})

        assert await server.events.drain() == 3  # the bill, and two lines for the audit
        assert [bill.amount for bill in await server.db(Bill).list()] == [7]

        types = [event.type for event in await server.events.read()]
        assert types == ["order.created", "order.updated"]


if __name__ == "__main__":
    asyncio.run(main())
