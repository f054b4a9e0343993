import asyncio

from maniflex import Model, Server, field
from maniflex.testing import client


class City(Model):
    name: str = field(sortable=True)
    country: str = field(filterable=True)


server = Server()
server.register(City)


async def main() -> None:
    async with client(server) as http:
        for name, country in [("Turin", "IT"), ("Rome", "IT"), ("Lyon", "FR")]:
            await http.post("/api/cities", json={"name": name, "country": country})

        page = (await http.get("/api/cities?filter=country:eq:IT&sort=name:asc&limit=1")).json()
        assert [city["name"] for city in page["data"]] == ["Rome"]
        assert page["meta"] == {"total": 2, "page": 1, "limit": 1, "pages": 2}

        refused = await http.get("/api/cities?filter=name:eq:Rome")
        assert refused.json()["error"]["code"] == "INVALID_QUERY"


if __name__ == "__main__":
    asyncio.run(main())
