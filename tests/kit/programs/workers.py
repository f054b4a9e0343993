"""Workers in processes of their own, to be killed, stopped and crowded.

Imports once and forks a worker for each line of JSON it reads, so that a new worker costs no
interpreter. What the handlers do is appended to a ledger that outlives them all: one line per event,
`kind run-id attempt pid`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import asyncpg  # noqa: F401  # before the forks

from maniflex import Run, Server
from maniflex.background.runs.worker import RunWorker
from maniflex.errors import Fatal

URL, LEDGER = sys.argv[1:3]
STEPS = ("one", "two", "three", "four", "five")


def note(kind: str, run: Run | Any) -> None:
    """One write of less than a page to a file opened for appending is whole or absent."""
    line = f"{kind} {run.id} {run.attempt} {os.getpid()}\n"
    os.write(ledger, line.encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def tick(run: Run) -> int:
    note("start", run)
    await asyncio.sleep(random.uniform(0, 2 * run.payload["seconds"]))
    note("end", run)
    return os.getpid()


async def pause(run: Run) -> int:
    note("start", run)
    await asyncio.sleep(run.payload["seconds"])
    note("end", run)
    return int(await run.step("mark", os.getpid))


async def block(run: Run) -> int:
    note("start", run)
    time.sleep(run.payload["seconds"])  # noqa: ASYNC251  # to block the loop is the point
    note("end", run)
    return os.getpid()


async def saga(run: Run) -> str:
    for name in STEPS:
        effect = f"+{name}"
        await run.step(name, lambda effect=effect: note(effect, run), compensate=undo(run, name))
        if run.payload.get("die_after") == name and run.attempt == 1:
            die()
    if run.payload.get("fails"):
        raise Fatal("all of it is to be taken back")
    return "done"


async def steps(run: Run) -> None:
    """Many small effects, each of which should happen once."""
    for number in range(run.payload["steps"]):
        await run.step(f"{number}", effect, run, number)


async def effect(run: Run, number: int) -> None:
    note(f"step-{number}", run)
    await asyncio.sleep(0)


def undo(run: Run, name: str) -> Any:
    def compensate(_: Any) -> None:
        if run.payload.get("die_before_undoing") == name and run.attempt == 1:
            die()
        note(f"-{name}", run)

    return compensate


def a_server(options: dict[str, Any]) -> Server:
    server = Server(
        URL,
        auto_migrate=False,
        pool_size=3,
        log_level="ERROR",
        work_lease=timedelta(seconds=options.get("lease", 3)),
        work_poll_interval=timedelta(seconds=options.get("poll", 0.2)),
        shutdown_timeout=timedelta(seconds=20),
    )
    for handler in (tick, pause, block, saga, steps):
        server.work.handler(f"default.{handler.__name__}", max_attempts=50)(handler)
    return server


async def work(options: dict[str, Any]) -> None:
    server = a_server(options)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with server.lifespan(role="client"):
        worker = server.work.worker(concurrency=options.get("concurrency", 10))
        if options.get("only_claim"):
            await race(worker)
            return
        await worker.start()
        await stop.wait()
        await worker.stop()


async def race(worker: RunWorker) -> None:
    """Claim as greedily as several claimers can until there is nothing left; start nothing."""
    empty = 0
    while empty < 5:
        claimed = await worker.claim(random.choice((1, 3, 10, 40)))
        for one in claimed:
            note("claim", one)
        empty = 0 if claimed else empty + 1
        if not claimed:
            await asyncio.sleep(0.02)  # the others may still give something back


def child(options: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    random.seed()
    code = 1
    try:
        asyncio.run(work(options))
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    ledger = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are not waited for
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            child(json.loads(line))
        print(pid, flush=True)
