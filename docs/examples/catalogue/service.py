import asyncio
from datetime import datetime

from maniflex import Model, Server, field
from maniflex.middleware import service
from maniflex.testing import client


class Account(Model):
    email: str
    password: str = field(writeonly=True, min_length=8, max_length=72)


class Article(Model):
    title: str
    slug: str | None = field(default=None, unique=True)
    status: str = "draft"
    published_at: datetime | None = field(default=None, readonly=True)


server = Server()
server.register(Account, Article)
server.pipeline.service.register(service.hash_field("password"), models=[Account])
server.pipeline.service.register(service.slugify_field("title", "slug", unique=True), models=[Article])
server.pipeline.service.register(
    service.timestamp_when("published_at", "status", "published"), models=[Article]
)


async def main() -> None:
    async with client(server) as http:
        account = {"email": "ada@example.org", "password": "correct horse"}
        stored = await http.post("/api/accounts", json=account)
        assert stored.status_code == 201
        assert "password" not in stored.json()["data"]

        slugs = [
            (await http.post("/api/articles", json={"title": "Crème brûlée"})).json()["data"]["slug"]
            for _ in range(2)
        ]
        assert slugs == ["creme-brulee", "creme-brulee-2"]


if __name__ == "__main__":
    asyncio.run(main())
