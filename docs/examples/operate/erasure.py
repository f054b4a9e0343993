import asyncio
from typing import Any

from maniflex import Context, Model, Server, field


class Customer(Model, subject="id", versioned=True):
    email: str | None = field(default=None, personal=True, unique=True)
    name: str = field(personal=True, erased="erased")
    plan: str = "free"


class Order(Model, subject="customer_id"):
    customer_id: str = field(relation=Customer, on_delete="restrict")
    address: str | None = field(default=None, personal=True)
    total: int = 0


class Letter(Model, subject="order.customer_id", on_erase="delete"):
    order_id: str = field(relation=Order)
    text: str = field(personal=True, erased="")


class Invoice(Model, subject="customer_id", on_erase="keep", keep_reason="ten years by tax law"):
    customer_id: str
    addressee: str = field(personal=True, erased="")


server = Server(background=False)
server.register(Customer, Order, Letter, Invoice)


@server.action("POST", "/me/erase")
async def delete_my_account(ctx: Context) -> dict[str, Any]:
    """Erase the caller, who signs in as a customer."""
    if ctx.auth is None:
        ctx.abort(401, "UNAUTHORIZED", "sign in first")
    report = await server.erasure.erase(ctx.auth.user_id, reason="asked for it")
    return {"rows": sum(report.counts.values()), "kept": dict(report.kept)}


async def main() -> None:
    async with server.lifespan():
        ada = await server.db(Customer).create(email="ada@example.org", name="Ada")
        order = await server.db(Order).create(customer_id=ada.id, address="Elm Street 1", total=3)
        await server.db(Letter).create(order_id=order.id, text="Dear Ada")
        await server.db(Invoice).create(customer_id=ada.id, addressee="Ada")

        foreseen = await server.erasure.erase(ada.id, dry_run=True)
        report = await server.erasure.erase(ada.id, reason="asked for it", by="support")

        assert report.counts == foreseen.counts
        assert dict(report.counts) == {"customer_histories": 1, "customers": 1, "letters": 1, "orders": 1}
        assert dict(report.kept) == {"Invoice": "ten years by tax law"}
        customer = await server.db(Customer).read(ada.id)
        assert (customer.email, customer.name, customer.plan) == (None, "erased", "free")
        assert (await server.db(Order).read(order.id)).total == 3
        assert await server.db(Letter).list() == []


if __name__ == "__main__":
    asyncio.run(main())
