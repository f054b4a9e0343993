import asyncio
from decimal import Decimal

from maniflex import Model, Server, field
from maniflex.testing import client


class Invoice(Model, versioned=True, history_restore=True):
    number: str
    amount: Decimal = field(min=0)


server = Server()
server.register(Invoice)


async def main() -> None:
    async with client(server) as http:
        created = (await http.post("/api/invoices", json={"number": "7", "amount": "99.00"})).json()["data"]
        path = f"/api/invoices/{created['id']}"
        await http.patch(path, json={"amount": "105.00"})

        update, create = (await http.get(f"{path}/history")).json()["data"]
        assert (create["version"], update["version"]) == (1, 2)
        assert update["diff"] == {"amount": {"old": "99.00", "new": "105.00"}}
        assert update["snapshot"]["number"] == "7"

        then = await http.get(path, params={"as_of": created["updated_at"]})
        assert then.json()["data"] == created

        await http.post(f"{path}/history/1/restore")
        with server.acting_as("ada", reason="a typing error"):
            await server.db(Invoice).update(created["id"], number="8")
        [last, *_] = await server.history(Invoice).of(created["id"])
        assert (last.version, last.actor_id, last.reason) == (4, "ada", "a typing error")


if __name__ == "__main__":
    asyncio.run(main())
