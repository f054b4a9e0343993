import asyncio

from maniflex import Context, Model, Next, Operation, Server, field, with_transaction
from maniflex.testing import client


class Stock(Model):
    left: int = field(min=0)


class Sale(Model):
    stock_id: str
    pieces: int = field(min=1)


server = Server()
server.register(Stock, Sale)
server.pipeline.service.register(with_transaction(), models=[Sale], operations=Operation.WRITES)


@server.pipeline.service.middleware(models=[Sale], operations=[Operation.CREATE])
async def take_from_stock(ctx: Context, next: Next) -> None:
    stock = await ctx.lock_for_update(Stock, ctx.field("stock_id"))
    if stock.left < ctx.field("pieces"):
        ctx.abort(409, "OUT_OF_STOCK", "not enough left")
    await ctx.db(Stock).update(stock.id, left=stock.left - ctx.field("pieces"))
    await next()


async def main() -> None:
    async with client(server) as http:
        stock = (await http.post("/api/stocks", json={"left": 3})).json()["data"]
        sale = {"stock_id": stock["id"], "pieces": 2}
        assert (await http.post("/api/sales", json=sale)).status_code == 201
        assert (await http.post("/api/sales", json=sale)).status_code == 409

        left = (await http.get(f"/api/stocks/{stock['id']}")).json()["data"]["left"]
        assert left == 1


if __name__ == "__main__":
    asyncio.run(main())
