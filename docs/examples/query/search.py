import asyncio

from maniflex import Context, Model, Server, field
from maniflex.testing import client


class Article(Model, global_searchable=True):
    title: str = field(searchable=True)
    body: str = field(searchable=True)
    topic: str = field(filterable=True)


class Comment(Model, global_searchable=True):
    text: str = field(searchable=True)


server = Server()
server.register(Article, Comment)
server.enable_global_search()


@server.action("GET", "/similar")
async def similar(ctx: Context) -> object:
    return await ctx.search(ctx.query_param("to"), models=[Article], limit=5)


async def main() -> None:
    async with client(server) as http:
        for title, topic in [("Running a marathon", "sport"), ("How we run our servers", "work")]:
            await http.post("/api/articles", json={"title": title, "body": "…", "topic": topic})
        await http.post("/api/comments", json={"text": "I run every day"})

        page = (await http.get("/api/articles?q=run&filter=topic:eq:work")).json()
        assert [article["title"] for article in page["data"]] == ["How we run our servers"]

        hits = (await http.get("/api/search?q=runs")).json()["data"]
        assert sorted(hit["model"] for hit in hits) == ["Article", "Article", "Comment"]

        similar = (await http.get("/api/similar?to=marathon")).json()["data"]
        assert similar[0]["snippet"].startswith("Running a marathon")


if __name__ == "__main__":
    asyncio.run(main())
