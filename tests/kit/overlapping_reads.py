"""Reads of a SQLite file without a gap, so that no commit finds the log without a reader."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path


@contextmanager
def overlapping_reads(path: str | Path, table: str) -> Iterator[None]:
    """Another program that begins each of its reads before the last one has ended."""
    ended = threading.Event()

    def read() -> None:
        connections = [sqlite3.connect(path, isolation_level=None) for _ in range(2)]
        for number in count():
            connection = connections[number % 2]
            connection.execute("BEGIN")
            connection.execute(f"SELECT count(*) FROM {table}").fetchall()
            if ended.wait(0.005):
                break
            other = connections[(number + 1) % 2]
            if other.in_transaction:
                other.execute("COMMIT")
        for connection in connections:
            connection.close()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()
