import asyncio

from maniflex import Model, Server, WithDeletedAt, field
from maniflex.admin import ModelAdmin, Section
from maniflex.testing import client


class Author(Model):
    name: str = field(filterable=True, sortable=True, searchable=True)


class Post(Model, WithDeletedAt, versioned=True, restore=True):
    title: str = field(filterable=True, sortable=True, searchable=True)
    body: str = ""
    published: bool = field(default=False, filterable=True)
    author_id: str = field(filterable=True)


server = Server()
server.register(Author, Post)

admin = server.admin(title="Blog")
admin.add(
    ModelAdmin(
        Post,
        label="{title}",
        columns=("title", "author_id", "published"),
        form=(Section("Text", "title", "body"), Section("Publishing", "author_id", "published")),
        group="Content",
    )
)


async def main() -> None:
    async with client(server) as http:
        front = await http.get("/admin/")
        assert (front.status_code, front.headers["location"]) == (302, "/admin/-/login")
        assert "createsuperuser" in (await http.get("/admin/-/login")).text


if __name__ == "__main__":
    asyncio.run(main())
