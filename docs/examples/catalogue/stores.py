import asyncio

from maniflex import Context, Model, Server
from maniflex.middleware import db, stores
from maniflex.testing import client


class Page(Model):
    title: str


server = Server()
server.register(Page)
# One process, so its memory is enough: nothing is written for a limit.
server.pipeline.db.register(db.rate_limit(2, 60, backend=stores.MemoryRateLimit()))

visits = stores.MemoryStore(max_entries=1000)


@server.action("GET", "/visits")
async def count_visit(ctx: Context) -> int:
    return await visits.increment("visits", ttl=86400)


async def main() -> None:
    async with client(server) as http:
        for number in (1, 2, 3):
            assert (await http.get("/api/visits")).json()["data"] == number
        assert [(await http.get("/api/pages")).status_code for _ in range(3)] == [200, 200, 429]


if __name__ == "__main__":
    asyncio.run(main())
