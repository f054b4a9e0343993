"""Rotate the keys of many rows while clients write: rows a second.

    python benchmarks/rotation.py [--postgres postgresql://…] [--rows 20000] [--clients 20] [--page-size 100]

The clients update random rows of the same table, one after the other, in the process of the rotation.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path
from time import perf_counter

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from maniflex import Model, Server, field  # noqa: E402
from maniflex.encryption import MemoryKeyProvider  # noqa: E402

KEYS = {"default": bytes(range(32)), "next": bytes(range(32, 64))}
BATCH = 1000


class Note(Model, table="rotated_notes"):
    name: str
    text: str = field(encrypted=True)


def a_server(url: str, **current: str) -> Server:
    server = Server(url, key_provider=MemoryKeyProvider(KEYS, current=current))
    server.register(Note)
    return server


async def fill(url: str, rows: int) -> None:
    """Rows under the first key."""
    server = a_server(url)
    async with server.lifespan():
        for start in range(0, rows, BATCH):
            async with server.transaction():
                for number in range(start, start + BATCH):
                    await server.db(Note).create(name=f"note {number}", text=f"the text of note {number}")


async def rotate(url: str, clients: int, page_size: int) -> tuple[float, float]:
    """Rows and writes a second."""
    server, writes = a_server(url, default="next"), 0
    async with server.lifespan():
        ids = [note.id for note in await server.db(Note).list(limit=BATCH)]

        async def write() -> None:
            nonlocal writes
            while True:
                await server.db(Note).update(random.choice(ids), text="another text")
                writes += 1

        tasks = [asyncio.create_task(write()) for _ in range(clients)]
        begun = perf_counter()
        report = await server.keys.rotate(Note, page_size=page_size)
        seconds = perf_counter() - begun
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert report.complete, report
    return report.rotated / seconds, writes / seconds


async def measure(label: str, url: str, rows: int, clients: int, page_size: int) -> None:
    for number in (0, clients):
        await fill(url, rows)
        rotated, written = await rotate(url, number, page_size)
        print(f"| {label} | {number} | {rotated:,.0f} | {written:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows a second of a rotation while clients write.")
    parser.add_argument("--postgres", help="an empty database to measure too")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--page-size", type=int, default=100)
    options = parser.parse_args()
    print("| database | clients | rows a second | writes a second |\n|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as directory:
        urls = {"SQLite": f"sqlite:///{directory}/bench.db"}
        urls |= {"PostgreSQL": options.postgres} if options.postgres else {}
        for label, url in urls.items():
            asyncio.run(measure(label, url, options.rows, options.clients, options.page_size))


if __name__ == "__main__":
    main()
