import asyncio
from datetime import UTC, datetime, timedelta

from maniflex import Model, Server
from maniflex.testing import FakeClock, client


class Task(Model):
    title: str


clock = FakeClock(datetime(2030, 1, 1, tzinfo=UTC))
server = Server(clock=clock)
server.register(Task)


async def test_a_task_needs_a_title() -> None:
    async with client(server) as http:
        refused = await http.post("/api/tasks", json={})

        assert refused.status_code == 422


async def test_a_change_is_dated() -> None:
    async with client(server) as http:
        task = (await http.post("/api/tasks", json={"title": "Wait"})).json()["data"]
        clock.advance(timedelta(hours=1))
        changed = (await http.patch(f"/api/tasks/{task['id']}", json={"title": "Go"})).json()["data"]

        assert changed["updated_at"] == "2030-01-01T01:00:00Z"


if __name__ == "__main__":
    asyncio.run(test_a_task_needs_a_title())
    asyncio.run(test_a_change_is_dated())
