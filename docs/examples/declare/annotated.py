import asyncio
from typing import Annotated

from maniflex import Model, Server, field
from maniflex.testing import client

Slug = Annotated[str, field(pattern="^[a-z0-9-]+$", max_length=60, unique=True, filterable=True)]


class Page(Model):
    slug: Slug
    text: str


server = Server()
server.register(Page)


async def main() -> None:
    async with client(server) as http:
        assert (await http.post("/api/pages", json={"slug": "about-us", "text": ""})).status_code == 201
        assert (await http.post("/api/pages", json={"slug": "About us", "text": ""})).status_code == 422


if __name__ == "__main__":
    asyncio.run(main())
