"""Real processes: a worker that was killed is told of in time, and the numbers agree with the events."""

from __future__ import annotations

import re
import signal
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx

from tests.kit.panel import text_of
from tests.kit.processes import MANIFLEX, Served, free_port, serve_process, start_process
from tests.kit.waiting import until

APP = """
from maniflex import Fatal, Model, Server
from maniflex.background.processes.store import LATE_AFTER, WorkProcess, WorkStat
from maniflex.background.runs.model import WorkflowEvent


class Order(Model, table="seen_orders"):
    number: int = 0


server = Server(DATABASE, path_prefix="/api", background=BACKGROUND)
server.register(Order)
server.admin(allow_unauthenticated=True)


@server.work.handler("billing.send.v1", max_attempts=1)
async def send(run):
    if run.payload["n"] % 3 == 0:
        raise Fatal("no luck")


@server.action("POST", "/submit")
async def submit(ctx):
    await server.work.submit_many("billing.send.v1", [{"n": n} for n in range(30)])
    return {}


@server.action("POST", "/age")
async def age(ctx):
    processes = server.db(WorkProcess)
    for one in await processes.list({"role": "worker"}):
        await processes.update(one.id, seen_at=one.seen_at - LATE_AFTER)
    return {}


@server.action("GET", "/tally")
async def tally(ctx):
    events = await server.db(WorkflowEvent).list([("event_type", "in", ["succeeded", "failed"])], limit=1000)
    stats = await server.db(WorkStat).list(limit=1000)
    return {
        "events": [one.created_at.isoformat() for one in events],
        "stats": [[one.minute.isoformat(), one.succeeded + one.failed] for one in stats if one.kind == "run"],
    }
"""
OVERVIEW, PROCESSES = "/admin/-/operations/", "/admin/-/operations/processes"
SAID_WITHIN = 40  # seconds


def page(served: Served, path: str) -> str:
    return text_of(httpx.get(served.url + path).raise_for_status().text)


def start_worker(directory: Path) -> AbstractContextManager[Served]:
    command: list[str | Path] = [MANIFLEX, "worker", "app:server"]
    return start_process(command, free_port(), cwd=directory)


def test_a_killed_worker_is_told_of_and_a_new_one_is_alive(
    tmp_path: Path, database_url: str, long_mode: bool
) -> None:
    """Half a minute after it was last seen, for which only the long run waits."""
    source = APP.replace("DATABASE", repr(database_url)).replace("BACKGROUND", "False")
    (tmp_path / "app.py").write_text(source)
    with serve_process(tmp_path) as served:
        with start_worker(tmp_path) as worker:
            until(lambda: "worker" in page(served, PROCESSES), "the row of the worker")
            httpx.post(f"{served.url}/api/submit").raise_for_status()
            until(lambda: len(tally(served)["events"]) == 30, "all runs")
            worker.send(signal.SIGKILL)
            worker.ended()
        httpx.post(f"{served.url}/api/submit").raise_for_status()
        sentence = "no living process takes billing.send.v1"
        if not long_mode:
            httpx.post(f"{served.url}/api/age").raise_for_status()
        until(lambda: sentence in page(served, OVERVIEW), "the sentence", SAID_WITHIN)
        runs = httpx.get(f"{served.url}/admin/-/operations/runs?f_status=due").text
        run_url = re.findall(r'href="(/admin/-/operations/runs/[0-9a-f-]{36})"', runs)[0]
        assert re.search(r"No living process takes .*last .*seen", page(served, run_url))
        with start_worker(tmp_path):
            until(lambda: sentence not in page(served, OVERVIEW), "a living process")
            until(lambda: len(tally(served)["events"]) == 60, "all runs")


def test_what_workers_counted_agrees_with_the_events_of_each_minute(
    tmp_path: Path, database_url: str
) -> None:
    source = APP.replace("DATABASE", repr(database_url)).replace("BACKGROUND", "False")
    (tmp_path / "app.py").write_text(source)
    with serve_process(tmp_path) as served:
        with start_worker(tmp_path) as one, start_worker(tmp_path) as other:
            for worker in (one, other):
                pid = str(worker.process.pid)
                until(lambda: pid in page(served, PROCESSES), "the row of the worker")  # noqa: B023
            for count in (30, 60, 90):
                httpx.post(f"{served.url}/api/submit").raise_for_status()
                until(lambda: len(tally(served)["events"]) == count, "all runs")  # noqa: B023
            for worker in (one, other):
                worker.send(signal.SIGTERM)
            assert [one.ended(), other.ended()] == [0, 0]
        counts = tally(served)
        events = Counter(moment[:16] for moment in counts["events"])
        stats: Counter[str] = Counter()
        for minute, number in counts["stats"]:
            stats[minute[:16]] += number
        assert +stats == events
        assert sum(events.values()) == 90


def tally(served: Served) -> dict[str, list[Any]]:
    answer: dict[str, list[Any]] = httpx.get(f"{served.url}/api/tally").json()["data"]
    return answer
