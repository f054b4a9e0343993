import asyncio
from typing import Any

from maniflex import Model, Server, field, has_many
from maniflex.testing import client


class Order(Model):
    customer: str
    lines: list["Line"] = has_many()


class Line(Model):
    order_id: str = field(filterable=True)
    pieces: int = field(min=1)


server = Server()
server.register(Order, Line)
server.enable_batch()


async def main() -> None:
    async with client(server) as http:
        operations: list[dict[str, Any]] = [
            {"method": "POST", "path": "/orders", "body": {"customer": "Ada"}, "as": "order"},
            {"method": "POST", "path": "/lines", "body": {"order_id": {"$ref": "order.id"}, "pieces": 2}},
            {"method": "GET", "path": "/orders/{order.id}?include=lines"},
        ]
        outcomes = (await http.post("/api/batch", json={"operations": operations})).json()["data"]
        assert [one["status"] for one in outcomes] == [201, 201, 200]
        assert outcomes[2]["data"]["lines"][0]["pieces"] == 2

        operations[1]["body"] = {"order_id": {"$ref": "order.id"}, "pieces": 0}
        refused = await http.post("/api/batch", json={"operations": operations})
        assert refused.json()["error"]["code"] == "BATCH_FAILED"
        assert refused.json()["error"]["details"][0]["index"] == 1
        assert (await http.get("/api/orders")).json()["meta"]["total"] == 1


if __name__ == "__main__":
    asyncio.run(main())
