import asyncio
from dataclasses import dataclass

from maniflex import Model, Server
from maniflex.ext.integration import Caller, HttpStatusError
from maniflex.testing import client

server = Server(background=False)
billing = Caller(
    "http://127.0.0.1:8099/v1", headers={"Authorization": "Bearer secret"}, metrics=server.metrics
)
server.add_service(billing)  # closes its connections with the server


class Order(Model):
    amount: int
    invoice: str | None = None


server.register(Order)


@dataclass
class Invoice:
    id: str
    amount: int


async def charge(order: Order) -> Order:
    try:
        invoice = await billing.post("/invoices", {"amount": order.amount}, into=Invoice)
    except HttpStatusError as refused:
        if refused.status == 402:  # the service said no, and refused.body says why
            return order
        raise
    return await server.db(Order).update(order.id, invoice=invoice.id)


async def serve_billing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A stand-in for the other service."""
    await reader.readuntil(b"}")
    content = b'{"id": "inv_1", "amount": 7}'
    writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))
    writer.close()


async def main() -> None:
    async with await asyncio.start_server(serve_billing, "127.0.0.1", 8099), client(server):
        order = await charge(await server.db(Order).create(amount=7))
        assert order.invoice == "inv_1"


if __name__ == "__main__":
    asyncio.run(main())
