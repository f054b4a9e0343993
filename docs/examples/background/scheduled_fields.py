import asyncio
from datetime import UTC, datetime, timedelta
from typing import Literal

from maniflex import Model, Server, WithDeletedAt, scheduled


class Post(Model, WithDeletedAt):
    title: str
    status: Literal["draft", "published", "archived"] = "draft"
    publish_at: datetime | None = scheduled(default=None, set_field="status", from_="draft", to="published")
    archive_at: datetime | None = scheduled(default=None, set_field="status", to="archived")
    expires_at: datetime | None = scheduled(default=None, soft_delete=True)
    purge_at: datetime | None = scheduled(default=None, hard_delete=True)


server = Server(background=False)  # so that this sample can say itself when to sweep
server.register(Post)

published: list[str] = []


@server.scheduled.on_set_field
async def announce(model: str, id: str, field: str, to: object) -> None:
    published.append(f"{model} {field}={to}")


async def main() -> None:
    async with server.lifespan():
        posts = server.db(Post)
        now = datetime.now(UTC)
        post = await posts.create(title="Hello", publish_at=now - timedelta(minutes=1))
        later = await posts.create(title="Later", publish_at=now + timedelta(days=1))

        report = await server.scheduled.sweep()
        assert (report.updated, report.deleted, report.truncated) == (1, 0, False)
        assert published == ["Post status=published"]
        assert (await posts.read(post.id)).status == "published"
        assert (await posts.read(later.id)).status == "draft"

        assert (await server.scheduled.sweep()).updated == 0  # each record once
        published.clear()


if __name__ == "__main__":
    asyncio.run(main())
