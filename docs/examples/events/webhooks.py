import asyncio

from maniflex import Model, Server
from maniflex.testing import client


class Order(Model, events=True):
    total: int


server = Server(background=False)
server.register(Order)
server.webhooks.send(
    "https://partner.example.com/hooks",
    "order.*",
    secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",  # of the environment, in an application
)


async def main() -> None:
    async with client(server) as http:
        assert (await http.post("/api/orders", json={"total": 7})).status_code == 201
        await server.events.drain()  # what the router does in a server that works in the background

        [waiting] = [one for one in await server.metrics.gauges() if one.name == "webhooks_pending"]
        assert waiting.value == 1  # it leaves as soon as a worker is there


if __name__ == "__main__":
    asyncio.run(main())
