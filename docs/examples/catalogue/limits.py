import asyncio

from maniflex import Context, Model, Server, field
from maniflex.middleware import db
from maniflex.testing import client


class Comment(Model):
    text: str
    email: str | None = field(default=None)


server = Server()
server.register(Comment)
server.pipeline.db.register(db.rate_limit(100, 60))
server.pipeline.db.register(db.rate_limit(5, 60), models=[Comment], operations=["create"])
server.pipeline.deserialize.register(db.rate_limit_field("email", 2, 3600), models=[Comment], at="after")
server.pipeline.db.register(db.paginate(50))


@server.action("POST", "/comments/{id}/report", middleware=[db.rate_limit(3, 3600)])
async def report(ctx: Context) -> None:
    await ctx.db(Comment).read(ctx.url_param("id"))


async def main() -> None:
    async with client(server) as http:
        answers = [await http.post("/api/comments", json={"text": "first!"}) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [201] * 5 + [429]
        assert answers[0].headers["ratelimit-remaining"] == "4"
        assert answers[5].json()["error"]["code"] == "RATE_LIMITED"
        assert 1 <= int(answers[5].headers["retry-after"]) <= 12


if __name__ == "__main__":
    asyncio.run(main())
