import asyncio

from maniflex import AuthInfo, Context, Model, Next, Server, belongs_to, field
from maniflex.middleware import response
from maniflex.testing import client


class Team(Model):
    name: str


class Person(Model, export=True, aggregate=True):
    name: str = field(sortable=True, searchable=True)
    phone: str = field(default="", filterable=True, sortable=True, searchable=True)
    team_id: str | None = None
    team: Team | None = belongs_to()


def is_not_staff(ctx: Context) -> bool:
    return not ctx.has_role("staff")


async def sign_in(ctx: Context, next: Next) -> None:
    if ctx.header("X-Role"):  # in the place of an authenticator
        ctx.auth = AuthInfo(user_id="ada", roles=[ctx.header("X-Role") or ""])
    await next()


server = Server()
server.register(Team, Person)
server.pipeline.auth.register(sign_in)
server.pipeline.response.register(response.redact_field("phone", is_not_staff), models=[Person])


@server.action("GET", "/phone_book")
async def phone_book(ctx: Context) -> object:
    hidden = await ctx.redacted(Person)
    return [
        {"name": p.name} | ({} if "phone" in hidden else {"phone": p.phone})
        for p in await ctx.db(Person).list()
    ]


async def main() -> None:
    staff = {"X-Role": "staff"}
    async with client(server) as http:
        made = await http.post("/api/people", json={"name": "Ada", "phone": "555 0199"})
        assert "phone" not in made.json()["data"]

        path = "/api/people?filter=phone:starts_with:555"
        assert (await http.get(path)).json()["error"] == {
            "code": "INVALID_QUERY",
            "message": "filter: 'phone' is not a field that can be filtered",
        }
        [ada] = (await http.get(path, headers=staff)).json()["data"]
        assert ada["phone"] == "555 0199"

        assert "phone" not in (await http.get("/api/people/export")).text
        assert (await http.get("/api/people?q=0199")).json()["data"] == []
        assert (await http.get("/api/phone_book")).json()["data"] == [{"name": "Ada"}]


if __name__ == "__main__":
    asyncio.run(main())
