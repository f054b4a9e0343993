"""Large tables, many models, long files: the pages stay quick, and what is long is done whole."""

from __future__ import annotations

import time
from typing import Any, Literal

import pytest

from maniflex import Context, Model, Next, Server, field
from maniflex.admin import ModelAdmin
from maniflex.admin.tables import AdminEvent, AdminTransfer
from maniflex.admin.transfers.runner import InRequest
from tests.kit.cut_off import cut_off, expect_cut_off
from tests.kit.panel import Browser, runner_of, text_of, visiting
from tests.kit.warehouse import Depot, Parcel, extra_models, fill

MILLION = 1_000_000
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


async def seconds_of(browser: Browser, path: str, status: int = 200, **options: Any) -> float:
    """How long a page takes, the best of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        await browser.get(path, status, **options)
        times.append(time.perf_counter() - start)
    return min(times)


async def test_300_models_and_a_million_rows_have_quick_pages(database_url: str) -> None:
    server = Server()
    server.register(Depot, Parcel, *extra_models(298))
    server.admin()
    async with visiting(server, database_url) as browser:
        depot = await server.db(Depot).create(name="North")
        await fill(server, database_url, depot.id, MILLION)
        page = await browser.get("/parcels")
        assert "10,000+" in text_of(page)
        some_id = "000f0000-0000-7000-8000-000000000000"
        bars = {
            "/": 0.3,
            "/parcels": 0.3,
            "/parcels?last=1": 0.3,
            "/parcels?f_label=P0500000": 0.3,
            "/parcels?sort=label:desc": 0.3,
            "/parcels/new": 0.3,
            f"/parcels/{some_id}": 0.3,
            f"/parcels/{some_id}/edit": 0.3,
            f"/depots/{depot.id}": 0.5,
            f"/depots/{depot.id}/delete": 0.5,
        }
        times = {path: await seconds_of(browser, path) for path in bars}
        picker: dict[str, Any] = {"headers": {"x-fragment": "1"}}
        for text in ("P0500000", "P05", "nobody", ""):
            times[f"pick {text}"] = await seconds_of(browser, f"/-/pick/parcels?q={text}", **picker)
        assert {path: seconds for path, seconds in times.items() if seconds >= bars.get(path, 0.2)} == {}
        hits = (await browser.http.get("/admin/-/pick/parcels?q=", headers={"x-fragment": "1"})).json()
        assert len(hits) == 20
        assert "100+" in text_of(await browser.get(f"/depots/{depot.id}/delete"))


async def look(browser: Browser, place: str) -> str:
    return text_of(await browser.get(place))


class Errand(Model, versioned=True):
    title: str = field(filterable=True, sortable=True)
    state: Literal["open", "done"] = field(default="open", filterable=True)


async def test_10_000_records_are_changed_once_each(database_url: str) -> None:
    server = Server()
    server.register(Errand)
    server.admin()
    changed = 0

    @server.pipeline.db.middleware(models=[Errand], operations="update", at="after")
    async def kill(ctx: Context, next: Next) -> None:
        nonlocal changed
        await next()
        changed += 1
        if changed == 15_000:  # 10,000 of them were the look
            await cut_off()

    async with visiting(server, database_url) as browser:
        async with server.transaction():
            for n in range(10_000):
                await server.db(Errand).create(title=f"Errand {n:05}")
        await browser.get("/errands")
        controls = {"all": "1", "action": "set", "set.state": "done", "query": "f_state=open"}
        place = await browser.send("/errands/bulk", controls)
        transfers, transfer_id = server.db(AdminTransfer), place.rpartition("/")[2]
        await runner_of(server).perform(await transfers.read(transfer_id), InRequest())
        assert "would be updated 10,000" in await look(browser, place)
        assert await server.db(Errand).count({"state": "done"}) == 0
        await browser.send(f"{place}/start")
        await expect_cut_off(runner_of(server).perform(await transfers.read(transfer_id), InRequest()))
        half = await server.db(Errand).count({"state": "done"})
        assert 0 < half == (await transfers.read(transfer_id)).updated < 10_000
        await runner_of(server).perform(await transfers.read(transfer_id), InRequest())
        assert "updated 10,000" in await look(browser, place)
        assert await server.db(Errand).count({"state": "done"}) == 10_000
        assert (
            await server.db(AdminEvent).count({"action": "update", "actor_name": "ada@example.org"}) == 10_000
        )
        [row] = await server.raw_query("SELECT count(*) AS n FROM errand_histories WHERE version = 2")
        assert row["n"] == 10_000


class Line(Model):
    code: str = field(unique=True, min_length=2, filterable=True)
    stock: int = field(default=0, min=0)


async def test_a_file_of_100_000_lines_is_imported_whole(database_url: str) -> None:
    server = Server(max_body_size=64 << 20)
    server.register(Line)
    server.admin().add(ModelAdmin(Line, can_import=True))
    is_killing = True

    @server.pipeline.db.middleware(models=[Line], operations="create", at="after")
    async def kill(ctx: Context, next: Next) -> None:
        nonlocal is_killing
        await next()
        if is_killing and ctx.field("code") == "c50000" and transfer_phase[0] == "apply":
            is_killing = False
            await cut_off()

    transfer_phase = ["check"]
    bad_lines = {n * 2_700 for n in range(37)}
    lines = [f"c{n},{-1 if n in bad_lines else n}" for n in range(100_000)]
    async with visiting(server, database_url) as browser:
        await browser.get("/lines/import")
        content = "\r\n".join(["code,stock", *lines, ""]).encode()
        files = {"file": ("lines.csv", content)}
        place = await browser.send("/lines/import", {"step": "check"}, files=files)
        transfers, transfer_id = server.db(AdminTransfer), place.rpartition("/")[2]

        async def perform() -> None:
            await runner_of(server).perform(await transfers.read(transfer_id), InRequest())

        await perform()
        checked = await look(browser, place)
        assert "would be created 99,963" in checked
        assert "would be refused 37" in checked
        assert await server.db(Line).count() == 0
        await browser.send(f"{place}/start")
        transfer_phase[0] = "apply"
        await expect_cut_off(perform())
        assert 0 < await server.db(Line).count() < 99_963
        await perform()
        assert "created 99,963" in await look(browser, place)
        assert await server.db(Line).count() == 99_963
        refused = (await browser.http.get(f"/admin{place}/refusals")).text
        assert len(refused.splitlines()) == 38
        mended = refused.replace(",-1,", ",1,").encode()
        await browser.get("/lines/import")
        place = await browser.send(
            "/lines/import", {"step": "import"}, files={"file": ("mended.csv", mended)}
        )
        assert "created 37" in await look(browser, place)
        assert await server.db(Line).count() == 100_000
