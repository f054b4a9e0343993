"""Check 54: a saga over HTTP whose process is killed after its second step, and whose third step fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx

from tests.kit.http import data_of, error_of
from tests.kit.processes import serve_process
from tests.kit.waiting import until

APP = """
import asyncio, os
from datetime import timedelta
from maniflex import AuthInfo, Run, Server

server = Server(os.environ["DB"], work_lease=0.8, work_poll_interval=0.1)

def note(what):
    with open("effects.txt", "a") as log:
        print(what, file=log)
    return what

async def identify(ctx, next):
    ctx.auth = AuthInfo(user_id="ann")
    await next()

server.pipeline.auth.register(identify)

@server.saga("POST", "/trips/book", type="trip.book.v1", lease=1.0, backoff=lambda failures: timedelta(0))
async def book(run: Run) -> None:
    await run.step("one", note, "+one", compensate=lambda _: note("-one"))
    await run.step("two", note, "+two", compensate=lambda _: note("-two"))
    if run.attempt == 1:
        note("waiting")
        await asyncio.Event().wait()
    raise LookupError("the third step fails")
"""


def effects(directory: Path) -> list[str]:
    path = directory / "effects.txt"
    return path.read_text().split() if path.exists() else []


def test_it_is_undone_in_reverse_and_each_effect_happens_once(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    key = {"idempotency-key": "trip-1"}
    with serve_process(tmp_path, DB=database_url) as first:
        made = data_of(httpx.post(f"{first.url}/api/trips/book", json={}, headers=key), 202)
        until(lambda: "waiting" in effects(tmp_path), "the second step")
        os.kill(first.process.pid, signal.SIGKILL)
        first.ended()

    with (
        serve_process(tmp_path, DB=database_url) as second,
        httpx.Client(base_url=f"{second.url}/api", timeout=60) as http,
    ):
        again = data_of(http.post("/trips/book", json={}, headers=key))
        assert again["run_id"] == made["run_id"]

        def is_over() -> bool:
            answer = http.get(f"/workflow_run/{made['run_id']}")
            return bool(data_of(answer)["status"] == "failed")

        until(is_over, "the end of the saga")
        answer = http.post("/trips/book", json={}, headers={**key, "prefer": "wait=10"})
        error = error_of(answer, 409, "SAGA_FAILED")
        assert error["details"] == [{"step": "one", "undone": True}, {"step": "two", "undone": True}]

    assert effects(tmp_path) == ["+one", "+two", "waiting", "-two", "-one"]
