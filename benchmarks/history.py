"""Measure what history and events of a model cost its writes: CPU of the server, against a model without.

    python benchmarks/history.py [--postgres postgresql://…] [--rounds 15] [--calls 1000] [--only delete]

One server has models of the same fields with and without history. Rounds go from one to the other, so that a
machine whose speed changes changes it for both; medians count. CPU of PostgreSQL itself is not part of it.
Linux only: CPU is read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from benchmarks.catalogue import NEW, cpu_microseconds, request  # noqa: E402
from benchmarks.run import CPUS, databases, serving  # noqa: E402


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a write of a table with history or events against one without."""

    name: str
    table: str
    against: str
    most: float = 2.0


ROWS = (
    Row("create", "versioned", "plain"),
    Row("update", "versioned", "plain"),
    Row("delete", "versioned", "plain"),
    Row("soft delete", "marked_versioned", "marked"),
    Row("create", "emitting", "plain", 1.5),
    Row("update", "emitting", "plain", 3.0),
    Row("delete", "emitting", "plain", 3.0),
    Row("create", "versioned_emitting", "plain", 2.2),
)


async def send(port: int, requests: Sequence[bytes], connections: int) -> list[bytes]:
    """The bodies of the answers, in no order."""
    waiting, bodies = iter(requests), list[bytes]()

    async def one_connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for text in waiting:
            writer.write(text)
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            bodies.append(await reader.readexactly(int(length or 0)))
            if not head[9:].startswith(b"2"):
                raise ValueError((head + bodies[-1]).decode())
        writer.close()

    await asyncio.gather(*(one_connection() for _ in range(connections)))
    return bodies


async def add(port: int, table: str, count: int, connections: int) -> list[str]:
    """New records; their ids."""
    bodies = await send(port, [request("POST", f"/api/{table}", NEW)] * count, connections)
    return [body.partition(b'"id":"')[2][:36].decode() for body in bodies]


def requests_of(row: Row, table: str, ids: Sequence[str], numbers: Iterator[int]) -> list[bytes]:
    paths = [f"/api/{table}/{record_id}" for record_id in ids]
    if row.name == "create":
        return [request("POST", f"/api/{table}", NEW)] * len(ids)
    if row.name == "update":
        return [request("PATCH", path, f'{{"views": {next(numbers)}}}') for path in paths]
    return [request("DELETE", path) for path in paths]


def measure(
    rows: Sequence[Row], environment: dict[str, str], options: argparse.Namespace
) -> dict[str, list[float]]:
    """CPU microseconds per request, of each row and each of its tables, one figure for each round."""
    costs: dict[str, list[float]] = {}
    numbers = itertools.count(2)
    with serving("history_app:server", environment, "/ready") as (pid, port):
        for number in range(options.rounds + 1):
            for row in rows:
                for table in (row.against, row.table):
                    ids = asyncio.run(add(port, table, options.calls, options.connections))
                    requests = requests_of(row, table, ids, numbers)
                    before = cpu_microseconds(pid)
                    asyncio.run(send(port, requests, options.connections))
                    cost = (cpu_microseconds(pid) - before) / len(requests)
                    if number:  # the first round fills caches
                        costs.setdefault(f"{row.name} {row.table}, {table}", []).append(cost)
    return costs


def report(label: str, rows: Sequence[Row], costs: dict[str, list[float]]) -> None:
    print(f"\n| {label} | without, CPU µs | with | ratio | at most |\n|---|--:|--:|--:|--:|")
    for row in rows:
        plain, versioned = (costs[f"{row.name} {row.table}, {table}"] for table in (row.against, row.table))
        ratio = statistics.median(own / base for own, base in zip(versioned, plain, strict=True))
        figures = f"{statistics.median(plain):.0f} | {statistics.median(versioned):.0f}"
        print(f"| {row.name} {row.table} | {figures} | {ratio:.2f} | {row.most} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU microseconds per write with and without history.")
    parser.add_argument("--postgres", help="a database to measure too; makes and drops one schema in it")
    parser.add_argument("--rounds", type=int, default=15, help="their median counts (15)")
    parser.add_argument("--calls", type=int, default=1000, help="requests of a row in a round (1000)")
    parser.add_argument("--connections", type=int, default=32, help="clients at once (32)")
    parser.add_argument("--only", choices=sorted({row.name for row in ROWS}), help="one row")
    options = parser.parse_args()
    rows = [row for row in ROWS if options.only in (None, row.name)]
    if len(CPUS) > 1:
        os.sched_setaffinity(0, CPUS[1:])
    with databases(options.postgres) as measured:
        for label, (_, environment) in measured.items():
            report(label, rows, measure(rows, environment, options))


if __name__ == "__main__":
    main()
