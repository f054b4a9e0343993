import asyncio

from maniflex import Context, Model, Server
from maniflex.testing import client


class Order(Model):
    item: str


server = Server()  # with read_database="postgresql://…" the same code reads from a replica
server.register(Order)


@server.action("GET", "/orders/newest")
async def newest(ctx: Context) -> str:
    async with server.primary():  # what anybody has just written is shown
        [order] = await ctx.db(Order).list(sorts="created_at:desc", limit=1)
    return order.item


async def main() -> None:
    async with client(server) as http:
        answer = await http.post("/api/orders", json={"item": "tea"})
        position = answer.headers.get("X-Database-Position", "")  # only beside a replica
        path = f"/api/orders/{answer.json()['data']['id']}"
        again = await http.get(path, headers={"X-Database-Position": position} if position else {})
        assert again.json()["data"]["item"] == "tea"
        assert (await http.get("/api/orders/newest")).json()["data"] == "tea"


if __name__ == "__main__":
    asyncio.run(main())
