"""A small shop with accounts: placing an order sends a receipt and tells the warehouse, both for certain.

The order, the run that sends the receipt and the message to the warehouse are one transaction: there
are all three or none. Run it with `maniflex run examples.orders.app:server`; `scripts/demo` runs it too.
"""

from dataclasses import dataclass

from examples.orders.accounts import add_accounts
from examples.orders.models import Order, Product, Receipt, Shipment, User
from maniflex import Config, Context, Operation, Run, Server
from maniflex.audit import TableSink
from maniflex.background.outbox.message import Message
from maniflex.middleware import db

RECEIPT = "email.receipt.v1"
PLACED = "order.placed"


@dataclass
class Placement:
    product_id: str
    fail: bool = False  # the example's way to force a rollback


def add_orders(server: Server) -> None:
    """Declare what happens when somebody buys something."""

    @server.action("POST", "/orders/place", request=Placement, response=Order, errors=[404, 409])
    async def place(ctx: Context) -> Order:
        """Order something; the receipt and the shipment follow by themselves."""
        wanted: Placement = ctx.body
        async with ctx.transaction():
            product = await ctx.db(Product).read(wanted.product_id)
            order = await ctx.db(Order).create(
                customer_id=ctx.require_auth().user_id, item=product.name, price=product.price
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
        customer = await server.db(User).read(order.customer_id)
        text = f"Dear {customer.name}, you ordered {order.item} for {order.price}."
        return (await server.db(Receipt).create(order_id=order.id, text=text)).id

    @server.outbox.handler(PLACED)
    async def ship(message: Message) -> None:
        async with server.transaction():
            if await server.inbox.once(message.id):  # a message may come twice
                await server.db(Shipment).create(order_id=message.payload["id"])
                with server.acting_as("warehouse", reason="it is on its way"):
                    await server.db(Order).update(message.payload["id"], status="shipped")


def create_server(config: Config, secret: str) -> Server:
    server = Server(config=config)
    server.register(User, Product, Order, Receipt, Shipment)
    add_accounts(server, secret)
    add_orders(server)
    trail = db.audit_log(TableSink(routes=True), changes=True)  # who changed which price; for admins to read
    server.pipeline.db.register(trail, models=[Product], operations=Operation.WRITES)
    return server
