import asyncio

from maniflex import AuthInfo, Context, Model, Next, Operation, Server, field


class Ticket(Model):
    title: str = field(min_length=1)


server = Server(database="sqlite:///:memory:")
server.register(Ticket)


@server.pipeline.auth.middleware(operations=Operation.WRITES)
async def needs_a_caller(ctx: Context, next: Next) -> None:
    if ctx.auth is None:
        ctx.abort(401, "UNAUTHORIZED", "say who you are")
    await next()


async def main() -> None:
    async with server.lifespan(role="client"):
        anonymous = await server.execute("create", Ticket, body={"title": "Lost"})
        assert anonymous.status == 401

        robot = AuthInfo(user_id="importer", identity_type="service_account")
        created = await server.execute(Operation.CREATE, Ticket, body={"title": "Found"}, auth=robot)
        assert created.status == 201

        listed = await server.execute(Operation.LIST, Ticket, query={"limit": 5})
        assert [ticket["title"] for ticket in listed.data] == ["Found"]


if __name__ == "__main__":
    asyncio.run(main())
