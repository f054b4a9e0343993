import asyncio
from decimal import Decimal

from maniflex import Model, Server, WithDeletedAt, field
from maniflex.testing import client


class Priced(Model):
    price: Decimal = field(min=0)
    currency: str = field(pattern="^[A-Z]{3}$")


class Book(Priced, WithDeletedAt, table="library_books", indices=[("title", "price")]):
    title: str = field(filterable=True, sortable=True)


server = Server()
server.register(Book)


async def main() -> None:
    async with client(server) as http:
        book = {"title": "Emma", "price": "12.50", "currency": "GBP"}
        created = (await http.post("/api/library_books", json=book)).json()["data"]
        assert created["price"] == "12.50"

        await http.delete(f"/api/library_books/{created['id']}")
        assert (await http.get(f"/api/library_books/{created['id']}")).status_code == 404


if __name__ == "__main__":
    asyncio.run(main())
