import asyncio
from datetime import date

import httpx

from maniflex import Model, Server, field, has_many
from maniflex.testing import client


class Author(Model):
    name: str = field(filterable=True)
    books: list["Book"] = has_many()


class Book(Model):
    title: str = field(filterable=True, sortable=True)
    price: int = field(filterable=True)
    published: date | None = field(default=None, filterable=True)
    author_id: str = field(filterable=True)


server = Server()
server.register(Author, Book)


async def titles(http: httpx.AsyncClient, query: str) -> list[str]:
    answer = await http.get(f"/api/books?sort=title&{query}")
    return [book["title"] for book in answer.json()["data"]]


async def main() -> None:
    async with client(server) as http:
        author = (await http.post("/api/authors", json={"name": "Jane"})).json()["data"]
        for title, price, published in [
            ("Emma", 9, "1815-12-23"),
            ("Sanditon", 4, None),
            ("Sense, and Sensibility", 12, "1811-10-30"),
        ]:
            book = {"title": title, "price": price, "published": published, "author_id": author["id"]}
            await http.post("/api/books", json=book)

        assert await titles(http, "filter=price:gt:5&filter=title:starts_with:e") == ["Emma"]
        assert await titles(http, 'filter=title:in:Emma,"Sense, and Sensibility"&filter=price:lt:10') == [
            "Emma"
        ]
        assert await titles(http, "filter=published:is_null") == ["Sanditon"]
        assert await titles(http, "filter[0]=price:lt:5&filter[0]=title:eq:Emma") == ["Emma", "Sanditon"]
        assert len(await titles(http, "filter=author.name:eq:Jane")) == 3

        wrong = await http.get("/api/books?filter=price:gt:cheap")
        assert wrong.json()["error"]["message"] == "filter: price takes a whole number"


if __name__ == "__main__":
    asyncio.run(main())
