"""A handler that forks: the child ends where the handler does, and is no second worker."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maniflex import Context, Run, Server
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.message import Message
from maniflex.testing import client
from tests.kit.outbox import a_bench
from tests.kit.runs import status, working


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
