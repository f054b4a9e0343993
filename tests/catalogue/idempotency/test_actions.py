"""I12, I15: keys in the list of an action, and answers that cannot be given twice. C50."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from maniflex import AuthInfo, Context, Response, Server, with_transaction
from maniflex.middleware import auth, db, idempotency, stores
from tests.catalogue.idempotency.shop import Order, asking, identify, is_replay, keyed, post
from tests.kit.http import data_of, error_of, together, total


@dataclass
class Payment:
    amount: int


def counter(
    handler: Any = None, *, method: str = "POST", before: Any = (), **options: Any
) -> tuple[Server, list[Any]]:
    """A server with an action under keys, and what its handler has seen."""
    server, seen = Server(path_prefix="", query_timeout=20), list[Any]()
    server.register(Order)
    server.pipeline.auth.register(identify)
    request = options.pop("request", None)

    @server.action(
        method, "/orders/{id}/pay", middleware=[*before, idempotency.keys(**options)], request=request
    )
    async def pay(ctx: Context) -> Any:
        seen.append(ctx.body)
        await ctx.db(Order).create(title=ctx.url_param("id"))
        return {"number": len(seen)} if handler is None else await handler(ctx)

    return server, seen


async def test_an_action_with_a_request_type_runs_once(database_url: str) -> None:
    """C50, P233: other body 422; the handler still has its body."""
    server, seen = counter(request=Payment)
    async with asking(server, database_url) as http:
        first, second = [await post(http, "/orders/1/pay", amount=3) for _ in range(2)]
        assert data_of(first) == {"number": 1}
        assert (second.content, is_replay(second)) == (first.content, True)
        error_of(await post(http, "/orders/1/pay", amount=4), 422, "IDEMPOTENCY_KEY_REUSED")
        error_of(await post(http, "/orders/2/pay", amount=3), 422, "IDEMPOTENCY_KEY_REUSED")
        error_of(await post(http, "/orders/1/pay", key="b", amount="x"), 422, "VALIDATION_FAILED")
        assert seen == [Payment(3)]
        assert await total(http, "/orders") == 1


async def test_the_handler_reads_its_body_itself(database_url: str) -> None:
    bodies: list[Any] = []

    async def read(ctx: Context) -> None:
        is_json = ctx.header("content-type") == "application/json"
        bodies.append(await ctx.bind_json() if is_json else await ctx.request.body())

    server, _ = counter(read)
    async with asking(server, database_url) as http:
        assert (await post(http, "/orders/1/pay", amount=3)).status_code == 204
        for text in (b"plain text", b"plain text", b"other"):
            headers = keyed("text") | {"content-type": "text/plain"}
            await http.post("/orders/1/pay", content=text, headers=headers)
        assert bodies == [{"amount": 3}, b"plain text"]


def form(boundary: str, *parts: bytes) -> bytes:
    mark = b"--" + boundary.encode()
    return b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"


def a_part(name: str, content: bytes, filename: str = "a.txt") -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"; filename="{filename}"'
    return disposition.encode() + b"\r\n\r\n" + content


async def test_a_form_is_the_same_with_another_boundary(database_url: str) -> None:
    """C52, I5: parts count, not what stands between them; the handler still reads the form."""
    contents: list[bytes] = []

    async def read(ctx: Context) -> str:
        async with ctx.request.form() as fields:
            file: Any = fields["file"]
            contents.append(await file.read())
        return "kept"

    server, _ = counter(read)
    one, other = a_part("file", b"\x00 --binary\r\n--"), a_part("note", b"x")

    async def send(boundary: str, *parts: bytes, template: str = "multipart/form-data; boundary={}") -> Any:
        headers = keyed() | {"content-type": template.format(boundary)}
        return await http.post("/orders/1/pay", content=form(boundary, *parts), headers=headers)

    async with asking(server, database_url) as http:
        first = await send("first-boundary", one, other)
        assert (data_of(first), is_replay(first)) == ("kept", False)
        for again in (
            await send("another", one, other),
            await send(
                "quoted one", one, other, template='Multipart/Form-Data; charset=utf-8; boundary="{}"'
            ),
        ):
            assert (again.content, is_replay(again)) == (first.content, True)
        renamed = a_part("file", b"\x00 --binary\r\n--", filename="b.txt")
        for parts in ([one], [other, one], [a_part("file", b"y"), other], [renamed, other], [one + other]):
            error_of(await send("first-boundary", *parts), 422, "IDEMPOTENCY_KEY_REUSED")
        assert contents == [b"\x00 --binary\r\n--"]


async def test_a_body_of_another_kind_is_limited_too(database_url: str) -> None:
    server, seen = counter()
    async with asking(server, database_url) as http:
        most = server.config.max_body_size
        headers = keyed() | {"content-type": "text/plain"}
        answer = await http.post("/orders/1/pay", content=b"x" * (most + 1), headers=headers)
        assert (answer.status_code, seen) == (413, [])


async def test_of_twenty_twins_one_handler_runs(database_url: str) -> None:
    """C50."""
    server, seen = counter()
    async with asking(server, database_url) as http:
        answers = await together(20, lambda _: post(http, "/orders/1/pay"))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert len(seen) == await total(http, "/orders") == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_every_unsafe_method_has_keys(database_url: str, method: str) -> None:
    server, seen = counter(method=method)
    async with asking(server, database_url) as http:
        answers = [await http.request(method, "/orders/1/pay", headers=keyed()) for _ in range(2)]
        assert [is_replay(answer) for answer in answers] == [False, True]
        assert len(seen) == 1


async def test_the_handler_is_in_one_transaction(database_url: str) -> None:
    """I15: an error takes its rows along and frees the key."""
    failing = [True]

    async def fail(ctx: Context) -> None:
        assert ctx.tx is not None
        if failing:
            failing.pop()
            raise RuntimeError("no")

    server, seen = counter(fail)
    async with asking(server, database_url) as http:
        error_of(await post(http, "/orders/1/pay"), 500, "PANIC")
        assert await total(http, "/orders") == 0
        assert (await post(http, "/orders/1/pay")).status_code == 204
        assert len(seen) == 2
        assert await total(http, "/orders") == 1


async def test_without_transaction_the_handler_commits_by_itself(database_url: str) -> None:
    """I15: claimed before, settled after; twins are kept apart all the same."""
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def call_elsewhere(ctx: Context) -> Any:
        assert ctx.tx is None
        reached.set()
        await go_on.wait()
        return "paid"

    server, seen = counter(call_elsewhere, transaction=False)
    async with asking(server, database_url) as http:
        first = asyncio.create_task(post(http, "/orders/1/pay"))
        await reached.wait()
        assert await total(http, "/orders") == 1
        twin = asyncio.create_task(post(http, "/orders/1/pay"))
        go_on.set()
        assert data_of(await first) == data_of(await twin) == "paid"
        assert len(seen) == 1


async def test_a_transaction_after_it_in_the_list_is_joined(database_url: str) -> None:
    server, runs = Server(path_prefix=""), list[str]()
    server.register(Order)

    @server.action("POST", "/pay", middleware=[idempotency.keys(), with_transaction("serializable")])
    async def pay(ctx: Context) -> str:
        runs.append("run")
        await ctx.db(Order).create(title="x")
        return "paid"

    async with asking(server, database_url) as http:
        assert [is_replay(await post(http, "/pay")) for _ in range(2)] == [False, True]
        assert len(runs) == await total(http, "/orders") == 1


async def stream_parts() -> AsyncGenerator[bytes, None]:
    yield b"one"
    yield b"two"


async def streams(ctx: Context) -> Response:
    return Response(200, stream=stream_parts(), content_type="text/plain")


async def foreign(ctx: Context) -> Any:
    return PlainTextResponse("onetwo")


async def large(ctx: Context) -> str:
    return "x" * 5000


async def sets_cookie(ctx: Context) -> str:
    ctx.set_cookie("session", "secret")
    return "in"


async def sets_cookie_header(ctx: Context) -> Response:
    return Response(200, "in", headers={"Set-Cookie": "session=secret"})


async def secret(ctx: Context) -> str:
    ctx.keep_answer_secret()
    return "a new password"


@pytest.mark.parametrize(
    "handler", [streams, foreign, large, sets_cookie, sets_cookie_header, secret, "tokens"]
)
async def test_an_answer_that_cannot_be_kept_is_not_given_twice(database_url: str, handler: Any) -> None:
    """C50, I12: the repetition is 409 and does not run; nothing of the answer is stored."""
    tokens = auth.Tokens("a secret of at least thirty-two bytes", issuer="us")

    async def issue(ctx: Context) -> str:
        return (await tokens.issue(AuthInfo(user_id="ada"))).access_token

    server, seen = counter(issue if handler == "tokens" else handler, max_answer=4000)
    tokens.mount(server)
    async with asking(server, database_url) as http:
        assert (await post(http, "/orders/1/pay")).status_code == 200
        error_of(await post(http, "/orders/1/pay"), 409, "IDEMPOTENCY_NOT_REPLAYABLE")
        assert len(seen) == await total(http, "/orders") == 1
        [row] = await server.raw_query("SELECT answer, settled FROM idempotency_key")
        assert (row["answer"], bool(row["settled"])) == (None, True)


async def test_a_limit_before_it_counts_replays_too(database_url: str) -> None:
    """I14 in an action: limits stand where the list has them."""
    server, seen = counter(before=[db.rate_limit(2, 60)])
    async with asking(server, database_url) as http:
        statuses = [(await post(http, "/orders/1/pay")).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert len(seen) == 1


async def test_a_store_of_another_kind_settles_after_the_commit(database_url: str) -> None:
    """I17: the handler is in a transaction, and the key is settled when that is over."""
    store = stores.MemoryIdempotency()
    server, seen = counter(store=store)
    async with asking(server, database_url) as http:
        first, second = [await post(http, "/orders/1/pay") for _ in range(2)]
        assert first.content == second.content
        assert (is_replay(second), len(seen)) == (True, 1)


async def test_a_plain_handler_in_a_thread_has_keys_too(database_url: str) -> None:
    server, runs = Server(path_prefix=""), list[str]()
    server.register(Order)

    @server.action("POST", "/pay", middleware=[idempotency.keys()])
    def pay(ctx: Context) -> str:
        runs.append("run")
        return "paid"

    async with asking(server, database_url) as http:
        assert [is_replay(await post(http, "/pay")) for _ in range(2)] == [False, True]
        assert runs == ["run"]
