import asyncio
import json
from decimal import Decimal

from maniflex import Context, Model, Server, field
from maniflex.testing import client


class Order(Model, aggregate=True):
    status: str = field(filterable=True)
    total: Decimal = field(filterable=True, sortable=True)


server = Server()
server.register(Order)


@server.action("GET", "/revenue")
async def revenue(ctx: Context) -> object:
    [row] = await ctx.aggregate(Order, select=[("sum", "total", "revenue")], where={"status": "paid"})
    return row


async def main() -> None:
    async with client(server) as http:
        for status, total in [("paid", "19.90"), ("paid", "0.20"), ("open", "5")]:
            await http.post("/api/orders", json={"status": status, "total": total})

        wanted = {
            "select": [{"op": "count", "as": "n"}, {"op": "avg", "field": "total"}],
            "group_by": ["status"],
            "having": [{"alias": "n", "operator": "gte", "value": 1}],
            "order_by": [{"field": "n", "direction": "desc"}],
        }
        answer = await http.get("/api/orders/aggregate", params={"aggregate": json.dumps(wanted)})
        assert answer.json()["data"] == [
            {"status": "paid", "n": 2, "avg_total": "10.05"},
            {"status": "open", "n": 1, "avg_total": "5"},
        ]

        assert (await http.get("/api/revenue")).json()["data"] == {"revenue": "20.1"}


if __name__ == "__main__":
    asyncio.run(main())
