"""Count what texts in several languages cost: instructions of the server process per request.

    python benchmarks/languages.py [--postgres postgresql://…] [--requests 300]

A page of 20 records and a read of a model with a text in two languages, against the model with a plain text;
and of the plain one in a server that has the other, too. Needs valgrind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from benchmarks.catalogue import request  # noqa: E402
from benchmarks.instructions import CountedServer, counting, send  # noqa: E402

KINDS = ("plain", "translated", "beside")
PAGE, GERMAN_PAGE, SORTED, READ = "page of 20", "with ?locale=de", "sorted by the text", "one record"


def fill(server: CountedServer, path: str, kind: str) -> str:
    """Forty records, unless they are there; the path of one."""
    url = f"http://127.0.0.1:{server.port}{path}"
    with urlopen(url) as answer:
        records = json.load(answer)["data"]
    for n in range(40 - 2 * len(records)):
        name = f"Finance {n:02}"
        body = {"name": {"en": name, "de": f"Finanzen {n:02}"}, "level": n}
        body = body if kind == "translated" else {"name": name, "floor": n}
        post = Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
        with urlopen(post) as answer:
            records = [json.load(answer)["data"]]
    return f"{path}/{records[0]['id']}"


def measure(kind: str, url: str, number: int) -> dict[str, float]:
    """Instructions per request, by what it is."""
    costs = {}
    with counting(kind, {"BENCH_DATABASE": url}, app="languages_app:server") as server:
        path = f"/api/departments_{'translated' if kind == 'translated' else 'plain'}"
        one = fill(server, path, kind)
        asked = "&locale=de" if kind == "translated" else ""
        for name, text in (
            (PAGE, request("GET", f"{path}?limit=20")),
            (GERMAN_PAGE, request("GET", f"{path}?limit=20{asked}")),
            (SORTED, request("GET", f"{path}?limit=20&sort=name")),
            (READ, request("GET", one)),
        ):

            def ask(text: bytes = text) -> bytes:
                return text

            asyncio.run(send(server.port, ask, b"2", number // 2, 1))
            figures = [asyncio.run(server.count(ask, b"2", number, 1)) for _ in range(3)]
            costs[name] = statistics.median(figures)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description="Instructions per request with texts in several languages.")
    parser.add_argument("--postgres", help="a database to measure too")
    parser.add_argument("--requests", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        urls = {"SQLite": f"sqlite:///{directory}/bench.db"}
        urls |= {"PostgreSQL": options.postgres} if options.postgres else {}
        for label, url in urls.items():
            costs = {kind: measure(kind, url, options.requests) for kind in KINDS}
            print(f"\n| {label} | plain | translated | ratio | plain beside it | ratio |")
            print("|---|--:|--:|--:|--:|--:|")
            for name, plain in costs["plain"].items():
                figures = [costs[kind][name] for kind in KINDS[1:]]
                cells = [cell for figure in figures for cell in (f"{figure:,.0f}", f"{figure / plain:.3f}")]
                print(f"| {name} | {plain:,.0f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
