import asyncio

from maniflex import Model, Server, field
from maniflex.testing import client


class Visit(Model):
    page: str
    seconds: int


class PageVisits(
    Model,
    table="page_visits",
    query="SELECT page AS id, COUNT(*) AS visits, SUM(seconds) AS seconds FROM visits GROUP BY page",
):
    id: str = field()
    visits: int = field(filterable=True, sortable=True)
    seconds: int = field(sortable=True)


server = Server()
server.register(Visit, PageVisits)


async def main() -> None:
    async with client(server) as http:
        for page, seconds in [("home", 5), ("home", 7), ("about", 60)]:
            await http.post("/api/visits", json={"page": page, "seconds": seconds})

        listed = (await http.get("/api/page_visits?filter=visits:gt:0&sort=seconds:desc")).json()
        assert [row["id"] for row in listed["data"]] == ["about", "home"]
        assert listed["meta"]["total"] == 2

        one = (await http.get("/api/page_visits/home")).json()["data"]
        assert one == {"id": "home", "visits": 2, "seconds": 12}

        assert (await http.post("/api/page_visits", json={"visits": 1})).status_code == 405


if __name__ == "__main__":
    asyncio.run(main())
