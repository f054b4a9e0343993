"""C40: one limit for all processes of an application."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.kit.processes import Served, serve_process
from tests.kit.waiting import until

APP = """
from maniflex import Model, Server
from maniflex.middleware import db

class Note(Model, table="notes"):
    text: str = ""

server = Server({url!r}, path_prefix="", access_log=False)
server.register(Note)
server.pipeline.db.register(db.rate_limit(10, 60))
"""


def ask(served: Served) -> httpx.Response:
    return httpx.get(f"{served.url}/notes", timeout=20)


def test_two_processes_share_their_buckets_and_restarts_fill_none(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.format(url=database_url))
    with serve_process(tmp_path) as one, serve_process(tmp_path) as other, ThreadPoolExecutor(8) as pool:
        began = time.monotonic()
        answers = list(pool.map(ask, [one, other] * 20))
        took = time.monotonic() - began
        passed = [answer for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(passed) + len(refused) == 40
        assert 10 <= len(passed) <= 10 + int(took // 6)
        assert all(1 <= int(answer.headers["retry-after"]) <= 6 for answer in refused)
    with serve_process(tmp_path) as one, serve_process(tmp_path) as other:
        statuses = [ask(served).status_code for served in (one, other, one, other)]
        tokens = int((time.monotonic() - began) // 6) + 1
        assert statuses.count(200) <= tokens
        assert statuses.count(200) < 10
        until(lambda: ask(one).status_code == 429, "an empty bucket")
        until(lambda: ask(other).status_code == 200, "a token, which the other process refills too")
