import asyncio
from decimal import Decimal

from maniflex import Context, Model, Run, Server, field
from maniflex.background.outbox.message import Message
from maniflex.testing import client


class Order(Model):
    item: str
    price: Decimal


class Receipt(Model):
    order_id: str = field(filterable=True, unique=True)
    text: str


server = Server()
server.register(Order, Receipt)
shipped: list[str] = []


@server.work.handler("email.receipt.v1", max_attempts=5)
async def send_receipt(run: Run) -> dict[str, str]:
    order = await server.db(Order).read(run.payload["order_id"])
    receipt = await server.db(Receipt).create(order_id=order.id, text=f"{order.item}: {order.price}")
    return {"receipt_id": receipt.id}


@server.outbox.handler("order.placed")
async def ship(message: Message) -> None:
    shipped.append(message.payload["id"])


@server.action("POST", "/orders/place", response=Order)
async def place(ctx: Context) -> Order:
    wanted = await ctx.bind_json()
    async with ctx.transaction():
        order = await ctx.db(Order).create(item=wanted["item"], price=wanted["price"])
        await server.work.submit(
            "email.receipt.v1", {"order_id": order.id}, idempotency_key=f"receipt:{order.id}"
        )
        await server.outbox.enqueue("order.placed", {"id": order.id}, key=order.id)
        if wanted.get("fail"):
            ctx.abort(409, "OUT_OF_STOCK", "there is none left")  # takes all three back
    return order


async def main() -> None:
    async with client(server, background=True) as http:
        refused = await http.post("/api/orders/place", json={"item": "Tea", "price": "4.50", "fail": True})
        assert refused.status_code == 409
        assert await server.work.list() == []

        placed = await http.post("/api/orders/place", json={"item": "Tea", "price": "4.50"})
        [run] = await server.work.list()
        done = await server.work.wait(run.id, timeout=30)

        assert done.status == "succeeded"
        [receipt] = (await http.get("/api/receipts")).json()["data"]
        assert receipt["order_id"] == placed.json()["data"]["id"]


if __name__ == "__main__":
    asyncio.run(main())
