"""Measure what entries of the catalogue cost: CPU of the server process per request, against the bare one.

    python benchmarks/catalogue.py [--postgres postgresql://…] [--seconds 1] [--rounds 9] [--only fresh]

All servers of a database run at once on one core, and rounds go from one to the next, so that a machine
whose speed changes changes it for all of them; medians count. Linux only: CPU is read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import uvloop

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from benchmarks.run import CPUS, TEXT, databases, seed, serving  # noqa: E402

NEW = f'{{"title": "New", "body": "{TEXT}", "status": "draft", "views": 1, "user_id": "user-1"}}'
KEPT_KEYS = 5000  # settled by one process before they are replayed by another
Requests = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: requests to the server with these entries, against another line."""

    name: str
    entries: str  # a name of `catalogue_app.ENTRIES`; a number behind it makes a second process
    requests: Callable[[Sequence[str]], Requests]
    against: str = ""
    most: float = 0.0  # the ratio it shall not pass
    status: bytes = b"2"


def request(method: str, path: str, body: str = "", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: bench", "content-type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", body]).encode()


def reads(ids: Sequence[str], **headers: str) -> Requests:
    texts = [request("GET", f"/api/posts/{record_id}", **headers) for record_id in ids]
    return lambda: random.choice(texts)


def reads_with_token(ids: Sequence[str]) -> Requests:
    import jwt
    from catalogue_app import SECRET, TENANT

    claims = {"sub": "ada", "roles": ["editor"], "org": TENANT, "exp": int(time.time()) + 86400}
    return reads(ids, authorization=f"Bearer {jwt.encode(claims, SECRET, 'HS256')}")


def creates(ids: Sequence[str]) -> Requests:
    text = request("POST", "/api/posts", NEW)
    return lambda: text


def fresh_keys(ids: Sequence[str]) -> Requests:
    numbers, run = itertools.count(), random.randrange(10**12)
    return lambda: request("POST", "/api/posts", NEW, idempotency_key=f"{run}-{next(numbers)}")


def one_key(ids: Sequence[str]) -> Requests:
    text = request("POST", "/api/posts", NEW, idempotency_key="one")
    return lambda: text


def kept_keys(ids: Sequence[str]) -> Requests:
    # In turn: by the time a key comes again, the process no longer remembers its answer.
    texts = [request("POST", "/api/posts", NEW, idempotency_key=f"kept-{n}") for n in range(KEPT_KEYS)]
    turns = itertools.cycle(texts)
    return lambda: next(turns)


ROWS = (
    Row("read", "bare", reads),
    Row("read, entries registered elsewhere", "elsewhere", reads, "read", 1.02),
    Row("read, `jwt` + `require_role` + `tenancy`", "access", reads_with_token, "read", 1.3),
    Row("read, `rate_limit`", "limits", reads, "read"),
    Row("429 of a flooded `rate_limit`", "flood", reads, "read", status=b"4"),
    Row("read, `redact_field` that hides nothing", "redaction", reads, "read", 1.05),
    Row("create", "bare 2", creates),  # on PostgreSQL a process that writes too pays less for a read
    Row("create, `keys`, no key sent", "keys", creates, "create"),
    Row("create, fresh key", "keys", fresh_keys, "create", 2.5),
    Row("replay by the same process", "keys", one_key, "read", 1.2),
    Row("replay by another process", "keys 2", kept_keys, "read", 1.2),
)


# -- the load


class Connection(asyncio.Protocol):
    """One client: the next request goes out when the answer to the one before is there."""

    def __init__(self, requests: Requests, status: bytes, until: float) -> None:
        self.answered = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests, self._status, self._until = requests, status, until
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._requests())

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, blank, body = self._answer.partition(b"\r\n\r\n")
        if not blank:
            return
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if len(body) < int(length or 0):
            return
        if not head[9:].startswith(self._status):
            self._end(ValueError(self._answer.decode()))
            return
        self.answered, self._answer = self.answered + 1, b""
        if time.monotonic() < self._until:
            self._transport.write(self._requests())
        else:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionError("the server closed the connection"))

    def _end(self, error: Exception | None = None) -> None:
        if not self.over.done():
            if error is None:
                self.over.set_result(None)
            else:
                self.over.set_exception(error)
        self._transport.close()


async def send(port: int, requests: Requests, status: bytes, seconds: float, connections: int) -> int:
    """How many requests were answered in that time."""
    loop, until = asyncio.get_running_loop(), time.monotonic() + seconds
    clients: list[Connection] = []
    for _ in range(connections):
        make = partial(Connection, requests, status, until)
        clients.append((await loop.create_connection(make, "127.0.0.1", port))[1])
    await asyncio.gather(*(client.over for client in clients))
    return sum(client.answered for client in clients)


async def settle_kept_keys(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(KEPT_KEYS):
        writer.write(request("POST", "/api/posts", NEW, idempotency_key=f"kept-{number}"))
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
    writer.close()


def cpu_microseconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1000


# -- the figures


def measure(
    rows: Sequence[Row], url: str, environment: dict[str, str], options: argparse.Namespace
) -> dict[str, list[float]]:
    """CPU microseconds per request of every row, one figure for each round."""
    ids = asyncio.run(seed(url, options.rows, owner="user-1"))
    costs: dict[str, list[float]] = {row.name: [] for row in rows}
    with ExitStack() as stack:
        servers = {}
        for entries in dict.fromkeys(["keys", *(row.entries for row in rows)]):
            own = {**environment, "BENCH_ENTRIES": entries.split()[0]}
            servers[entries] = stack.enter_context(serving("catalogue_app:server", own, "/ready"))
        asyncio.run(settle_kept_keys(servers["keys"][1]))
        requests = {row.name: row.requests(ids) for row in rows}
        for number in range(options.rounds + 1):
            for row in rows:
                pid, port = servers[row.entries]
                before = cpu_microseconds(pid)
                # The first requests fill caches and empty buckets.
                seconds, status = (options.seconds, row.status) if number else (0.5, b"")
                count = uvloop.run(send(port, requests[row.name], status, seconds, options.connections))
                costs[row.name].append((cpu_microseconds(pid) - before) / count)
    return {name: figures[1:] for name, figures in costs.items()}


def report(label: str, rows: Sequence[Row], costs: dict[str, list[float]]) -> None:
    print(f"\n| {label} | CPU µs | against | ratio | at most |\n|---|--:|---|--:|--:|")
    for row in rows:
        figures = costs[row.name]
        line = f"| {row.name} | {statistics.median(figures):.0f} |"
        if row.against:
            ratios = [own / base for own, base in zip(figures, costs[row.against], strict=True)]
            line += f" {row.against} | {statistics.median(ratios):.2f} | {row.most or ''} |"
        else:
            line += " | | |"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="CPU microseconds per request with entries of the catalogue."
    )
    parser.add_argument("--postgres", help="a database to measure too; makes and drops one schema in it")
    parser.add_argument("--seconds", type=float, default=1, help="of every row in a round (1)")
    parser.add_argument("--rounds", type=int, default=9, help="their median counts (9)")
    parser.add_argument("--rows", type=int, default=10_000, help="in the table (10000)")
    parser.add_argument("--connections", type=int, default=32, help="clients at once (32)")
    parser.add_argument("--only", help="rows whose name has this text, and those they are compared with")
    options = parser.parse_args()
    rows = [row for row in ROWS if options.only is None or options.only in row.name]
    bases = {row.against for row in rows}
    rows = [row for row in ROWS if row in rows or row.name in bases]
    if len(CPUS) > 1:
        os.sched_setaffinity(0, CPUS[1:])
    with databases(options.postgres) as measured:
        for label, (url, environment) in measured.items():
            report(label, rows, measure(rows, url, environment, options))


if __name__ == "__main__":
    main()
