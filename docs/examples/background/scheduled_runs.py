import asyncio
from datetime import UTC, datetime, timedelta

from maniflex import Model, Server, scheduled


class Token(Model):
    value: str
    expires_at: datetime | None = scheduled(default=None, hard_delete=True)


server = Server(background=False)
server.register(Token)
server.scheduled.handler(type="scheduled.sweep")  # sweeps come as runs, not by the clock of each process


async def main() -> None:
    async with server.lifespan():
        await server.db(Token).create(value="old", expires_at=datetime.now(UTC) - timedelta(days=1))

        run = await server.work.submit("scheduled.sweep")
        await server.work.worker(prefixes=("scheduled.",)).drain()

        swept = await server.work.get(run.id)
        assert isinstance(swept.result, dict)
        assert swept.result["deleted"] == 1


if __name__ == "__main__":
    asyncio.run(main())
