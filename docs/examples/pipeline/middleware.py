import asyncio

from maniflex import AuthInfo, Context, Model, Next, Operation, Server, field
from maniflex.testing import client


class Order(Model):
    total: int = field(min=0)
    owner_id: str = field(readonly=True)


server = Server()
server.register(Order)


@server.pipeline.auth.middleware(operations=Operation.WRITES)
async def known_caller(ctx: Context, next: Next) -> None:
    user = ctx.request.headers.get("x-user")
    if user is None:
        ctx.abort(401, "UNAUTHORIZED", "say who you are")
    ctx.auth = AuthInfo(user_id=user, roles=["clerk"])
    await next()


@server.pipeline.service.middleware(models=[Order], operations=[Operation.CREATE])
async def limits(ctx: Context, next: Next) -> None:
    if ctx.field("total") > 1000 and not ctx.has_role("manager"):
        ctx.abort(403, "NEEDS_MANAGER", "orders over 1000 need a manager")
    ctx.set_field("owner_id", ctx.auth.user_id if ctx.auth else "")
    await next()


async def main() -> None:
    async with client(server) as http:
        assert (await http.post("/api/orders", json={"total": 5})).status_code == 401

        ada = {"x-user": "ada"}
        created = await http.post("/api/orders", json={"total": 5, "owner_id": "bob"}, headers=ada)
        assert created.json()["data"]["owner_id"] == "ada"

        refused = await http.post("/api/orders", json={"total": 5000}, headers=ada)
        assert refused.json()["error"]["code"] == "NEEDS_MANAGER"


if __name__ == "__main__":
    asyncio.run(main())
