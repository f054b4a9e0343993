"""A small shop: placing an order sends a receipt and tells the warehouse, both for certain.

The order, the run that sends the receipt and the message to the warehouse are one transaction: there
are all three or none. Run it with `maniflex run examples.orders.app:server`; `scripts/demo` runs it too.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from maniflex import AuthInfo, Context, Model, Next, Operation, Run, Server, field
from maniflex.background.outbox.message import Message

RECEIPT = "email.receipt.v1"
PLACED = "order.placed"


class Order(Model):
    item: str = field(filterable=True)
    price: Decimal
    customer: str = field(filterable=True)


class Receipt(Model):
    """What the demo does instead of sending a mail."""

    order_id: str = field(filterable=True, unique=True)
    text: str


class Shipment(Model):
    """What the warehouse makes of the message."""

    order_id: str = field(filterable=True, unique=True)


@dataclass
class Placement:
    item: Annotated[str, Field(min_length=1, max_length=200)]
    price: Annotated[Decimal, Field(ge=0, le=1_000_000, decimal_places=2)]
    fail: bool = False  # the demo's way to force a rollback


async def believe_the_header(ctx: Context, next: Next) -> None:
    """For the demo only: whoever says `X-User: ada` is Ada, and `admin` is the admin."""
    if user := ctx.header("x-user"):
        ctx.auth = AuthInfo(user_id=user, roles=["admin"] if user == "admin" else [])
    await next()


async def only_read(ctx: Context, next: Next) -> None:
    """Orders, receipts and shipments are made by the shop, not written by clients."""
    ctx.abort(403, "FORBIDDEN", "place an order with POST /api/orders/place")


def add_shop(server: Server) -> None:
    """Declare the shop on a server."""
    server.register(Order, Receipt, Shipment)
    server.pipeline.auth.register(believe_the_header)
    server.pipeline.auth.register(only_read, models=[Order, Receipt, Shipment], operations=Operation.WRITES)

    @server.action("POST", "/orders/place", request=Placement, response=Order)
    async def place(ctx: Context) -> Order:
        """Order something; the receipt and the shipment follow by themselves."""
        if ctx.auth is None:
            ctx.abort(401, "UNAUTHORIZED", "say who you are: -H 'X-User: ada'")
        wanted: Placement = ctx.body
        async with ctx.transaction():
            order = await ctx.db(Order).create(
                item=wanted.item, price=wanted.price, customer=ctx.auth.user_id
            )
            await server.work.submit(RECEIPT, {"order_id": order.id}, idempotency_key=f"receipt:{order.id}")
            await server.outbox.enqueue(PLACED, {"id": order.id}, key=order.id)
            if wanted.fail:
                ctx.abort(409, "OUT_OF_STOCK", "there is none left; order, run and message are taken back")
        return order

    @server.work.handler(RECEIPT, max_attempts=5)
    async def send_receipt(run: Run) -> dict[str, str]:
        # Inside the transaction that remembers the step: one receipt, however often we are tried.
        receipt_id = await run.step("write", write, run.payload["order_id"], transactional=True)
        return {"receipt_id": receipt_id}

    async def write(order_id: str) -> str:
        order = await server.db(Order).read(order_id)
        text = f"Dear {order.customer}, you ordered {order.item} for {order.price}."
        return (await server.db(Receipt).create(order_id=order.id, text=text)).id

    @server.outbox.handler(PLACED)
    async def ship(message: Message) -> None:
        async with server.transaction():
            if await server.inbox.once(message.id):  # a message may come twice
                await server.db(Shipment).create(order_id=message.payload["id"])


def create_server(database: str = "sqlite:///shop.db", port: int = 8080) -> Server:
    server = Server(database=database, port=port)
    add_shop(server)
    return server


server = create_server()

if __name__ == "__main__":
    server.run()
