import asyncio

from maniflex import Model, Server, WithDeletedAt, field, has_many
from maniflex.testing import client


class Author(Model):
    name: str
    books: list["Book"] = has_many()


class Book(Model, WithDeletedAt, restore=True):
    title: str
    author_id: str = field(on_delete="cascade")
    translator_id: str | None = field(relation="Author", on_delete="set_null")


class Loan(Model):
    reader: str
    book_id: str = field(on_delete="restrict")


server = Server()
server.register(Author, Book, Loan)


async def main() -> None:
    async with client(server) as http:
        nobody = await http.post("/api/books", json={"title": "Emma", "author_id": "nobody"})
        assert nobody.status_code == 409

        jane = (await http.post("/api/authors", json={"name": "Jane"})).json()["data"]
        emma = {"title": "Emma", "author_id": jane["id"]}
        book = (await http.post("/api/books", json=emma)).json()["data"]
        loan = (await http.post("/api/loans", json={"reader": "Ada", "book_id": book["id"]})).json()["data"]

        refused = (await http.delete(f"/api/books/{book['id']}")).json()["error"]
        assert (refused["code"], refused["details"][0]["model"]) == ("DELETE_RESTRICTED", "Loan")

        await http.delete(f"/api/loans/{loan['id']}")
        assert (await http.delete(f"/api/books/{book['id']}")).status_code == 204
        assert (await http.post(f"/api/books/{book['id']}/restore")).status_code == 200

        [author] = await server.db(Author).list(include=["books"])
        assert [found.title for found in author.books] == ["Emma"]


if __name__ == "__main__":
    asyncio.run(main())
