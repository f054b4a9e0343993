"""A process is killed in the middle of an import: the next one finishes it, each line once."""

from __future__ import annotations

import csv
import io
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.processes import Served, serve_process
from tests.kit.waiting import PATIENCE, until

APP = """
import asyncio
from pathlib import Path

from maniflex import Model, Server, field
from maniflex.admin import ModelAdmin


class Line(Model, table="killed_import_lines", versioned=True):
    code: str = field(min_length=2, filterable=True)
    stock: int = field(default=0, min=0)


server = Server(DATABASE, path_prefix="/api", work_lease=1.0, lock_timeout=30)
server.register(Line)
server.admin(allow_unauthenticated=True).add(ModelAdmin(Line, can_import=True))


@server.pipeline.db.middleware(models=[Line], operations="create", at="after")
async def wait_half_way(ctx, next):
    await next()
    if ctx.field("code") == HALF and not Path("reached").exists():
        Path("reached").touch()
        await asyncio.Event().wait()  # in the open transaction of a batch, until the process is killed


@server.action("GET", "/tally")
async def tally(ctx):
    [lines] = await server.raw_query(
        "SELECT count(*) AS n, count(DISTINCT code) AS d FROM killed_import_lines"
    )
    [events] = await server.raw_query(
        "SELECT count(*) AS n, count(DISTINCT record_id) AS d FROM admin_event WHERE action = 'create'"
    )
    [past] = await server.raw_query("SELECT count(*) AS n FROM line_histories")
    return {
        "lines": [lines["n"], lines["d"]], "events": [events["n"], events["d"]], "versions": past["n"]
    }
"""
SMALL = (1_000, 7)
LARGE = (100_000, 37)


def file_of(count: int, bad_count: int) -> tuple[bytes, list[str]]:
    """A file, and the codes of its lines that are refused; they stand in both halves."""
    bad_lines = {n * (count // bad_count) for n in range(bad_count)}
    lines = [f"c{n:06},{-1 if n in bad_lines else n}" for n in range(count)]
    return "\r\n".join(["code,stock", *lines, ""]).encode(), [f"c{n:06}" for n in sorted(bad_lines)]


def begin(served: Served, content: bytes) -> str:
    """Send the file to be imported; the path of the page of the import."""
    with httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
        page = http.get("/admin/killed_import_lines/import").raise_for_status().text
        token = re.findall(r'name="_csrf" value="([0-9a-f]{64})"', page)[0]
        response = http.post(
            "/admin/killed_import_lines/import",
            data={"_csrf": token, "step": "import"},
            files={"file": ("lines.csv", content)},
        )
        assert response.status_code == 303, response.text
        return str(response.headers["location"])


def tally(served: Served) -> Any:
    return httpx.get(f"{served.url}/api/tally", timeout=PATIENCE).json()["data"]


def page_of(served: Served, place: str) -> str:
    return httpx.get(served.url + place, timeout=PATIENCE).text


@pytest.mark.parametrize(
    "size", [SMALL, pytest.param(LARGE, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_an_import_that_was_killed_half_way_is_finished(
    tmp_path: Path, database_url: str, size: tuple[int, int]
) -> None:
    count, bad_count = size
    created = count - bad_count
    content, refused_codes = file_of(count, bad_count)
    source = APP.replace("DATABASE", repr(database_url)).replace("HALF", repr(f"c{count // 2 + 1:06}"))
    (tmp_path / "app.py").write_text(source)
    patience = PATIENCE if size is SMALL else 1800.0
    with serve_process(tmp_path) as served:
        place = begin(served, content)
        until((tmp_path / "reached").exists, "half of the lines", patience)
        served.send(signal.SIGKILL)
        served.ended()
    with serve_process(tmp_path) as served:
        assert count // 3 < tally(served)["lines"][0] < created
        until(lambda: "data-over" in page_of(served, place), "the end of the import", patience)
        all_once = {"lines": [created, created], "events": [created, created], "versions": created}
        assert tally(served) == all_once
        refused = httpx.get(f"{served.url}{place}/refusals", timeout=PATIENCE).text
        rows = list(csv.DictReader(io.StringIO(refused)))
        assert [row["code"] for row in rows] == refused_codes
        assert all(row["_error"] for row in rows)
        mended = refused.replace(",-1,", ",1,").encode()
        begin(served, mended)
        until(lambda: tally(served)["lines"] == [count, count], "the mended lines", patience)
