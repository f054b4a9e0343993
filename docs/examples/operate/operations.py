import asyncio

from pydantic import BaseModel

from maniflex import AuthInfo, Context, Model, Run, Server
from maniflex.admin import Operations
from maniflex.testing import client


class Order(Model):
    title: str


class Receipt(BaseModel):
    order_id: str
    copies: int = 1


server = Server()
server.register(Order)


async def login(ctx: Context, username: str, password: str) -> AuthInfo | None:
    roles = {"olga": ["staff", "operator"], "sam": ["staff", "support"]}.get(username)
    return None if roles is None or password != "for this page" else AuthInfo(user_id=username, roles=roles)


server.admin(
    auth=login,
    role="staff",
    operations=Operations(role="operator", view_role="support", redact=("iban",)),
)


@server.work.handler("email.receipt.v1", payload=Receipt, max_attempts=5)
async def send_receipt(run: Run) -> dict[str, int]:
    return {"copies": run.payload.copies}


async def main() -> None:
    async with client(server) as http:
        order = await server.db(Order).create(title="Twelve lamps")
        await server.work.submit("email.receipt.v1", {"order_id": order.id}, about=order)

        page = await http.get("/admin/-/login")
        token = page.text.partition('name="_csrf" value="')[2][:64]
        form = {"_csrf": token, "username": "sam", "password": "for this page"}
        await http.post("/admin/-/login", data=form)
        runs = (await http.get("/admin/-/operations/runs")).text
        assert "email.receipt.v1" in runs
        assert "Submit a run" not in runs  # Sam only looks


if __name__ == "__main__":
    asyncio.run(main())
