"""The bytes of a body for code, at every step: read once, within the limits, and there for what follows."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Next, Server, file
from maniflex.middleware import idempotency
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, total
from tests.kit.sockets import a_request, connected, listening
from tests.kit.waiting import eventually

KEY = b"a shared key"


class Note(Model):
    text: str
    image: str | None = file(default=None)


async def of_context(ctx: Context) -> bytes:
    return await ctx.read_body()


async def of_request(ctx: Context) -> bytes:
    return await ctx.request.body()


async def of_stream(ctx: Context) -> bytes:
    return b"".join([part async for part in ctx.request.stream()])


async def twice(ctx: Context) -> bytes:
    await ctx.request.body()
    await ctx.request.json()
    assert await ctx.read_body() == await ctx.request.body()
    return await ctx.read_body()


READERS = [of_context, of_request, of_stream, twice]


def a_server(read: Callable[[Context], Any], step: str = "auth", **settings: Any) -> Server:
    """A server that checks a signature of every body."""
    server = Server("sqlite:///:memory:", storage="memory:", **settings)
    server.register(Note)

    async def check_signature(ctx: Context, next: Next) -> None:
        if ctx.scope["method"] != "GET":
            body = await read(ctx)
            if ctx.header("x-signature") != sign(body):
                ctx.abort(401, "BAD_SIGNATURE", "the signature is wrong")
            ctx.auth = AuthInfo(user_id="hook")
        else:
            assert await ctx.read_body() == b""
        await next()

    getattr(server.pipeline, step).register(check_signature)
    return server


def sign(body: bytes) -> str:
    return hmac.new(KEY, body, hashlib.sha256).hexdigest()


def headers_of(body: bytes, kind: str = "application/json") -> dict[str, str]:
    return {"x-signature": sign(body), "content-type": kind}


async def in_parts(body: bytes, size: int = 50_000) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize("read", READERS)
async def test_a_signature_of_the_body_is_checked_in_the_auth_step(read: Callable[[Context], Any]) -> None:
    async with client(a_server(read)) as http:
        for text in ("small", "x" * 2_000_000):
            body = json.dumps({"text": text}).encode()
            for content in (body, in_parts(body)):  # with a length, and without
                note = data_of(await http.post("/api/notes", content=content, headers=headers_of(body)), 201)
                assert note["text"] == text
            error_of(await http.post("/api/notes", content=body), 401, "BAD_SIGNATURE")
        assert await total(http, "/api/notes") == 4


@pytest.mark.parametrize("step", ["auth", "deserialize", "validate", "service", "db"])
async def test_every_step_reads_it(step: str) -> None:
    async with client(a_server(of_request, step)) as http:
        body = b'{"text": "a"}'
        note = data_of(await http.post("/api/notes", content=body, headers=headers_of(body)), 201)
        path = f"/api/notes/{note['id']}"
        data_of(await http.patch(path, content=body, headers=headers_of(body)))
        assert (await http.delete(path, headers=headers_of(b""))).status_code == 204


async def test_what_is_refused_otherwise_is_refused_after_it_was_read() -> None:
    async with client(a_server(of_context, max_body_size=1000)) as http:
        large = json.dumps({"text": "x" * 2000}).encode()
        for content in (large, in_parts(large)):
            error_of(
                await http.post("/api/notes", content=content, headers=headers_of(large)),
                413,
                "BODY_READ_ERROR",
            )
        form = b"text=a"
        refused = await http.post(
            "/api/notes", content=form, headers=headers_of(form, "text/plain; charset=utf-8")
        )
        assert refused.status_code == 415
        error_of(await http.post("/api/notes", content=b"{", headers=headers_of(b"{")), 400, "INVALID_JSON")
        error_of(await http.post("/api/notes", content=b"", headers=headers_of(b"")), 400, "EMPTY_BODY")
        assert await total(http, "/api/notes") == 0


async def test_a_form_with_a_file_is_read_again_behind_it() -> None:
    async with client(a_server(of_context)) as http:
        request = http.build_request(
            "POST", "/api/notes", data={"text": "a"}, files={"image": ("a.txt", b"words", "text/plain")}
        )
        body = await request.aread()
        request.headers["x-signature"] = sign(body)
        note = data_of(await http.send(request), 201)
        assert (note["text"], note["image"] is None) == ("a", False)


async def test_a_form_that_middleware_reads_is_there_for_the_files_of_the_record() -> None:
    seen: list[Any] = []

    async def of_form(ctx: Context) -> bytes:
        form = await ctx.request.form()
        seen.append(form["text"])
        return await ctx.read_body()

    async with client(a_server(of_form)) as http:
        request = http.build_request(
            "POST", "/api/notes", data={"text": "a"}, files={"image": ("a.txt", b"words", "text/plain")}
        )
        request.headers["x-signature"] = sign(await request.aread())
        data_of(await http.send(request), 201)
    assert seen == ["a"]


async def test_an_action_gets_the_form_whose_signature_its_guard_checked() -> None:
    server = a_server(of_context)

    @server.action("POST", "/hook")
    async def hook(ctx: Context) -> str:
        return str((await ctx.request.form())["text"])

    @server.action("POST", "/json", middleware=[idempotency.keys()])
    async def take_json(ctx: Context) -> Any:
        return await ctx.bind_json()

    async with client(server) as http:
        form, body = b"text=paid", b'{"a": 1}'
        kind = "application/x-www-form-urlencoded"
        assert data_of(await http.post("/api/hook", content=form, headers=headers_of(form, kind))) == "paid"
        assert data_of(await http.post("/api/json", content=body, headers=headers_of(body))) == {"a": 1}
        refused = await http.post("/api/json", content=form, headers=headers_of(form, kind))
        assert refused.status_code == 415


async def test_a_stream_that_an_action_lets_pass_by_is_no_hang_for_who_reads_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("sqlite:///:memory:")

    @server.action("POST", "/count")
    async def count(ctx: Context) -> Any:
        size = sum([len(part) async for part in ctx.request.stream()])
        return {"size": size} if ctx.query_param("once") else await ctx.bind_json()

    async with client(server) as http:
        assert data_of(await http.post("/api/count?once=1", content=b"x" * 5_000_000)) == {"size": 5_000_000}
        with caplog.at_level(logging.ERROR):
            assert (await http.post("/api/count", json={})).status_code == 500
        assert "await ctx.read_body() keeps it" in caplog.text


async def test_code_in_the_process_reads_the_body_that_it_is_sent() -> None:
    server = a_server(of_request)
    async with client(server):
        body = b'{"text": "a"}'
        answer = await server.call("POST", "/api/notes", body=body, headers={"x-signature": sign(body)})
        assert answer.status == 201


async def test_a_body_that_does_not_come_is_cut_off_and_who_leaves_writes_nothing() -> None:
    began: list[str] = []

    async def read(ctx: Context) -> bytes:
        began.append(ctx.request_id)
        return await ctx.read_body()

    server = a_server(read, head_timeout=0.2, body_timeout=0.2)
    async with listening(server) as port:
        async with connected(port) as slow:
            await slow.send(a_request("POST", "/api/notes", b'{"te', "Content-Length: 500"))
            assert await asyncio.wait_for(slow.read(), 20) == b""
        async with connected(port) as leaving:
            await leaving.send(a_request("POST", "/api/notes", b'{"te', "Content-Length: 500"))
            await eventually(lambda: len(began) == 2, "the second request reads")
            leaving.leave()
        assert await server.db(Note).count() == 0
        body = b'{"text": "a"}'
        async with connected(port) as right:
            await right.send(a_request("POST", "/api/notes", body, f"x-signature: {sign(body)}"))
            assert (await right.answer())[0] == 201


async def test_middleware_of_a_reached_model_reads_the_body_of_the_request() -> None:
    class Author(Model, table="rb_authors"):
        name: str

    class Book(Model, table="rb_books"):
        author_id: str

    server, seen = Server("sqlite:///:memory:"), []
    server.register(Author, Book)

    @server.pipeline.auth.middleware(models=[Author])
    async def look(ctx: Context, next: Next) -> None:
        seen.append(await ctx.read_body())
        await next()

    async with client(server) as http:
        author = await created(http, "/api/rb_authors", name="Ann")
        await created(http, "/api/rb_books", author_id=author["id"])
    assert b"author_id" in seen[-1]
