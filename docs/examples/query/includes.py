import asyncio

from maniflex import Model, Server, field, has_many
from maniflex.testing import client


class User(Model):
    name: str = field(sortable=True)
    phone: str = field(writeonly=True)
    posts: list["Post"] = has_many()


class Post(Model):
    title: str = field(sortable=True)
    user_id: str | None = field(default=None)


server = Server()
server.register(User, Post)


async def main() -> None:
    async with client(server) as http:
        ada = (await http.post("/api/users", json={"name": "Ada", "phone": "1"})).json()["data"]
        await http.post("/api/posts", json={"title": "Engines", "user_id": ada["id"]})
        await http.post("/api/posts", json={"title": "Notes"})

        posts = (await http.get("/api/posts?sort=title&select=title&include=user")).json()["data"]
        assert posts[0]["user"]["name"] == "Ada"
        assert "phone" not in posts[0]["user"]
        assert posts[1] == {"title": "Notes"}

        deep = (await http.get(f"/api/users/{ada['id']}?include=posts.user")).json()["data"]
        assert deep["posts"][0]["user"]["id"] == ada["id"]


if __name__ == "__main__":
    asyncio.run(main())
