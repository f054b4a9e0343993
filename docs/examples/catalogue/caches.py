import asyncio

from maniflex import Context, Model, Server, field
from maniflex.middleware import db, stores
from maniflex.testing import client


class Product(Model):
    name: str = field(sortable=True)


server = Server()
server.register(Product)
cache = stores.MemoryStore()
server.pipeline.db.register(db.cache_query(cache, ttl=60), models=[Product])
server.pipeline.db.register(db.invalidate(cache, lambda ctx: ["menu"]), models=[Product], at="after")


@server.action("GET", "/menu")
async def menu(ctx: Context) -> str:
    text = await cache.get("menu")
    if text is None:
        names = [product.name for product in await ctx.db(Product).list()]
        text = ", ".join(names).encode()
        await cache.set("menu", text, 3600)
    return text.decode()


async def main() -> None:
    async with client(server) as http:
        for name in ("tea", "coffee"):
            await http.post("/api/products", json={"name": name})
            first, second = [await http.get("/api/products?sort=name:asc") for _ in range(2)]
            assert first.content == second.content  # the second came from the cache
            assert name in (await http.get("/api/menu")).json()["data"]


if __name__ == "__main__":
    asyncio.run(main())
