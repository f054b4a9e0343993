"""A client that leaves before its answer: a read ends with it, a write does not."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from maniflex import Context, Next, Server
from maniflex.pipeline.observation import Observation
from tests.kit.internals import clients_that_left
from tests.kit.notes import Note
from tests.kit.sockets import PROTOCOLS, a_request, connected, listening
from tests.kit.waiting import eventually

PATIENCE = 30.0
SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000000) "
    "SELECT count(*) AS c FROM n",
    "postgres": "SELECT 1 AS c FROM pg_sleep(3600)",
}


class Signals:
    """What happens inside, for the test to wait for."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended = asyncio.Event()
        self.statuses: list[int] = []


def a_server(database_url: str, signals: Signals, **settings: Any) -> Server:
    server = Server(database_url, **settings)
    server.register(Note)
    statement = SLOW["sqlite" if database_url.startswith("sqlite") else "postgres"]

    @server.action("GET", "/slow")
    async def slow(ctx: Context) -> Any:
        signals.reached.set()
        try:
            return await ctx.raw_query(statement)
        finally:
            signals.ended.set()

    @server.action("POST", "/slow")
    async def slow_write(ctx: Context) -> None:
        async with ctx.transaction():
            await ctx.db(Note).create(text="written")
            signals.reached.set()
            await signals.go_on.wait()
        signals.ended.set()

    @server.action("GET", "/body")
    async def body(ctx: Context) -> Any:
        request = ctx.request
        signals.reached.set()
        await signals.go_on.wait()
        return [len(await request.body())]

    @server.pipeline.response.middleware()
    async def note(ctx: Context, next: Next) -> None:
        await next()
        if ctx.response is not None:
            signals.statuses.append(ctx.response.status)

    return server


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_read_ends_when_its_client_leaves(
    database_url: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    signals = Signals()
    caplog.set_level(logging.INFO, "maniflex")
    # One connection, one thread: the next request is served only if the read really ended.
    server = a_server(database_url, signals, pool_size=1, sqlite_readers=1, statement_timeout=3600)
    async with listening(server, PROTOCOLS[protocol]) as port, asyncio.timeout(PATIENCE):
        async with connected(port) as client:
            await client.send(a_request("GET", "/api/slow"))
            await signals.reached.wait()
            client.leave()
        await signals.ended.wait()
        async with connected(port) as client:
            await client.send(a_request("GET", "/api/notes"))
            assert (await client.answer())[0] == 200
    assert signals.statuses == [499, 200]
    assert [record.levelname for record in caplog.records if "499" in record.getMessage()] == ["INFO"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_reads_of_clients_that_left_do_not_keep_their_place_in_the_line(database_url: str) -> None:
    signals = Signals()
    server = a_server(database_url, signals, pool_size=2, sqlite_readers=2, statement_timeout=3600)
    async with listening(server) as port, asyncio.timeout(PATIENCE):
        for _ in range(3):
            signals.reached.clear()
            clients = [connected(port) for _ in range(10)]
            for client in clients:
                await (await client.__aenter__()).send(a_request("GET", "/api/slow"))
            await signals.reached.wait()
            for client in clients:
                await client.__aexit__(None, None, None)
        async with connected(port) as last:
            await last.send(a_request("GET", "/api/notes"))
            assert (await last.answer())[0] == 200


async def test_a_write_is_finished_although_its_client_left(database_url: str) -> None:
    signals = Signals()
    server = a_server(database_url, signals)
    async with listening(server) as port, asyncio.timeout(PATIENCE):
        async with connected(port) as client:
            await client.send(a_request("POST", "/api/slow"))
            await signals.reached.wait()
            client.leave()
        async with connected(port) as other:  # answered after the server has seen the first one leave
            await other.send(a_request("GET", "/live"))
            await other.answer()
            await asyncio.wait([asyncio.create_task(signals.ended.wait())], timeout=0.3)
            assert not signals.ended.is_set()
            signals.go_on.set()
            await signals.ended.wait()
            await other.send(a_request("GET", "/api/notes"))
            assert b"written" in (await other.answer())[2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_slow_read_may_still_ask_for_its_body(sqlite_url: str, protocol: str) -> None:
    signals = Signals()
    server = a_server(sqlite_url, signals)
    async with listening(server, PROTOCOLS[protocol]) as port, asyncio.timeout(PATIENCE):
        for sent in (b"", b"x" * 1000):
            signals.go_on.clear()
            async with connected(port) as client:
                await client.send(a_request("GET", "/api/body", sent))
                await asyncio.wait([asyncio.create_task(signals.go_on.wait())], timeout=0.3)
                signals.go_on.set()
                status, _, body = await client.answer()
                assert (status, body) == (200, b'{"data":[%d]}' % len(sent))


async def test_a_request_in_process_has_no_client_that_could_leave(sqlite_url: str) -> None:
    signals = Signals()
    server = a_server(sqlite_url, signals)

    @server.pipeline.service.middleware(operations=["list"])
    async def linger(ctx: Context, next: Next) -> None:
        await asyncio.wait([asyncio.create_task(signals.go_on.wait())], timeout=0.3)
        await next()

    async with server.lifespan():
        assert (await server.execute("list", Note)).status == 200


@pytest.mark.parametrize("take", [asyncio.CancelledError, None], ids=["passed on", "swallowed"])
async def test_a_cancellation_by_somebody_else_stays_theirs(
    sqlite_url: str, take: type[BaseException] | None
) -> None:
    signals = Signals()
    server = a_server(sqlite_url, signals, query_timeout=0.2)

    @server.pipeline.service.middleware(operations=["list"])
    async def linger(ctx: Context, next: Next) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if take is not None:
                raise
        await next()

    async with server.lifespan():
        asking = asyncio.create_task(server.execute("list", Note))
        status = (await asking).status
        assert (status, asking.cancelling()) == ((504, 0) if take else (200, 0))
        cancelled = asyncio.create_task(server.execute("list", Note))
        await asyncio.wait([cancelled], timeout=0.05)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert cancelled.cancelled() == (take is not None)


async def test_a_request_has_half_a_minute_unless_told_otherwise() -> None:
    assert Server().config.query_timeout.total_seconds() == 30


async def test_a_read_that_gets_no_turn_is_503_and_says_when_to_come_again(database_url: str) -> None:
    signals = Signals()
    server = a_server(database_url, signals, pool_size=1, sqlite_readers=1, pool_timeout=0.2)
    async with listening(server) as port, connected(port) as busy, asyncio.timeout(PATIENCE):
        await busy.send(a_request("GET", "/api/slow"))
        await signals.reached.wait()
        async with connected(port) as late:
            for _ in range(2):
                await late.send(a_request("GET", "/api/notes"))
                status, headers, body = await late.answer()
                assert (status, headers["retry-after"]) == (503, "1")
                assert b'"code":"UNAVAILABLE"' in body
                assert b'"retryable":true' in body
        busy.leave()
        async with connected(port) as again:
            await signals.ended.wait()
            await again.send(a_request("GET", "/api/notes"))
            assert (await again.answer())[0] == 200


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("path", "body", "fate"),
    [
        ("/api/slow", b"", "it was done (204)"),
        ("/api/notes", b'{"text": "x"}', "it was done (201)"),
        ("/api/notes", b'{"text": "refused"}', "it was refused (409)"),
    ],
)
async def test_a_writer_that_left_is_observed_as_one_and_the_log_says_what_became_of_its_write(
    sqlite_url: str, protocol: str, path: str, body: bytes, fate: str, caplog: pytest.LogCaptureFixture
) -> None:
    signals, seen = Signals(), list[int]()
    caplog.set_level(logging.INFO, "maniflex")
    server = a_server(sqlite_url, signals)

    @server.pipeline.service.middleware(models=[Note], operations=["create"])
    async def wait(ctx: Context, next: Next) -> None:
        signals.reached.set()
        await signals.go_on.wait()
        if ctx.field("text") == "refused":
            ctx.abort(409, "CONFLICT", "no")
        await next()

    @server.observe
    def observe(one: Observation) -> None:
        seen.append(one.status)
        signals.ended.set()

    async with listening(server, PROTOCOLS[protocol]) as port, asyncio.timeout(PATIENCE):
        async with connected(port) as client:
            await client.send(a_request("POST", path, body, "Content-Type: application/json"))
            await signals.reached.wait()
            client.leave()
        await eventually(lambda: clients_that_left(server) == 1, "the server notices it")
        signals.ended.clear()
        signals.go_on.set()
        await signals.ended.wait()
        await eventually(lambda: seen == [499], "an observation")
        assert await server.db(Note).count() == ("done" in fate)
    lines = [record.getMessage() for record in caplog.records if "CLIENT_GONE" in record.getMessage()]
    assert lines == [f"499 CLIENT_GONE: the client went away before its POST was answered; {fate}"]
