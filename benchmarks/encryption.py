"""Count what an encrypted field costs: instructions of the server process per request.

    python benchmarks/encryption.py [--postgres postgresql://…] [--requests 400]

A page of 20 records, a read and a create, of a model with an encrypted field against the same model without.
Needs valgrind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from benchmarks.catalogue import request  # noqa: E402
from benchmarks.instructions import CountedServer, counting, send  # noqa: E402

BODY = {
    "title": "A title",
    "body": "Some words of a text that is as long as texts are. " * 3,
    "status": "draft",
}


@contextmanager
def posts(kind: str, url: str) -> Iterator[tuple[CountedServer, str, str]]:
    """A server with 40 posts, its path, and the path of a post."""
    with counting(kind, {"BENCH_DATABASE": url}, app="encryption_app:server") as server:
        path = f"/api/posts_{kind}"
        for _ in range(40):
            post = Request(
                f"http://127.0.0.1:{server.port}{path}",
                json.dumps(BODY).encode(),
                {"content-type": "application/json"},
            )
            with urlopen(post) as answer:
                record = json.load(answer)["data"]
        yield server, path, f"{path}/{record['id']}"


def measure(kind: str, url: str, number: int) -> dict[str, float]:
    """Instructions per request, by what it is."""
    costs = {}
    with posts(kind, url) as (server, path, one):
        for name, text in (
            ("page of 20", request("GET", f"{path}?limit=20")),
            ("read", request("GET", one)),
            ("create", request("POST", path, json.dumps(BODY))),
        ):

            def ask(text: bytes = text) -> bytes:
                return text

            asyncio.run(send(server.port, ask, b"", number // 2, 4))
            figures = [asyncio.run(server.count(ask, b"2", number, 4)) for _ in range(3)]
            costs[name] = statistics.median(figures)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description="Instructions per request with an encrypted field.")
    parser.add_argument("--postgres", help="a database to measure too")
    parser.add_argument("--requests", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        urls = {"SQLite": f"sqlite:///{directory}/bench.db"}
        urls |= {"PostgreSQL": options.postgres} if options.postgres else {}
        for label, url in urls.items():
            plain, encrypted = (measure(kind, url, options.requests) for kind in ("plain", "encrypted"))
            print(f"\n| {label} | plain | encrypted | ratio |\n|---|--:|--:|--:|")
            for name in plain:
                ratio = encrypted[name] / plain[name]
                print(f"| {name} | {plain[name]:,.0f} | {encrypted[name]:,.0f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
