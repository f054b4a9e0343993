"""A small shop with accounts: placing an order mails a receipt and tells the warehouse, both for certain.

The order, its event, the run that mails the receipt and the message to the warehouse are one
transaction: there are all four or none. Run it with `maniflex run examples.orders.app:server`;
`scripts/demo` runs it too.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from examples.orders.accounts import add_accounts
from examples.orders.models import Order, Product, Receipt, Shipment, User
from maniflex import Config, Context, Operation, Run, Server
from maniflex.audit import TableSink
from maniflex.background.outbox.message import Message
from maniflex.encryption import EnvKeyProvider
from maniflex.events import Event
from maniflex.ext.mail import ConsoleMailer, EmailMessage, Mailer, SmtpMailer
from maniflex.middleware import db

logger = logging.getLogger("shop")
RECEIPT = "email.receipt.v1"
PLACED = "order.placed"
LOW_STOCK = "product.low"
FEW = 5


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
        # The mail is stored with the receipt, and leaves when both are committed.
        await server.mail.send(EmailMessage(customer.email, f"Your order of {order.item}", text))
        return (await server.db(Receipt).create(order_id=order.id, text=text)).id

    @server.outbox.handler(PLACED)
    async def ship(message: Message) -> None:
        async with server.transaction():
            if await server.inbox.once(message.id):  # a message may come twice
                await server.db(Shipment).create(order_id=message.payload["id"])
                with server.acting_as("warehouse", reason="it is on its way"):
                    await server.db(Order).update(message.payload["id"], status="shipped")


@dataclass
class LowStock:
    product: str
    left: int


def add_events(server: Server) -> None:
    """Declare who takes the events of orders: a group of this program, and endpoints of customers."""
    server.events.declare(
        LOW_STOCK, LowStock, audience="nobody"
    )  # in no webhook: it is the shop's own business

    @server.events.subscribe("order.created", group="shelf", once=True)
    async def take_from_shelf(event: Event) -> None:
        # With `once`, what is counted and that it was counted are one transaction: an event may come twice.
        for product in await server.db(Product).list({"name": event.data["item"]}):
            left = (await server.db(Product).increment(product.id, stock=-1)).stock
            if left < FEW:
                data = {"product": product.name, "left": left}
                await server.events.publish(LOW_STOCK, data, subject=f"product/{product.id}")

    @server.events.subscribe(LOW_STOCK, group="buyer", payload=LowStock)
    async def order_more(event: Event) -> None:
        logger.warning("there are %d of %s left", event.data.left, event.data.product)


def mailer_of(environment: Mapping[str, str]) -> Mailer:
    """Mails go to the terminal, or with `SMTP_HOST` to a mail server."""
    get = environment.get
    host, port = get("SMTP_HOST"), int(get("SMTP_PORT", "587"))
    if not host:
        return ConsoleMailer(sender="shop@example.com")
    sender, tls = get("MAIL_SENDER", "shop@example.com"), get("SMTP_TLS", "starttls")
    return SmtpMailer(host, port, get("SMTP_USER"), get("SMTP_PASSWORD"), tls, sender=sender)


def create_server(
    config: Config, secret: str, key: str, *, mailer: Mailer | None = None, local_webhooks: bool = False
) -> Server:
    """The shop. `secret` signs its tokens, `key` seals what signs its webhooks."""
    server = Server(config=config)
    server.register(User, Product, Order, Receipt, Shipment)
    server.set_key_provider(EnvKeyProvider(environ={"MFX_KEY_DEFAULT": key}))
    server.mail.use(mailer or mailer_of({}))
    add_accounts(server, secret)
    add_orders(server)
    add_events(server)
    # Customers have endpoints of their own, told of their own orders alone: of those that REST shows them.
    server.webhooks.enable(events=["order.*"], allow_http=local_webhooks, allow_private=local_webhooks)
    trail = db.audit_log(TableSink(routes=True), changes=True)  # who changed which price; for admins to read
    server.pipeline.db.register(trail, models=[Product], operations=Operation.WRITES)
    return server
