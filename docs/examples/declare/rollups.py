import asyncio
from decimal import Decimal

from maniflex import Model, Server, field
from maniflex.testing import client


class Order(Model):
    total: Decimal = field(default=Decimal(0), readonly=True)
    open_lines: int = field(default=0, readonly=True)


class Line(Model):
    order_id: str = field(on_delete="cascade")
    price: Decimal
    state: str = "open"


server = Server()
server.register(Order, Line)
server.rollup(Order, "total", "sum", Line, "price")
server.rollup(Order, "open_lines", "count", Line, where={"state": "open"})


async def main() -> None:
    async with client(server):
        order = await server.db(Order).create()
        prices = [Decimal("1.10"), Decimal("2.20")]
        lines = await server.db(Line).create_many({"order_id": order.id, "price": price} for price in prices)
        await server.db(Line).update(lines[0].id, state="sent")

        order = await server.db(Order).read(order.id)
        assert (order.total, order.open_lines) == (Decimal("3.30"), 1)


if __name__ == "__main__":
    asyncio.run(main())
