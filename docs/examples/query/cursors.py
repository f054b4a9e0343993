import asyncio

from maniflex import Model, Server, field
from maniflex.testing import client


class Event(Model, cursor_field="created_at"):
    name: str = field(filterable=True)


server = Server()
server.register(Event)


async def main() -> None:
    async with client(server) as http:
        for number in range(5):
            await http.post("/api/events", json={"name": f"event {number}"})

        token, seen = "", []
        while True:
            page = (await http.get("/api/events", params={"cursor": token, "limit": 2})).json()
            seen += [event["name"] for event in page["data"]]
            if not page["meta"]["has_more"]:
                break
            token = page["meta"]["next_cursor"]
        assert seen == [f"event {number}" for number in range(5)]

        back = (
            await http.get("/api/events", params={"cursor": page["meta"]["prev_cursor"], "limit": 2})
        ).json()
        assert [event["name"] for event in back["data"]] == ["event 2", "event 3"]


if __name__ == "__main__":
    asyncio.run(main())
