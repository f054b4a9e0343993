"""Code of the application may raise what is no `Exception`: that fails its request and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal

import pytest
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, StreamingResponse

from maniflex import AuthInfo, Context, Model, Next, Operation, Server, field
from maniflex.http.asgi import Aborted
from maniflex.middleware import auth, db, response, service, validate, workflow
from maniflex.pipeline.registration import MEANT_FOR_TASKS
from maniflex.pipeline.response import Response
from maniflex.testing import client
from tests.kit.http import error_of


class Own(BaseException):
    """As the panic of an extension module is one."""


RAISED: list[BaseException] = [
    Own("the cause"),
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    GeneratorExit(),
    BaseExceptionGroup("several", [Own("the cause")]),
    StopIteration(),
]


class Raised:
    """What is raised, if anything."""

    error: BaseException | None = None


class Post(Model, export=True):
    title: str
    team: str = field(default="a")
    pin: str = field(default="", writeonly=True)
    status: Literal["new", "done"] = "new"


class Entry(Model):
    text: str


def a_server(place: str) -> tuple[Server, Raised]:
    """A server that raises in one place, and what it raises there."""
    raised = Raised()

    def hit(here: str) -> None:
        if here == place and raised.error is not None:
            raise raised.error

    server = Server()
    server.register(Post, Entry)
    steps = server.pipeline

    @steps.auth.middleware()
    async def identify(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id="ann")
        await next()

    @steps.service.middleware(models=[Post])
    def plain(ctx: Context, next: Next) -> None:  # so that all that follows is continued from a thread
        hit("plain middleware")
        next()

    @steps.db.middleware(models=[Post])
    async def middleware(ctx: Context, next: Next) -> None:
        hit("middleware")
        await next()
        hit("middleware after the write")

    def allow(ctx: Context, post: Post) -> bool:
        hit("policy")
        return True

    def team(ctx: Context) -> str:
        hit("scope")
        return "a"

    def hidden(ctx: Context) -> bool:
        hit("redaction")
        return False

    def judge(ctx: Context, values: dict[str, Any]) -> None:
        hit("rule")

    def digest(text: str) -> str:
        hit("hasher")
        return "#"

    async def book(ctx: Context, from_: Any, to: Any) -> None:
        await ctx.db(Entry).create(text="booked")
        hit("hook")

    steps.db.register(auth.enforce(allow), models=[Post])
    steps.db.register(db.force_filter("team", team), models=[Post])
    steps.response.register(response.redact_field("title", hidden), models=[Post])
    steps.validate.register(validate.cross_field(judge), models=[Post], operations=Operation.UPDATE)
    steps.service.register(service.hash_field("pin", digest), models=[Post], operations=Operation.UPDATE)
    machine = workflow.machine("status", workflow.allow_any(), workflow.on_transition("*", "*", book))
    steps.validate.register(machine, models=[Post])

    @server.action("PATCH", "/act/{id}")
    async def act(ctx: Context) -> None:
        async with ctx.transaction():
            await ctx.db(Entry).create(text="acted")
            hit("action")

    @server.action("PATCH", "/plain/{id}")
    def plain_act(ctx: Context) -> None:
        hit("plain action")

    return server, raised


PLACES = {
    "plain middleware": "PANIC",
    "middleware": "PANIC",
    "middleware after the write": "PANIC",
    "policy": "INTERNAL",
    "scope": "INTERNAL",
    "redaction": "INTERNAL",
    "rule": "INTERNAL",
    "hasher": "HASH_ERROR",
    "hook": "WORKFLOW_HOOK_ERROR",
    "action": "PANIC",
    "plain action": "PANIC",
}


def code_for(place: str, error: BaseException) -> str:
    """What could be meant for the task of the request is told apart only where that ends."""
    code = PLACES[place]
    return "PANIC" if code == "INTERNAL" and isinstance(error, MEANT_FOR_TASKS) else code


@pytest.mark.parametrize("place", PLACES)
async def test_the_request_fails_and_the_server_goes_on(
    database_url: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, raised = a_server(place)
    async with client(server, database=database_url) as http:
        route = {"action": "act", "plain action": "plain"}.get(place, "posts")
        for error in RAISED:
            raised.error = None
            post = await server.db(Post).create(title="one")
            entries = await server.db(Entry).count()
            raised.error = error
            caplog.clear()

            body = {"title": "two", "pin": "1234", "status": "done"}
            answer = await http.patch(f"/api/{route}/{post.id}", json=body)

            error_of(answer, 500, code_for(place, error))
            assert answer.headers["x-request-id"]
            assert "the cause" not in answer.text
            assert any(record.levelno >= logging.ERROR for record in caplog.records), error
            assert "1234" not in caplog.text
            is_done = place in ("middleware after the write", "redaction")  # only the answer failed
            assert (await server.db(Post).read(post.id)).title == ("two" if is_done else "one")
            assert await server.db(Entry).count() == entries + is_done
        assert (await http.get("/ready")).status_code == 200


@pytest.mark.parametrize("place", ["policy", "redaction"])
async def test_an_export_that_fails_at_its_first_row_is_answered(sqlite_url: str, place: str) -> None:
    server, raised = a_server(place)
    async with client(server, database=sqlite_url) as http:
        await server.db(Post).create(title="one")
        for raised.error in RAISED:
            error_of(await http.get("/api/posts/export"), 500, code_for(place, raised.error))


async def test_calls_in_process_get_the_same_answer(sqlite_url: str) -> None:
    server, raised = a_server("middleware")
    raised.error = SystemExit(3)
    async with client(server, database=sqlite_url):
        answer = await server.execute(Operation.LIST, Post)

        assert (answer.status, (answer.error or {}).get("code")) == (500, "PANIC")


async def test_a_request_that_is_cancelled_stays_cancelled(sqlite_url: str) -> None:
    entered = asyncio.Event()
    server = Server()

    @server.action("GET", "/wait")
    async def wait(ctx: Context) -> None:
        entered.set()
        await asyncio.Event().wait()

    async with client(server, database=sqlite_url) as http:
        request = asyncio.create_task(http.get("/api/wait"))
        await entered.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request


@pytest.mark.parametrize("kind", ["async", "plain", "async batch", "plain batch"])
async def test_a_computed_field_that_fails_is_left_out(sqlite_url: str, kind: str) -> None:
    server, raised = Server(), Raised()
    server.register(Post)

    def compute(posts: Any) -> Any:
        assert raised.error is not None
        raise raised.error

    async def compute_later(posts: Any) -> Any:
        compute(posts)

    fn = compute_later if kind.startswith("async") else compute
    server.computed(Post, "extra", batch=kind.endswith("batch"))(fn)
    async with client(server, database=sqlite_url) as http:
        await server.db(Post).create(title="one")
        for raised.error in RAISED:
            [post] = (await http.get("/api/posts")).json()["data"]
            assert post["title"] == "one"
            assert "extra" not in post


async def test_an_answer_that_fails_while_it_is_written_is_answered(sqlite_url: str) -> None:
    server, raised = Server(), Raised()

    @server.action("GET", "/numbers")
    async def numbers(ctx: Context) -> Any:
        return map(fail, [1])

    def fail(number: int) -> int:
        assert raised.error is not None
        raise raised.error

    async with client(server, database=sqlite_url) as http:
        for raised.error in (Own(), SystemExit(3), asyncio.CancelledError(), GeneratorExit()):
            error_of(await http.get("/api/numbers"), 500, "PANIC")


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(3)], ids=["exit", "generator exit"])
@pytest.mark.parametrize("chunks", [0, 1])
async def test_a_stream_of_starlette_that_exits_is_broken_off(
    sqlite_url: str, error: BaseException, chunks: int
) -> None:
    server = Server()

    @server.action("GET", "/stream")
    async def stream(ctx: Context) -> StreamingResponse:
        return StreamingResponse(some())

    async def some() -> AsyncIterator[bytes]:
        for _ in range(chunks):
            yield b"some"
        raise error

    async with client(server, database=sqlite_url) as http:
        words = f"{type(error).__name__}: 3 was raised"  # a server closes the connection
        with pytest.raises(RuntimeError, match=words):
            await http.get("/api/stream")
        assert (await http.get("/ready")).status_code == 200


async def test_a_stream_of_our_own_that_exits_is_answered_or_broken_off(sqlite_url: str) -> None:
    server, raised = Server(), Raised()

    @server.action("GET", "/stream/{chunks}")
    async def stream(ctx: Context) -> Response:
        return Response(200, stream=some(int(ctx.params["chunks"])))

    async def some(chunks: int) -> AsyncGenerator[bytes, None]:
        for _ in range(chunks):
            yield b"some"
        assert raised.error is not None
        raise raised.error

    async with client(server, database=sqlite_url) as http:
        for raised.error in RAISED[:6]:
            error_of(await http.get("/api/stream/0"), 500, "PANIC")
            with pytest.raises(Aborted):
                await http.get("/api/stream/1")


async def test_a_stream_of_starlette_that_exits_before_its_first_chunk_is_broken_off(sqlite_url: str) -> None:
    class Exits:
        def __aiter__(self) -> AsyncIterator[bytes]:
            raise SystemExit(3)

    server = Server()

    @server.action("GET", "/stream")
    async def stream(ctx: Context) -> StreamingResponse:
        return StreamingResponse(Exits())

    async with client(server, database=sqlite_url) as http:
        with pytest.raises(RuntimeError, match="SystemExit: 3 was raised"):
            await http.get("/api/stream")
        assert (await http.get("/ready")).status_code == 200


async def test_an_answer_of_starlette_can_be_sent_again(sqlite_url: str) -> None:
    class Pieces:
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"one "
            yield b"two"

    server, answer = Server(), StreamingResponse(Pieces())

    @server.action("GET", "/stream")
    async def stream(ctx: Context) -> StreamingResponse:
        return answer

    async with client(server, database=sqlite_url) as http:
        assert [(await http.get("/api/stream")).text for _ in range(3)] == ["one two"] * 3


@pytest.mark.parametrize("place", ["work after the answer", "layer"])
async def test_an_exit_inside_the_task_of_a_layer_ends_no_event_loop(sqlite_url: str, place: str) -> None:
    async def answer_and_exit(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({})(scope, receive, send)
        raise SystemExit(3)

    async def leave() -> None:
        raise SystemExit(3)

    async def pass_on(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    server = Server()
    server.use(lambda app: BaseHTTPMiddleware(app, pass_on))  # which calls the rest in a task of its own
    if place == "layer":
        server.use(lambda app: answer_and_exit)

    @server.action("GET", "/act")
    async def act(ctx: Context) -> JSONResponse:
        return JSONResponse({}, background=BackgroundTask(leave))

    async with client(server, database=sqlite_url) as http:
        with pytest.raises(RuntimeError, match="SystemExit: 3 was raised"):
            await http.get("/api/act")
