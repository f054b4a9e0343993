import asyncio

from maniflex import Context, Model, Next, Server, field
from maniflex.middleware.openapi import add_security_scheme, set_title
from maniflex.testing import client


class Note(Model):
    """A short text."""

    text: str = field(filterable=True, max_length=200)
    pin: str | None = field(writeonly=True)


server = Server()
server.register(Note)
server.pipeline.openapi.generate.register(set_title("Notes"), at="after")
server.pipeline.openapi.generate.register(
    add_security_scheme("bearer", {"type": "http", "scheme": "bearer"}), at="after"
)


@server.pipeline.openapi.auth.middleware()
async def staff_only(ctx: Context, next: Next) -> None:
    if ctx.header("authorization") != "Bearer staff":
        ctx.abort(401, "UNAUTHORIZED", "the description is for staff")
    await next()


async def main() -> None:
    async with client(server) as http:
        assert (await http.get("/api/openapi.json")).status_code == 401
        assert (await http.get("/docs")).status_code == 401

        staff = {"authorization": "Bearer staff"}
        document = (await http.get("/api/openapi.json", headers=staff)).json()
        assert document["info"]["title"] == "Notes"
        assert document["paths"]["/api/notes"]["get"]["operationId"] == "list_notes"

        schemas = document["components"]["schemas"]
        assert "pin" not in schemas["Note"]["properties"]
        assert schemas["NoteCreate"]["properties"]["pin"]["writeOnly"] is True
        assert schemas["NoteCreate"]["required"] == ["text"]


if __name__ == "__main__":
    asyncio.run(main())
