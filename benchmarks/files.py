"""Measure what streamed files cost: CPU and memory of the server process, beside hand-written ASGI.

    python benchmarks/files.py [--megabytes 200] [--runs 3] [--listener maniflex|uvicorn]

Each server runs alone and gets one form with a file, which is then downloaded again. Both run behind the same
listener: the one that `maniflex run` has, or uvicorn's own. Linux only: both are read from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
SERVERS = {"by hand": "files_limit_app:app", "maniflex": "files_app:server"}
LISTENERS = {"maniflex": "maniflex.http.protocol:PatientProtocol", "uvicorn": "httptools"}
MB = 1024 * 1024
TICK = os.sysconf("SC_CLK_TCK")
HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\nContent-Type: video/mp4\r\n\r\n'
TAIL = b"\r\n--x--\r\n"
PIECE = os.urandom(64 * 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--listener", choices=LISTENERS, default="maniflex")
    options = parser.parse_args()
    costs: dict[str, dict[str, list[float]]] = {}
    growth: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.runs):
        for name, target in SERVERS.items():
            with serving(target, options.listener) as (pid, port):
                for operation, cost, more in measure(pid, port, options.megabytes):
                    costs.setdefault(operation, {}).setdefault(name, []).append(cost)
                    growth.setdefault(operation, {}).setdefault(name, []).append(more)
    print(f"CPU of the server process for {options.megabytes} MB, median of {options.runs} runs")
    for operation, by_name in costs.items():
        hand, ours = (statistics.median(by_name[name]) for name in SERVERS)
        memory = max(growth[operation]["maniflex"])
        print(
            f"{operation:10} by hand {hand:6.2f} s   maniflex {ours:6.2f} s   ratio {ours / hand:5.2f}",
            end="",
        )
        print(f"   maniflex's memory grew by at most {memory:.0f} MB")


@contextmanager
def serving(target: str, listener_name: str) -> Iterator[tuple[int, int]]:
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.close()
        command = [sys.executable, "-m", "uvicorn", target, "--port", str(port), "--log-level", "error"]
        command += ["--http", LISTENERS[listener_name]]
        environment = {**os.environ, "BENCH_FILES": folder}
        process = subprocess.Popen([*command, "--no-access-log"], cwd=HERE, env=environment)
        try:
            wait_for(port)
            yield process.pid, port
        finally:
            process.terminate()
            process.wait()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the server did not start")


def measure(pid: int, port: int, megabytes: int) -> Iterator[tuple[str, float, float]]:
    """CPU seconds and megabytes of growth of each operation."""
    key = upload(port, 1)  # what is loaded only then does not count
    download(port, key)
    before, memory = cpu_of(pid), forget_peak(pid)
    key = upload(port, megabytes)
    yield "upload", cpu_of(pid) - before, memory_of(pid, "VmHWM") - memory
    before, memory = cpu_of(pid), forget_peak(pid)
    assert download(port, key) >= megabytes * MB
    yield "download", cpu_of(pid) - before, memory_of(pid, "VmHWM") - memory


def forget_peak(pid: int) -> float:
    """The memory of a process in megabytes; its peak is counted from here on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory_of(pid, "VmRSS")


def memory_of(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def upload(port: int, megabytes: int) -> str:
    pieces = megabytes * MB // len(PIECE)
    size = len(HEAD) + pieces * len(PIECE) + len(TAIL)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(
            b"POST /api/files HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n" % size + HEAD
        )
        for _ in range(pieces):
            connection.sendall(PIECE)
        connection.sendall(TAIL)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["data"]["key"])


def download(port: int, key: str) -> int:
    size = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET /api/files/{key} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        buffer = bytearray(MB)
        while received := connection.recv_into(buffer):
            size += received
    return size


def cpu_of(pid: int) -> float:
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / TICK


if __name__ == "__main__":
    main()
