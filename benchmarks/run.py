"""Measure what a request costs: CPU of the server process, beside hand-written ASGI for the same answers.

    python benchmarks/run.py [--postgres postgresql://…] [--seconds 5] [--runs 3]

Every server runs alone on one core and is loaded from another, by wrk if it is installed. On PostgreSQL a
schema `maniflex_benchmark` is made and dropped again; nothing else is touched. Linux only: CPU is read
from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCHEMA = "maniflex_benchmark"
SERVERS = {"limit": "limit_app:app", "maniflex": "http_app:server"}
OPERATIONS = ("read", "list", "update", "create")  # create last: it makes the table longer
STATUSES = ("draft", "published", "archived")
LIST = "/api/posts?filter=status:eq:published&sort=created_at:desc&page=1&limit=20"
TEXT = ("maniflex " * 45)[:400]
CPUS = sorted(os.sched_getaffinity(0))
TICK = os.sysconf("SC_CLK_TCK")
WRK_SCRIPT = """
local lines = {}
for line in io.lines(os.getenv("BENCH_REQUESTS")) do lines[#lines + 1] = line end
local method, headers = os.getenv("BENCH_METHOD"), { ["Content-Type"] = "application/json" }
local requests = {}
function init()
  for i, line in ipairs(lines) do
    local path, body = line:match("^(%S+) ?(.*)$")
    requests[i] = wrk.format(method, path, headers, body ~= "" and body or nil)
  end
end
function request() return requests[math.random(#requests)] end
function done(summary)
  local e, failed = summary.errors, 0
  for _, kind in ipairs({ "status", "connect", "read", "write", "timeout" }) do failed = failed + e[kind] end
  io.write(string.format("RESULT %d %d\\n", summary.requests, failed))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of one operation: a method, and lines of path and body to choose from."""

    method: str
    lines: list[str]


def loads(ids: Sequence[str]) -> dict[str, Load]:
    paths = [f"/api/posts/{record_id}" for record_id in ids]
    new = f'{{"title": "New", "body": "{TEXT}", "status": "draft", "views": 1, "user_id": "user-1"}}'
    return {
        "read": Load("GET", paths),
        "list": Load("GET", [LIST]),
        "update": Load("PATCH", [f'{path} {{"views": {n}}}' for n, path in enumerate(paths)]),
        "create": Load("POST", [f"/api/posts {new}"]),
    }


# -- the table


async def seed(url: str, rows: int, owner: str = "") -> list[str]:
    """Make the table by our own migration and fill it; returns the ids."""
    from benchmarks.http_app import Post
    from maniflex import Server

    server = Server(database=url)
    server.register(Post)
    rand = random.Random(42)
    async with server.lifespan(role="client"):
        await server.raw_exec("DELETE FROM posts")
        async with server.transaction():
            ids = []
            for number in range(rows):
                post = await server.db(Post).create(
                    title=f"Post number {number}",
                    body=TEXT,
                    status=STATUSES[number % 3],
                    views=rand.randrange(10_000),
                    user_id=owner or f"user-{rand.randrange(500)}",
                )
                ids.append(post.id)
        await server.raw_exec("CREATE INDEX IF NOT EXISTS posts_listed ON posts (status, created_at)")
        await server.raw_exec("ANALYZE posts")
    return ids


async def schema(url: str, statement: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        if statement:
            await connection.execute(statement)
    finally:
        await connection.close()


@contextmanager
def databases(postgres: str | None) -> Iterator[dict[str, tuple[str, dict[str, str]]]]:
    """Label → address and what the server finds it by; all of it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="maniflex-benchmark-") as directory:
        path = f"{directory}/bench.db"
        found = {"SQLite": (f"sqlite:///{path}", {"BENCH_DB": "sqlite", "SQLITE_PATH": path})}
        if postgres is None:
            yield found
            return
        asyncio.run(schema(postgres, f"CREATE SCHEMA {SCHEMA}"))
        url = f"{postgres}{'&' if '?' in postgres else '?'}search_path={SCHEMA}"
        try:
            yield {**found, "PostgreSQL": (url, {"BENCH_DB": "pg", "PG_DSN": url})}
        finally:
            asyncio.run(schema(postgres, ""))


# -- the server


@contextmanager
def serving(target: str, environment: dict[str, str], path: str = LIST) -> Iterator[tuple[int, int]]:
    """The server on the first core; its process id and its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", target, "--port", str(port), "--no-access-log"]
    process = subprocess.Popen(
        [*command, "--log-level", "warning", "--loop", "uvloop", "--http", "httptools"],
        cwd=HERE,
        env={**os.environ, **environment},
        preexec_fn=lambda: os.sched_setaffinity(0, CPUS[:1]),
    )
    try:
        wait_for(process, f"http://127.0.0.1:{port}{path}")
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(process: subprocess.Popen[bytes], url: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit("benchmarks/run.py: the server did not come up")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError as error:
            sys.exit(f"benchmarks/run.py: the server answers {error.code} to {url}")
        except OSError:
            time.sleep(0.05)


def cpu_microseconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1_000_000 / TICK


def memory_mb(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) // 1024


# -- the load


def with_wrk(port: int, load: Load, seconds: float, connections: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        script, requests = Path(directory, "load.lua"), Path(directory, "requests")
        script.write_text(WRK_SCRIPT)
        requests.write_text("\n".join(load.lines))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(round(seconds), 1)}s", "-s", str(script)]
        done = subprocess.run(
            [*command, f"http://127.0.0.1:{port}"],
            env={**os.environ, "BENCH_METHOD": load.method, "BENCH_REQUESTS": str(requests)},
            capture_output=True,
            text=True,
            check=True,
        )
    total, failed = done.stdout.rpartition("RESULT ")[2].split()
    return succeeded(int(total), int(failed))


async def with_asyncio(port: int, load: Load, seconds: float, connections: int) -> int:
    """A generator for machines without wrk; slower than it, which CPU per request does not mind."""
    until = time.monotonic() + seconds
    requests = []
    for path, _, body in (line.partition(" ") for line in load.lines):
        head = f"{load.method} {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        requests.append(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())

    async def one_connection(rand: random.Random) -> tuple[int, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        total = failed = 0
        while time.monotonic() < until:
            writer.write(rand.choice(requests))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            total, failed = total + 1, failed + (head[9:10] != b"2")
        writer.close()
        return total, failed

    counts = await asyncio.gather(*(one_connection(random.Random(n)) for n in range(connections)))
    return succeeded(sum(total for total, _ in counts), sum(failed for _, failed in counts))


def succeeded(total: int, failed: int) -> int:
    if failed or not total:
        sys.exit(f"benchmarks/run.py: {failed} of {total} requests failed")
    return total


# -- the figures


def measure(pid: int, port: int, load: Load, options: argparse.Namespace) -> tuple[float, float]:
    """CPU microseconds per request and requests per second: medians of all runs."""
    costs, rates = [], []
    send(port, load, min(options.seconds, 1), options)  # the first requests also pay for what is cached
    for _ in range(options.runs):
        cpu, started = cpu_microseconds(pid), time.perf_counter()
        count = send(port, load, options.seconds, options)
        rates.append(count / (time.perf_counter() - started))
        costs.append((cpu_microseconds(pid) - cpu) / count)
    return statistics.median(costs), statistics.median(rates)


def send(port: int, load: Load, seconds: float, options: argparse.Namespace) -> int:
    if options.wrk:
        return with_wrk(port, load, seconds, options.connections)
    return asyncio.run(with_asyncio(port, load, seconds, options.connections))


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU microseconds per request, beside hand-written ASGI.")
    parser.add_argument("--postgres", help="a database to measure too; makes and drops one schema in it")
    parser.add_argument("--seconds", type=float, default=5, help="of every run (5)")
    parser.add_argument("--runs", type=int, default=3, help="of every operation; their median counts (3)")
    parser.add_argument("--rows", type=int, default=10_000, help="in the table (10000)")
    parser.add_argument("--connections", type=int, default=32, help="clients at once (32)")
    parser.add_argument("--no-wrk", action="store_true", help="load with asyncio even if wrk is installed")
    options = parser.parse_args()
    options.wrk = shutil.which("wrk") is not None and not options.no_wrk
    sys.path.insert(0, str(HERE.parent))
    if len(CPUS) > 1:
        os.sched_setaffinity(0, CPUS[1:])
    print("| database | operation | limit µs | maniflex µs | ratio | limit req/s | maniflex req/s |")
    print("|---|---|---|---|---|---|---|", flush=True)
    memory = []
    with databases(options.postgres) as measured:
        for label, (url, environment) in measured.items():
            results: dict[str, dict[str, tuple[float, float]]] = {}
            for name, target in SERVERS.items():
                wanted = loads(asyncio.run(seed(url, options.rows)))
                with serving(target, environment) as (pid, port):
                    results[name] = {op: measure(pid, port, wanted[op], options) for op in OPERATIONS}
                    memory.append(f"{name} on {label} {memory_mb(pid)} MB")
            for op in OPERATIONS:
                (least, fastest), (ours, rate) = results["limit"][op], results["maniflex"][op]
                costs = f"{least:.0f} | {ours:.0f} | {ours / least:.2f}"
                print(f"| {label} | {op} | {costs} | {fastest:.0f} | {rate:.0f} |", flush=True)
    print(f"\nMemory after the run: {', '.join(memory)}. Load: {'wrk' if options.wrk else 'asyncio'}.")


if __name__ == "__main__":
    main()
