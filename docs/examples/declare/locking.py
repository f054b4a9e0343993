import asyncio
from typing import Literal

from maniflex import Model, Server, field
from maniflex.testing import client


class Invoice(Model):
    amount: int = field(min=0)
    status: Literal["draft", "posted"] = field(default="draft", lock_when={"status": "posted"})


server = Server()
server.register(Invoice)


async def main() -> None:
    async with client(server) as http:
        created = await http.post("/api/invoices", json={"amount": 10})
        path = f"/api/invoices/{created.json()['data']['id']}"
        assert (await http.patch(path, json={"status": "posted"})).status_code == 200

        refused = await http.patch(path, json={"amount": 11})
        assert refused.status_code == 422
        assert refused.json()["error"]["code"] == "RECORD_LOCKED"
        assert (await http.delete(path)).status_code == 422


if __name__ == "__main__":
    asyncio.run(main())
