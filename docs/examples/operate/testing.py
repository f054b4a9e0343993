import asyncio

from maniflex import Model, Server
from maniflex.testing import client


class Task(Model):
    title: str


server = Server()
server.register(Task)


async def test_a_task_needs_a_title() -> None:
    async with client(server) as http:
        refused = await http.post("/api/tasks", json={})

        assert refused.status_code == 422


if __name__ == "__main__":
    asyncio.run(test_a_task_needs_a_title())
