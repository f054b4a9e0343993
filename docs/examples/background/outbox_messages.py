import asyncio

from maniflex import Context, Model, Server
from maniflex.background.outbox.message import Message
from maniflex.testing import client


class Order(Model):
    item: str


server = Server(background=False)  # this process only produces; see the drainer below
server.register(Order)
announced: list[tuple[str, str]] = []


@server.outbox.handler("order.placed")
async def announce(message: Message) -> None:
    event = message.cloudevent(source="/shop")  # or message.payload, and cloudevents.headers(...)
    announced.append((event["id"], event["data"]["item"]))


@server.action("POST", "/orders/place", response=Order)
async def place(ctx: Context) -> Order:
    wanted = await ctx.bind_json()
    async with ctx.transaction():
        order = await ctx.db(Order).create(item=wanted["item"])
        await server.outbox.enqueue("order.placed", {"id": order.id, "item": order.item}, key=order.id)
        if wanted["item"] == "unicorn":
            ctx.abort(409, "OUT_OF_STOCK", "there is none left")  # takes the message back, too
    return order


async def main() -> None:
    announced.clear()
    async with client(server) as http:
        assert (await http.post("/api/orders/place", json={"item": "unicorn"})).status_code == 409
        assert (await http.post("/api/orders/place", json={"item": "tea"})).status_code == 200

        delivered = await server.outbox.drainer().drain()

        assert delivered == 1
        assert [item for _, item in announced] == ["tea"]


if __name__ == "__main__":
    asyncio.run(main())
