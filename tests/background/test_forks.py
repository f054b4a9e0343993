"""A handler that forks, though it should not: its child is no second worker and writes nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maniflex import Context, Model, Run, Server
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Message
from maniflex.testing import client
from tests.kit.outbox import a_bench
from tests.kit.runs import status, working


class Mark(Model):
    text: str


def fork_and(end: Callable[[], object]) -> int:
    """The pid of a child that does nothing but `end`; in the child, what that gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads, which the child does not need
        pid = os.fork()
    if not pid:
        end()
    return pid


def exit_with_seven() -> None:
    sys.exit(7)


def fail() -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # the child is about to say why it ends
    raise ValueError("in the child")


ENDS = [(exit_with_seven, 7), (fail, 1), (lambda: None, 0)]


def code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(("end", "code"), ENDS, ids=["exits", "raises", "returns"])
@pytest.mark.parametrize("way", ["async", "plain", "step", "plain step"])
async def test_a_child_of_a_handler_ends_with_it(
    server: Server, way: str, end: Callable[[], object], code: int
) -> None:
    pids: list[int] = []

    async def forking() -> None:
        pids.append(fork_and(end))

    def forking_plainly() -> None:
        pids.append(fork_and(end))

    @server.work.handler("default.plain")
    def plain(run: Run) -> None:
        forking_plainly()

    @server.work.handler("default.async")
    async def handle(run: Run) -> None:
        if way == "async":
            await forking()
        else:
            step: Any = forking if way == "step" else forking_plainly
            await run.step("fork", step)

    async with working(server) as work:
        made = await work.submit("default.plain" if way == "plain" else "default.async")
        await work.worker().drain()
        assert await status(work, made.id) == "succeeded"
    [pid] = pids
    assert code_of(pid) == code


async def test_a_child_of_an_outbox_handler_ends_with_it(database_url: str, tmp_path: Path) -> None:
    pids: list[int] = []

    def declare(outbox: Outbox) -> None:
        @outbox.handler("note")
        async def handle(message: Message) -> None:
            pids.append(fork_and(exit_with_seven))

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(("note", 1))
        assert await bench.drain() == 1
    [pid] = pids
    assert code_of(pid) == 7


@pytest.mark.parametrize(("end", "code"), ENDS, ids=["exits", "raises", "returns"])
async def test_a_child_of_a_plain_action_ends_with_it(
    sqlite_url: str, end: Callable[[], object], code: int
) -> None:
    pids: list[int] = []
    server = Server()

    @server.action("POST", "/fork")
    def fork(ctx: Context) -> None:
        pids.append(fork_and(end))

    async with client(server, database=sqlite_url) as http:
        assert (await http.post("/api/fork")).is_success
        [pid] = pids
        assert code_of(pid) == code


async def test_a_child_that_goes_on_writes_nothing_into_the_transaction_of_its_parent(
    server: Server,
) -> None:
    pids: list[int] = []
    server.register(Mark)

    @server.work.handler("default.child")
    async def handle(run: Run) -> None:
        async with server.transaction():
            await server.db(Mark).create(text="before")
            pids.append(fork_and(lambda: None))
            await server.db(Mark).create(text="after")

    async with working(server) as work:
        made = await work.submit("default.child")
        await work.worker().drain()
        assert await status(work, made.id) == "succeeded"
        assert [mark.text for mark in await server.db(Mark).list()] == ["before", "after"]
    [pid] = pids
    assert code_of(pid) in (0, 1)  # where the connection refused it, or where it came back to the loop


async def test_a_child_serves_and_forks_like_any_process(sqlite_url: str) -> None:
    """What its parent did is forgotten as soon as it has a server of its own."""
    server = Server()
    codes: list[int] = []

    @server.action("POST", "/fork")
    async def fork(ctx: Context) -> None:
        context = multiprocessing.get_context("fork")
        child = context.Process(target=serve_and_fail, args=(f"{sqlite_url}.child",))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are threads
            child.start()
        child.join(30)
        codes.append(child.exitcode or 0)

    async with client(server, database=sqlite_url) as http:
        assert (await http.post("/api/fork")).is_success
    assert codes == [42]


def serve_and_fail(url: str) -> None:
    server = Server()

    @server.action("POST", "/fail")
    async def fail(ctx: Context) -> None:
        sys.exit(7)  # a failure of its request

    async def serve() -> int:
        async with client(server, database=url) as http:
            return (await http.post("/api/fail")).status_code

    os._exit(42 if asyncio.run(serve()) == 500 else 1)
