import asyncio
from datetime import datetime

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex.middleware import response
from maniflex.testing import client


class Ticket(Model, soft_delete=True):
    title: str


class Note(Model, soft_delete=True):
    text: str
    deleted_at: datetime | None = field(default=None)  # not filterable: no client lists deleted notes


server = Server()
server.register(Ticket, Note)


@server.pipeline.auth.middleware()
async def sign_in(ctx: Context, next: Next) -> None:
    ctx.auth = AuthInfo(user_id="ada", roles=[ctx.header("X-Role") or "member"])
    await next()


# Only admins may see when tickets were deleted, and so list deleted ones.
only_admins = response.redact_field("deleted_at", lambda ctx: not ctx.has_role("admin"))
server.pipeline.response.register(only_admins, models=[Ticket])


async def main() -> None:
    async with client(server) as http:
        for path, body in (("/api/tickets", {"title": "Broken"}), ("/api/notes", {"text": "Broken"})):
            record = (await http.post(path, json=body)).json()["data"]
            await http.delete(f"{path}/{record['id']}")

        async def deleted(path: str, role: str) -> int:
            answer = await http.get(f"{path}?filter=deleted_at:not_null", headers={"X-Role": role})
            return answer.status_code

        assert [await deleted("/api/tickets", role) for role in ("member", "admin")] == [400, 200]
        assert [await deleted("/api/notes", role) for role in ("member", "admin")] == [400, 400]


if __name__ == "__main__":
    asyncio.run(main())
