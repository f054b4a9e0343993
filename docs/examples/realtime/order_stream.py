import asyncio

from maniflex import Model, Server, field
from maniflex.testing import client, sse, websocket


class Order(Model, events=True):
    customer: str
    status: str = field(default="open")


server = Server()
server.register(Order)
server.realtime.enable()


async def main() -> None:
    async with client(server) as http:
        async with websocket(server) as ws:
            ack = await ws.subscribe("order.*")
            await http.post("/api/orders", json={"customer": "Ada"})
            message = await ws.receive()
            assert message["data"]["type"] == "order.created"
            assert message["data"]["data"]["customer"] == "Ada"

        await http.post("/api/orders", json={"customer": "Eve"})  # nobody listens

        async with sse(server, headers={"Last-Event-ID": message["cursor"]}) as stream:
            missed = await stream.receive()
            assert missed.data["data"]["customer"] == "Eve"
    print(ack["types"])


if __name__ == "__main__":
    asyncio.run(main())
