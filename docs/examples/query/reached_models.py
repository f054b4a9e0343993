import asyncio

from maniflex import Context, Model, Next, Server, field, has_many
from maniflex.testing import client


class Customer(Model):
    name: str = field(filterable=True)
    contracts: list["Contract"] = has_many()


class Contract(Model):
    price: int = field(filterable=True, sortable=True)
    customer_id: str = field(filterable=True)


server = Server()
server.register(Customer, Contract)


@server.pipeline.auth.middleware(models=[Contract])
async def sales_only(ctx: Context, next: Next) -> None:
    if ctx.header("x-role") != "sales":
        ctx.abort(403, "SALES_ONLY", "contracts are for the sales team")
    await next()


async def main() -> None:
    async with client(server) as http:
        await http.post("/api/customers", json={"name": "Ada"})
        assert (await http.get("/api/customers")).status_code == 200

        for asked in ("include=contracts", "filter=contracts.price:gt:100"):
            refused = await http.get(f"/api/customers?{asked}")
            assert refused.status_code == 403
            shown = await http.get(f"/api/customers?{asked}", headers={"x-role": "sales"})
            assert shown.status_code == 200


if __name__ == "__main__":
    asyncio.run(main())
