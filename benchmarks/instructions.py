"""Count what entries of the catalogue cost: instructions of the server process per request.

    python benchmarks/instructions.py [--postgres postgresql://…] [--requests 600] [--only replay]

The rows are those of `catalogue.py`. Each server runs under callgrind, one after the other, so figures depend
neither on the speed of the machine nor on who else uses it. Needs valgrind.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from benchmarks.catalogue import ROWS, Requests, Row, settle_kept_keys  # noqa: E402
from benchmarks.run import databases, seed, serving, wait_for  # noqa: E402

_TOTALS = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


class CountedServer:
    """A server under callgrind, which counts only between `count` and its end."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, directory: Path) -> None:
        self._process = process
        self._directory = directory
        self.port = port

    async def count(self, requests: Requests, status: bytes, number: int, connections: int) -> float:
        """Instructions per request."""
        for file in self._directory.glob("out*"):
            file.unlink()
        self._control("--instr=on")
        self._control("--zero")
        await send(self.port, requests, status, number, connections)
        self._control("--dump")
        self._control("--instr=off")
        [file] = [file for file in self._directory.glob("out*") if file.stat().st_size]
        totals = _TOTALS.search(file.read_text())
        assert totals is not None, f"{file} has no totals"
        return int(totals[1]) / number

    def _control(self, command: str) -> None:
        subprocess.run(
            ["callgrind_control", command, str(self._process.pid)], check=True, capture_output=True
        )


@contextmanager
def counting(
    entries: str, environment: dict[str, str], app: str = "catalogue_app:server"
) -> Iterator[CountedServer]:
    """The server with these entries, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="maniflex-callgrind-") as directory:
        callgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no"]
        server = [sys.executable, "-m", "uvicorn", app, "--port", str(port)]
        options = ["--no-access-log", "--log-level", "warning", "--loop", "uvloop", "--http", "httptools"]
        process = subprocess.Popen(
            [*callgrind, f"--callgrind-out-file={directory}/out", *server, *options],
            cwd=HERE,
            env={**os.environ, "PYTHONHASHSEED": "0", **environment, "BENCH_ENTRIES": entries.split()[0]},
        )
        try:
            wait_for(process, f"http://127.0.0.1:{port}/ready", seconds=300)
            yield CountedServer(process, port, Path(directory))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


async def send(port: int, requests: Requests, status: bytes, number: int, connections: int) -> None:
    """Send that many requests, a new one on each connection as soon as the one before is answered."""
    left = number

    async def one_connection() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left > 0:
            left -= 1
            writer.write(requests())
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            body = await reader.readexactly(int(length or 0))
            if not head[9:].startswith(status):
                raise ValueError((head + body).decode())
        writer.close()

    await asyncio.gather(*(one_connection() for _ in range(connections)))


def measure(
    rows: Sequence[Row], url: str, environment: dict[str, str], options: argparse.Namespace
) -> dict[str, float]:
    """Instructions per request of every row."""
    ids = asyncio.run(seed(url, options.rows, owner="user-1"))
    costs = {}
    with serving("catalogue_app:server", {**environment, "BENCH_ENTRIES": "keys"}, "/ready") as (_, port):
        asyncio.run(settle_kept_keys(port))
    for entries in dict.fromkeys(row.entries for row in rows):
        with counting(entries, environment) as server:
            for row in (row for row in rows if row.entries == entries):
                requests = row.requests(ids)
                # The first requests fill caches and empty buckets.
                asyncio.run(send(server.port, requests, b"", options.requests // 2, options.connections))
                figures = [
                    asyncio.run(server.count(requests, row.status, options.requests, options.connections))
                    for _ in range(options.rounds)
                ]
                costs[row.name] = statistics.median(figures)
    return costs


def report(label: str, rows: Sequence[Row], costs: dict[str, float]) -> None:
    print(f"\n| {label} | instructions | against | ratio | at most |\n|---|--:|---|--:|--:|")
    for row in rows:
        line = f"| {row.name} | {costs[row.name]:,.0f} |"
        if row.against:
            line += f" {row.against} | {costs[row.name] / costs[row.against]:.3f} | {row.most or ''} |"
        else:
            line += " | | |"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Instructions per request with entries of the catalogue.")
    parser.add_argument("--postgres", help="a database to measure too; makes and drops one schema in it")
    parser.add_argument("--requests", type=int, default=600, help="of every row in a round (600)")
    parser.add_argument("--rounds", type=int, default=3, help="their median counts (3)")
    parser.add_argument("--rows", type=int, default=2_000, help="in the table (2000)")
    parser.add_argument("--connections", type=int, default=8, help="clients at once (8)")
    parser.add_argument("--only", help="rows whose name has this text, and those they are compared with")
    options = parser.parse_args()
    rows = [row for row in ROWS if options.only is None or options.only in row.name]
    bases = {row.against for row in rows}
    rows = [row for row in ROWS if row in rows or row.name in bases]
    with databases(options.postgres) as measured:
        for label, (url, environment) in measured.items():
            report(label, rows, measure(rows, url, environment, options))


if __name__ == "__main__":
    main()
