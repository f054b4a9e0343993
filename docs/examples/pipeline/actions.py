import asyncio
from dataclasses import dataclass
from typing import Literal

from maniflex import Context, Model, Server, field
from maniflex.testing import client


class Order(Model):
    status: Literal["open", "cancelled"] = field(default="open")
    reason: str | None = None


@dataclass
class Cancellation:
    reason: str


server = Server()
server.register(Order)


@server.action("POST", "/orders/{id}/cancel", request=Cancellation, response=Order)
async def cancel(ctx: Context) -> Order:
    async with ctx.transaction():
        order = await ctx.lock_for_update(Order, ctx.url_param("id"))
        if order.status == "cancelled":
            ctx.abort(409, "ALREADY_CANCELLED", "the order is cancelled already")
        return await ctx.db(Order).update(order.id, status="cancelled", reason=ctx.body.reason)


async def main() -> None:
    async with client(server) as http:
        order = (await http.post("/api/orders", json={})).json()["data"]
        path = f"/api/orders/{order['id']}/cancel"

        cancelled = await http.post(path, json={"reason": "too late"})
        assert cancelled.json()["data"]["status"] == "cancelled"
        assert (await http.post(path, json={"reason": "again"})).status_code == 409


if __name__ == "__main__":
    asyncio.run(main())
