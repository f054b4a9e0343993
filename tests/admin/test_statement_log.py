"""No page of the panel counts a table without bound: by the log of the statements that the server sent."""

from __future__ import annotations

import logging
import re
from datetime import timedelta

import pytest

from maniflex import Run, Server
from maniflex.db.statements import MOST_LETTERS
from tests.kit.panel import text_of, visiting
from tests.kit.warehouse import Depot, Parcel, extra_models, fill

SOME_ID = "00001000-0000-7000-8000-000000000000"
PAGES = (
    "/", "/-/count/parcels", "/parcels", "/parcels?last=1", "/parcels?page=3", "/parcels?f_label=P0005000",
    "/parcels?f_state=open", "/parcels?f_label~contains=5", "/parcels?f_depot.name=North", "/parcels?q=P0005",
    "/parcels?sort=label:desc", "/parcels/new", f"/parcels/{SOME_ID}", f"/parcels/{SOME_ID}/edit",
    f"/parcels/{SOME_ID}/delete", "/depots", "/depots/DEPOT", "/depots/DEPOT/edit", "/depots/DEPOT/delete",
    "/-/pick/parcels?q=P05", "/-/search?q=P0005000", "/-/audit", "/-/views", "/-/operations/",
    "/-/operations/runs", "/-/operations/runs?f_status=due", "/-/operations/failed", "/-/operations/outbox",
    "/-/operations/schedules", "/-/operations/processes",
)  # fmt: skip
# What is counted has a limit: `count(*) FROM (SELECT … LIMIT ?)`.
BOUNDED = re.compile(r"count\(\*\).*?\(\s*select.*?limit", re.IGNORECASE)


def make_server(model_count: int) -> Server:
    server = Server(slow_after=timedelta(microseconds=1))  # a log of all statements
    server.register(Depot, Parcel, *extra_models(model_count - 2))
    server.admin()
    server.outbox.enable()
    server.schedules.enable()

    @server.work.handler("report.v1")
    async def report(run: Run) -> None: ...

    return server


def shapes_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The statements of the log, without their values."""
    lines = [record.getMessage() for record in caplog.records if record.name == "maniflex.db"]
    return [line.split(" s: ", 1)[1] for line in lines if " s: " in line]


@pytest.mark.parametrize("model_count", [30, pytest.param(300, marks=pytest.mark.long)])
async def test_no_page_counts_without_bound(
    database_url: str, caplog: pytest.LogCaptureFixture, model_count: int
) -> None:
    server = make_server(model_count)
    async with visiting(server, database_url) as browser:
        depot = await server.db(Depot).create(name="North")
        await fill(server, database_url, depot.id, 10_500)
        caplog.clear()
        caplog.set_level(logging.WARNING, "maniflex.db")
        assert "10,000+" in text_of(await browser.get("/parcels"))
        for path in PAGES:
            await browser.get(path.replace("DEPOT", depot.id))
        shapes = shapes_in(caplog)
        counts = [shape for shape in shapes if "count(" in shape.lower()]
        assert any("parcels" in shape for shape in counts)
        unbounded = [shape for shape in counts if len(shape) > MOST_LETTERS or not BOUNDED.search(shape)]
        assert not unbounded, "\n".join(unbounded)
        lists = [s for s in shapes if "FROM parcels" in s.replace('"', "") and "limit" not in s.lower()]
        assert [shape for shape in lists if not re.search(r"WHERE .*\bid\b.* (=|IN) ", shape)] == []
