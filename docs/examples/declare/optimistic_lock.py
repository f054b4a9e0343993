import asyncio

from maniflex import Model, Server
from maniflex.testing import client


class Invoice(Model, optimistic_lock=True):
    amount: int


server = Server()
server.register(Invoice)


async def main() -> None:
    async with client(server) as http:
        created = await http.post("/api/invoices", json={"amount": 10})
        path = f"/api/invoices/{created.json()['data']['id']}"
        seen = {"If-Match": created.headers["etag"]}

        assert (await http.patch(path, json={"amount": 11}, headers=seen)).status_code == 200
        assert (await http.patch(path, json={"amount": 12}, headers=seen)).status_code == 412


if __name__ == "__main__":
    asyncio.run(main())
