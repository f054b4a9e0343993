import asyncio
from typing import Any, Literal

from maniflex import Context, Model, Server
from maniflex.middleware import workflow
from maniflex.testing import client


class Invoice(Model):
    status: Literal["draft", "sent", "paid"] = "draft"


class Payment(Model):
    invoice: str


async def book_payment(ctx: Context, from_: Any, to: Any) -> None:
    await ctx.db(Payment).create(invoice=ctx.url_param("id"))


status = workflow.machine(
    "status",
    workflow.allow_initial("draft"),
    workflow.allow("draft", "sent"),
    workflow.allow("sent", "paid"),
    workflow.allow("*", "draft", workflow.require_role("accountant")),
    workflow.on_transition("*", "paid", book_payment),
)
server = Server()
server.register(Invoice, Payment)
server.pipeline.validate.register(status, models=[Invoice])


@server.action("POST", "/invoices/{id}/pay")
async def pay(ctx: Context) -> None:
    await status.transition(ctx, ctx.url_param("id"), "paid")


async def main() -> None:
    async with client(server) as http:
        invoice = (await http.post("/api/invoices", json={})).json()["data"]
        path = f"/api/invoices/{invoice['id']}"
        refusal = (await http.patch(path, json={"status": "paid"})).json()["error"]
        assert refusal["code"] == "INVALID_TRANSITION"
        assert (await http.patch(path, json={"status": "sent"})).status_code == 200
        assert (await http.post(f"{path}/pay")).status_code == 204
        assert (await http.get("/api/payments")).json()["meta"]["total"] == 1


if __name__ == "__main__":
    asyncio.run(main())
