import asyncio
from typing import Any

from maniflex import Context, Model, Server, field
from maniflex.testing import client


class User(Model):
    email: str = field(unique=True)


class Import(Model):
    rows: int


server = Server()
server.register(User, Import)


@server.action("POST", "/users/import")
async def import_users(ctx: Context) -> Any:
    async with ctx.batch() as batch:
        users = await batch.create_many(User, await ctx.bind_json(list[dict[str, Any]]))
        return await batch.create(Import, rows=len(users))


async def main() -> None:
    async with client(server) as http:
        rows = [{"email": f"{n}@example.org"} for n in range(1000)]
        assert (await http.post("/api/users/import", json=rows)).json()["data"]["rows"] == 1000

        refused = await http.post("/api/users/import", json=[{"email": "new@example.org"}, rows[0]])
        assert refused.json()["error"]["details"][0]["field"] == "[1].email"
        assert (await http.get("/api/users")).json()["meta"]["total"] == 1000


if __name__ == "__main__":
    asyncio.run(main())
