import asyncio

from maniflex import Model, Server, belongs_to, field, has_many, many_to_many
from maniflex.testing import client


class Customer(Model):
    name: str


class Tag(Model):
    name: str


class OrderTag(Model):
    order_id: str = field(on_delete="cascade")
    tag_id: str


class Order(Model):
    title: str
    customer_id: str
    customer: Customer = belongs_to(nested=True)
    lines: list["Line"] = has_many(nested=True)
    tags: list[Tag] = many_to_many(through=OrderTag, nested=True)


class Line(Model):
    order_id: str = field(on_delete="cascade")
    pieces: int = field(min=1)


server = Server()
server.register(Customer, Tag, OrderTag, Order, Line)


async def main() -> None:
    async with client(server) as http:
        body = {
            "title": "first",
            "customer": {"name": "Ada"},
            "lines": [{"pieces": 1}, {"pieces": 0}],
            "tags": {"create": [{"name": "new"}]},
        }
        refused = await http.post("/api/orders", json=body)
        assert [one["field"] for one in refused.json()["error"]["details"]] == ["lines[1].pieces"]

        body["lines"] = [{"pieces": 1}, {"pieces": 2}]
        order = (await http.post("/api/orders", json=body)).json()["data"]
        assert [line["pieces"] for line in order["lines"]] == [1, 2]

        first, second = (line["id"] for line in order["lines"])
        change = {"lines": {"update": [{"id": first, "pieces": 5}], "delete": [second]}}
        order = (await http.patch(f"/api/orders/{order['id']}", json=change)).json()["data"]
        assert [line["pieces"] for line in order["lines"]] == [5]


if __name__ == "__main__":
    asyncio.run(main())
