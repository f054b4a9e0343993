"""A process is killed in the middle of a change of all that match: the next one goes on, each record once."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import httpx

from tests.kit.processes import Served, serve_process
from tests.kit.waiting import PATIENCE, until

APP = """
import asyncio
from pathlib import Path
from typing import Literal

from maniflex import Model, Server, field


class Errand(Model, table="killed_errands", versioned=True):
    title: str = field(filterable=True, sortable=True)
    state: Literal["open", "done"] = field(default="open", filterable=True)


server = Server(DATABASE, path_prefix="/api", work_lease=1.0, lock_timeout=30)
server.register(Errand)
server.admin()
changed = 0


@server.pipeline.db.middleware(models=[Errand], operations="update", at="after")
async def wait_half_way(ctx, next):
    global changed
    await next()
    changed += 1
    if changed == COUNT // 2 and not Path("reached").exists():
        Path("reached").touch()
        await asyncio.Event().wait()  # in the open transaction of a batch, until the process is killed


@server.action("POST", "/fill")
async def fill(ctx):
    await server.superusers.create("ada@example.org", "a long enough phrase")
    async with server.transaction():
        for number in range(COUNT):
            await server.db(Errand).create(title=f"Errand {number}")
    return {}


@server.action("GET", "/tally")
async def tally(ctx):
    [done] = await server.raw_query("SELECT count(*) AS n FROM killed_errands WHERE state = 'done'")
    [events] = await server.raw_query(
        "SELECT count(*) AS n, count(DISTINCT record_id) AS d FROM admin_event"
        " WHERE action = 'update' AND actor_name = 'ada@example.org'"
    )
    [past] = await server.raw_query("SELECT count(*) AS n FROM errand_histories WHERE version > 1")
    return {"done": done["n"], "events": [events["n"], events["d"]], "versions": past["n"]}
"""
COUNT = 900
ALL = {"all": "1", "action": "set", "set.state": "done", "query": "f_state=open", "confirm": "1"}


def sign_in(http: httpx.Client) -> None:
    token = read_token(http, "/admin/-/login")
    form = {"_csrf": token, "username": "ada@example.org", "password": "a long enough phrase"}
    assert http.post("/admin/-/login", data=form).status_code == 303


def read_token(http: httpx.Client, path: str) -> str:
    return str(re.findall(r'name="_csrf" value="([0-9a-f]{64})"', http.get(path).text)[0])


def tally(served: Served) -> Any:
    return httpx.get(f"{served.url}/api/tally", timeout=PATIENCE).json()["data"]


def test_a_change_of_all_that_match_survives_a_kill(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "app.py").write_text(APP.replace("DATABASE", repr(database_url)).replace("COUNT", str(COUNT)))
    with serve_process(tmp_path) as served, httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
        http.post("/api/fill").raise_for_status()
        sign_in(http)
        form = {"_csrf": read_token(http, "/admin/killed_errands"), **ALL}
        response = http.post("/admin/killed_errands/bulk", data=form)
        assert response.status_code == 303, response.text[-500:]
        place = response.headers["location"]
        until((tmp_path / "reached").exists, "half of the records")
        served.send(signal.SIGKILL)
        served.ended()
    with serve_process(tmp_path) as served, httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
        assert 0 < tally(served)["done"] < COUNT
        sign_in(http)
        until(lambda: "data-over" in http.get(place).text, "the end of the change")
        assert tally(served) == {"done": COUNT, "events": [COUNT, COUNT], "versions": COUNT}
