import asyncio

from maniflex import AuthInfo, Context, Model, Next, Server
from maniflex.background.jobs import Job, Result
from maniflex.testing import client


class Order(Model):
    book: str


server = Server(background=False)
server.register(Order)
server.jobs.mount_status()


@server.pipeline.auth.middleware()
async def who(ctx: Context, next: Next) -> None:
    if user := ctx.header("x-user"):
        ctx.auth = AuthInfo(user_id=user)
    await next()


@server.jobs.handler("send_receipt")
async def send_receipt(job: Job) -> Result:
    order = await server.db(Order).read(job.payload["order_id"])
    return Result(url=f"https://files.example/{order.id}.pdf", output={"book": order.book})


@server.action("POST", "/checkout")
async def checkout(ctx: Context) -> dict[str, str]:
    async with ctx.transaction():  # the order and its job, or neither
        order = await ctx.db(Order).create(book="Dune")
        job_id = await server.jobs.enqueue("send_receipt", {"order_id": order.id})
    return {"job_id": job_id}


async def main() -> None:
    async with client(server, headers={"x-user": "ada"}) as http:
        job_id = (await http.post("/api/checkout")).json()["data"]["job_id"]
        status = (await http.get(f"/api/job_statuses/{job_id}")).json()["data"]
        assert status["status"] == "enqueued"

        await server.work.worker().drain()  # a serving process does this by itself

        status = (await http.get(f"/api/job_statuses/{job_id}")).json()["data"]
        assert status["status"] == "succeeded"
        assert status["output"] == {"book": "Dune"}

        nobody = await http.get("/api/job_statuses", headers={"x-user": ""})
        assert nobody.status_code == 401


if __name__ == "__main__":
    asyncio.run(main())
