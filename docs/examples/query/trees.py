import asyncio

from maniflex import Context, Model, Server
from maniflex.testing import client


class Category(Model):
    name: str
    parent_id: str | None = None


server = Server()
server.register(Category)


@server.action("GET", "/categories/{id}/tree")
async def tree(ctx: Context) -> object:
    rows = await ctx.recursive_query(Category, root_id=ctx.url_param("id"), parent_field="parent_id")
    return [{"name": row["name"], "depth": row["_depth"]} for row in rows]


async def main() -> None:
    async with client(server) as http:
        parent = None
        ids = []
        for name in ("Books", "Fiction", "Crime"):
            body = {"name": name, "parent_id": parent}
            parent = (await http.post("/api/categories", json=body)).json()["data"]["id"]
            ids.append(parent)

        found = (await http.get(f"/api/categories/{ids[1]}/tree")).json()["data"]
        assert found == [{"name": "Fiction", "depth": 0}, {"name": "Crime", "depth": 1}]


if __name__ == "__main__":
    asyncio.run(main())
