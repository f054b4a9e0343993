"""`server.call`: any route, in-process, as an identity that the application vouches for."""

from __future__ import annotations

from typing import Any

from starlette.responses import PlainTextResponse

from maniflex import AuthInfo, Context, Model, Next, Server, field, file
from maniflex.middleware import auth
from maniflex.testing import client

ADA = AuthInfo(user_id="ada", roles=("editor",))


class Note(Model):
    text: str = field(filterable=True, min_length=2)
    picture: str | None = file(default=None)


def make_server() -> Server:
    server = Server(storage="memory:")
    server.register(Note)
    server.pipeline.auth.register(auth.api_keys(keys={"k": AuthInfo(user_id="key")}))
    server.pipeline.auth.register(auth.require_role("editor"), operations="update", models=[Note])

    @server.action("GET", "/whoami/{name}")
    async def whoami(ctx: Context) -> dict[str, Any]:
        return {"user": ctx.auth and ctx.auth.user_id, "name": ctx.url_param("name"), "own": ctx.in_process}

    @server.action("GET", "/plain")
    async def plain(ctx: Context) -> PlainTextResponse:
        return PlainTextResponse("hello")

    return server


async def test_a_call_passes_all_steps_as_its_identity(database_url: str) -> None:
    server = make_server()
    async with client(server, database=database_url):
        made = await server.call("POST", "/api/notes", auth=ADA, json={"text": "one"})
        assert made.status == 201
        path = f"/api/notes/{made.data['id']}"
        assert (await server.call("PATCH", path, auth=ADA, json={"text": "two"})).data["text"] == "two"
        refused = await server.call("PATCH", path, auth=AuthInfo(user_id="bob"), json={"text": "no"})
        assert (refused.status, refused.error and refused.error["code"]) == (403, "FORBIDDEN")
        wrong = await server.call("POST", "/api/notes", auth=ADA, json={"text": "x"})
        assert wrong.status == 422
        listed = await server.call("GET", "/api/notes", auth=ADA, query={"filter": "text:eq:two"})
        assert [note["text"] for note in listed.data] == ["two"]
        typed = await server.call("get", "/api/notes?filter=text:eq:one", auth=ADA)
        assert typed.data == []


async def test_a_call_without_an_identity_is_anonymous(sqlite_url: str) -> None:
    server = make_server()
    async with client(server, database=sqlite_url):
        assert (await server.call("GET", "/api/notes")).status == 401
        by_key = await server.call("GET", "/api/notes", headers={"X-API-Key": "k"})
        assert by_key.status == 200


async def test_a_call_reaches_actions_probes_and_the_description(sqlite_url: str) -> None:
    server = make_server()
    async with client(server, database=sqlite_url):
        answer = await server.call("GET", "/api/whoami/a%20b", auth=ADA)
        assert answer.data == {"user": "ada", "name": "a b", "own": True}
        assert (await server.call("GET", "/live")).status == 200
        plain = await server.call("GET", "/api/plain", auth=ADA)
        assert (plain.body, plain.content_type) == (b"hello", "text/plain; charset=utf-8")
        assert (await server.call("GET", "/api/nothing")).status == 404
        assert (await server.call("DELETE", "/api/notes")).status == 405


async def test_a_call_may_upload(sqlite_url: str) -> None:
    server = make_server()
    form = (
        b'--edge\r\nContent-Disposition: form-data; name="text"\r\n\r\nwith a picture\r\n'
        b'--edge\r\nContent-Disposition: form-data; name="picture"; filename="a.txt"\r\n\r\nbytes\r\n'
        b"--edge--\r\n"
    )
    async with client(server, database=sqlite_url):
        headers = {"content-type": "multipart/form-data; boundary=edge"}
        made = await server.call("POST", "/api/notes", auth=ADA, body=form, headers=headers)
        assert made.status == 201, made.error
        content = await server.call("GET", f"/api/notes/{made.data['id']}/picture", auth=ADA)
        assert content.status == 200


async def test_no_client_can_say_that_it_is_in_process(sqlite_url: str) -> None:
    server = Server()
    seen: list[bool] = []

    @server.pipeline.auth.middleware()
    async def look(ctx: Context, next: Next) -> None:
        seen.append(ctx.in_process)
        await next()

    server.register(Note)
    server.set_storage("memory:")
    async with client(server, database=sqlite_url) as http:
        headers = {"maniflex.in_process": "1", "maniflex-in-process": "true", "x-maniflex-in-process": "1"}
        await http.get("/api/notes?maniflex.in_process=1", headers=headers)
        await server.execute("list", Note)
        await server.call("GET", "/api/notes")
    assert seen == [False, True, True]
