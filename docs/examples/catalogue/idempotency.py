import asyncio
from dataclasses import dataclass

from maniflex import Context, Model, Server
from maniflex.middleware import idempotency
from maniflex.testing import client


class Order(Model):
    item: str


@dataclass
class Payment:
    order_id: str
    amount: int


server = Server()
server.register(Order)
server.pipeline.deserialize.register(idempotency.keys(), at="after")


@server.action("POST", "/payments", request=Payment, middleware=[idempotency.keys(required=True)])
async def pay(ctx: Context) -> dict[str, int]:
    await ctx.db(Order).read(ctx.body.order_id)
    return {"paid": ctx.body.amount}


async def main() -> None:
    key = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}
    async with client(server) as http:
        first, again = [await http.post("/api/orders", json={"item": "tea"}, headers=key) for _ in range(2)]
        assert first.status_code == again.status_code == 201
        assert first.content == again.content
        assert again.headers["idempotent-replayed"] == "true"
        assert (await http.get("/api/orders")).json()["meta"]["total"] == 1

        other = await http.post("/api/orders", json={"item": "coffee"}, headers=key)
        assert (other.status_code, other.json()["error"]["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")

        payment = {"order_id": first.json()["data"]["id"], "amount": 3}
        assert (await http.post("/api/payments", json=payment)).status_code == 400
        assert (await http.post("/api/payments", json=payment, headers=key)).json()["data"] == {"paid": 3}


if __name__ == "__main__":
    asyncio.run(main())
