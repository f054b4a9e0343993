"""Measure what the access log, the numbers and the slow log cost: CPU of the server process per read.

    python benchmarks/observability.py [--postgres postgresql://…] [--seconds 1] [--rounds 9]

All servers of a database run at once on one core, and rounds go from one to the next, so that a machine
whose speed changes changes it for all of them; medians count. Linux only: CPU is read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from benchmarks.catalogue import cpu_microseconds, reads, send  # noqa: E402
from benchmarks.run import CPUS, databases, seed, wait_for  # noqa: E402

# What is observed, and the ratio to nothing it shall not pass.
ROWS = {
    "nothing": ("nothing switched on", 0.0),
    "slow": ("slow requests and statements", 1.02),
    "log": ("access log", 0.0),
    "json": ("access log as JSON", 0.0),
    "metrics": ("numbers", 0.0),
    "all": ("access log, numbers and slow log", 1.08),
}


@contextmanager
def serving(observed: str, environment: dict[str, str], log: Path) -> Iterator[tuple[int, int]]:
    """A server of our own on the first core; its process id and its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "observed_app.py", str(port)],
            cwd=HERE,
            env={**os.environ, **environment, "BENCH_OBSERVED": observed},
            stderr=out,
            preexec_fn=lambda: os.sched_setaffinity(0, CPUS[:1]),
        )
    try:
        wait_for(process, f"http://127.0.0.1:{port}/ready")
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def measure(url: str, environment: dict[str, str], options: argparse.Namespace) -> dict[str, list[float]]:
    """CPU microseconds per read of every row, one figure for each round."""
    ids = asyncio.run(seed(url, options.rows, owner="user-1"))
    costs: dict[str, list[float]] = {name: [] for name in ROWS}
    requests = reads(ids)
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serving(name, environment, Path(os.devnull))) for name in ROWS}
        for number in range(options.rounds + 1):
            for name, (pid, port) in servers.items():
                before = cpu_microseconds(pid)
                seconds = options.seconds if number else 0.5  # the first requests fill caches
                count = asyncio.run(send(port, requests, b"2", seconds, options.connections))
                costs[name].append((cpu_microseconds(pid) - before) / count)
    return {name: figures[1:] for name, figures in costs.items()}


def report(label: str, costs: dict[str, list[float]]) -> None:
    print(f"\n| {label} | CPU µs per read | ratio | at most |\n|---|--:|--:|--:|")
    for name, (words, most) in ROWS.items():
        figures = costs[name]
        ratio = statistics.median(own / base for own, base in zip(figures, costs["nothing"], strict=True))
        print(f"| {words} | {statistics.median(figures):.1f} | {ratio:.3f} | {most or ''} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU microseconds per read, observed in several ways.")
    parser.add_argument("--postgres", help="a database to measure too; makes and drops one schema in it")
    parser.add_argument("--seconds", type=float, default=1, help="of every row in a round (1)")
    parser.add_argument("--rounds", type=int, default=9, help="their median counts (9)")
    parser.add_argument("--rows", type=int, default=10_000, help="in the table (10000)")
    parser.add_argument("--connections", type=int, default=32, help="clients at once (32)")
    options = parser.parse_args()
    if len(CPUS) > 1:
        os.sched_setaffinity(0, CPUS[1:])
    with databases(options.postgres) as measured:
        for label, (url, environment) in measured.items():
            report(label, measure(url, environment, options))


if __name__ == "__main__":
    main()
