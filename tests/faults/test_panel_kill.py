"""Processes are killed in the middle of a change of many runs: each run is changed once, and noted once."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import httpx

from tests.kit.processes import Served, serve_process
from tests.kit.waiting import until

APP = """
from maniflex import Model, Server
from maniflex.background.runs.model import WorkflowRun
from maniflex.admin.tables import AdminEvent


class Order(Model, table="killed_panel_orders"):
    number: int = 0


server = Server(DATABASE, path_prefix="/api", work_lease=1.0, lock_timeout=30)
server.register(Order)
server.admin(allow_unauthenticated=True)


@server.work.handler("report.v1")
async def report(run):
    pass


@server.action("POST", "/fill")
async def fill(ctx):
    await server.work.submit_many("nobody.takes.this.v1", [{"n": n} for n in range(COUNT)], delay=3600)
    await server.raw_exec(
        "UPDATE workflow_run SET status = 'cancelled' WHERE type = 'nobody.takes.this.v1'"
    )
    return {}


@server.action("GET", "/tally")
async def tally(ctx):
    events = await server.raw_query(
        "SELECT count(*) AS n, count(DISTINCT record_id) AS d FROM admin_event WHERE action = 'run.retry'"
    )
    runs = await server.raw_query("SELECT status, count(*) AS n FROM workflow_run GROUP BY status")
    return {"events": events[0]["n"], "records": events[0]["d"], "runs": {r["status"]: r["n"] for r in runs}}
"""
COUNT = 1500
KILLS = 2


def begin(served: Served) -> str:
    """Ask for a retry of all; the path of its page."""
    with httpx.Client(base_url=served.url) as http:
        http.post("/api/fill").raise_for_status()
        page = http.get("/admin/-/operations/runs").raise_for_status().text
        token = re.findall(r'name="_csrf" value="([0-9a-f]{64})"', page)[0]
        controls = {"_csrf": token, "action": "retry", "all": "1", "query": "", "confirm": "1"}
        response = http.post("/admin/-/operations/runs/bulk", data=controls)
        assert response.status_code == 303, response.text
        return str(response.headers["location"])


def changed(served: Served, place: str) -> int:
    page = httpx.get(served.url + place).text
    return int(re.findall(r"<dt>changed</dt><dd>([0-9,]+)</dd>", page)[0].replace(",", ""))


def test_a_change_of_many_runs_survives_kills(tmp_path: Path, database_url: str) -> None:
    source = APP.replace("DATABASE", repr(database_url)).replace("COUNT", str(COUNT))
    (tmp_path / "app.py").write_text(source)
    place = ""
    for _ in range(KILLS):
        with serve_process(tmp_path) as served:
            before = changed(served, place) if place else 0
            place = place or begin(served)
            until(lambda: changed(served, place) > min(before, COUNT - 1), "some more runs")  # noqa: B023
            served.send(signal.SIGKILL)
            served.ended()
    with serve_process(tmp_path) as served:
        until(lambda: changed(served, place) == COUNT, "all runs")
        tally = httpx.get(f"{served.url}/api/tally").json()["data"]
        assert (tally["events"], tally["records"]) == (COUNT, COUNT)
        assert tally["runs"]["pending"] == COUNT
        assert "cancelled" not in tally["runs"]
