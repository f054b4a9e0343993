import asyncio

from maniflex import Model, Server
from maniflex.testing import client


class Person(Model):
    first: str
    last: str


server = Server()
server.register(Person)


@server.computed(Person, "full_name")
def full_name(person: Person) -> str:
    return f"{person.first} {person.last}"


async def main() -> None:
    async with client(server) as http:
        created = await http.post("/api/people", json={"first": "Ada", "last": "Lovelace"})
        assert created.json()["data"]["full_name"] == "Ada Lovelace"


if __name__ == "__main__":
    asyncio.run(main())
