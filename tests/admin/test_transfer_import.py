"""Import in the panel: every line a request of the person, each stored once, whatever happens half way."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import openpyxl
import pytest

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex.admin import ModelAdmin
from maniflex.admin.tables import (
    AdminEvent,
    AdminTransfer,
    AdminTransferPiece,
    AdminTransferRefusal,
    AdminUser,
)
from maniflex.admin.transfers.runner import InRequest, TransferRunner
from maniflex.errors import Fatal
from maniflex.middleware import auth, db
from maniflex.testing import FakeClock
from tests.kit.cut_off import cut_off, expect_cut_off
from tests.kit.panel import Browser, add_superuser, text_of, visiting

XSS = "<img src=x onerror=alert(1)>"


class Part(Model, versioned=True):
    tenant_id: str = field(default="", relation=None)
    code: str = field(unique=True, min_length=2, filterable=True)
    name: str = field(default="", max_length=40)
    stock: int = field(default=0, min=0)
    note: str | None = None
    pin: str | None = field(default=None, writeonly=True)


def make_server(**options: Any) -> Server:
    server = Server()
    server.register(Part)
    server.admin(**options).add(ModelAdmin(Part, can_import=True))
    return server


def csv_of(*lines: str, head: str = "code,name,stock") -> bytes:
    return "\r\n".join([head, *lines, ""]).encode()


async def send(browser: Browser, content: bytes, name: str = "parts.csv", **controls: str) -> str:
    """Send a file, and give where that leads."""
    await browser.get("/parts/import")
    return await browser.send("/parts/import", controls, files={"file": (name, content)})


async def result_of(browser: Browser, place: str) -> str:
    return text_of(await browser.get(place))


async def finish(server: Server, browser: Browser, place: str) -> str:
    """The page of a transfer that a worker has done."""
    transfer = await server.db(AdminTransfer).read(place.rpartition("/")[2])
    if transfer.run_id is not None:
        await server.work.wait(transfer.run_id, 60)
    return await result_of(browser, place)


async def test_a_file_is_mapped_checked_and_imported(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        lines = ["a1,Anvil,3", "x,Bolt,1", "c3,Cog,-1", f"d4,{XSS},2", "e5,Ear,many"]
        place = await send(browser, csv_of(*lines, head="Code,NAME,On stock"), f"{XSS}.csv")
        page = await browser.get(place)
        assert XSS not in page
        assert re.search(r'name="map.Code".*?value="code" selected', page, re.DOTALL)
        assert not re.search(r'name="map.On stock".{0,200}selected', page, re.DOTALL)
        transfer_id = place.rpartition("=")[2]
        controls = {"id": transfer_id, "map.On stock": "stock", "step": "check"}
        place = await browser.send("/parts/import", controls)
        checked = await result_of(browser, place)
        assert "would be created 2 would be updated 0 would stay as they are 0 would be refused 3" in checked
        assert '3 code field "code" must have at least 2 characters' in checked
        assert await server.db(Part).count() == 0
        assert await server.db(AdminEvent).count({"action": "create"}) == 0

        await browser.send(f"{place}/start")
        assert "created 2 updated 0 unchanged 0 refused 3" in await result_of(browser, place)
        assert {part.code for part in await server.db(Part).list()} == {"a1", "d4"}
        events = await server.db(AdminEvent).list({"action": "create"})
        assert len(events) == 2
        assert {event.actor_name for event in events} == {"ada@example.org"}
        assert await server.db(AdminEvent).count({"action": "import"}) == 1

        refused = await browser.http.get(f"/admin{place}/refusals")
        assert refused.headers["content-disposition"].startswith("attachment")
        assert refused.text.splitlines()[0] == "Code,NAME,On stock,_error"
        assert len(refused.text.splitlines()) == 4
        mended = refused.text.replace("x,Bolt", "b2,Bolt").replace("-1", "1").replace("many", "5")
        place = await send(browser, mended.encode(), "mended.csv", step="import")
        assert "created 3 updated 0 unchanged 0 refused 0" in await result_of(browser, place)
        assert await server.db(Part).count() == 5  # the map of "On stock" was remembered
        assert {p.stock for p in await server.db(Part).list()} == {1, 2, 3, 5}


async def test_the_same_file_twice_changes_nothing(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        content = csv_of("a1,Anvil,3,", "b2,Bolt,1,old", head="code,name,stock,note")
        place = await send(browser, content, step="import", upsert="code")
        assert "created 2 updated 0 unchanged 0 refused 0" in await result_of(browser, place)
        place = await send(browser, content, step="import", upsert="code")
        assert "created 0 updated 0 unchanged 2 refused 0" in await result_of(browser, place)
        changed = csv_of("a1,Anvil,4,", "b2,Bolt,1,", "b2,Bolt,2,x", head="code,name,stock,note")
        place = await send(browser, changed, step="check", upsert="code")
        assert "would be updated 3" in await result_of(browser, place)
        place = await send(browser, changed, step="import", upsert="code")
        assert "created 0 updated 3 unchanged 0 refused 0" in await result_of(browser, place)
        parts = {part.code: part for part in await server.db(Part).list()}
        assert (parts["a1"].stock, parts["b2"].stock, parts["b2"].note) == (4, 2, "x")
        without_key = await send(browser, content)
        place = await browser.send("/parts/import", {"id": without_key.rpartition("=")[2], "step": "check"})
        assert "would be refused 2" in await result_of(browser, place)
        assert "This file was imported on" in text_of(await browser.get(without_key))


async def test_a_value_that_comes_twice_is_found_by_the_check(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        place = await send(browser, csv_of("a1,Anvil,3", "b2,B,1", "a1,Again,1"), step="check")
        assert "4 code line 2 has the same value" in await result_of(browser, place)


async def test_an_import_that_was_killed_goes_on_without_doubles(database_url: str) -> None:
    server = make_server()
    kill_at = ["p0250"]

    @server.pipeline.db.middleware(models=[Part], operations="create", at="after")
    async def kill(ctx: Context, next: Next) -> None:
        await next()
        if ctx.field("code") in kill_at:
            kill_at.clear()
            await cut_off()

    async with visiting(server, database_url) as browser:
        lines = [f"p{n:04},Part,{n}" for n in range(450)] + ["x,bad,1", "q1,Part,1"]
        place = await send(browser, csv_of(*lines), step="import")
        transfer = await server.db(AdminTransfer).read(place.rpartition("/")[2])
        assert transfer.phase == "apply"
        assert transfer.run_id is not None
        admin = server.declared_panel
        assert admin is not None
        runner: TransferRunner = admin.transfer_handler.__self__  # type: ignore[attr-defined]
        await expect_cut_off(runner.perform(transfer, InRequest()))
        half = await server.db(AdminTransfer).read(transfer.id)
        assert half.position == half.created == await server.db(Part).count() > 0
        again = await server.db(AdminTransfer).read(transfer.id)
        await runner.perform(again, InRequest())
        assert "created 451 updated 0 unchanged 0 refused 1" in await result_of(browser, place)
        assert await server.db(Part).count() == 451
        events = await server.db(AdminEvent).list({"action": "create"})
        assert len({event.record_id for event in events}) == len(events) == 451
        [versions] = await server.raw_query("SELECT count(*) AS n FROM part_histories")
        assert versions["n"] == 451
        assert (await browser.http.get(f"/admin{place}/refusals")).text.splitlines()[1].startswith("x,bad,1,")


async def test_two_workers_cannot_do_one_import(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        place = await send(browser, csv_of(*(f"p{n:04},Part,{n}" for n in range(300))), step="import")
        admin = server.declared_panel
        assert admin is not None
        runner: TransferRunner = admin.transfer_handler.__self__  # type: ignore[attr-defined]
        first, second = [await server.db(AdminTransfer).read(place.rpartition("/")[2]) for _ in range(2)]
        results = await asyncio.gather(
            runner.perform(first, InRequest()), runner.perform(second, InRequest()), return_exceptions=True
        )
        assert sum(result is None for result in results) >= 1
        assert await server.db(Part).count() == 300


async def test_a_durable_import_is_worked_on_and_can_be_cancelled(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url, background=True) as browser:
        place = await send(browser, csv_of(*(f"p{n:04},Part,{n}" for n in range(300))), step="check")
        assert "would be created 300" in await finish(server, browser, place)
        await browser.send(f"{place}/start")
        assert "created 300" in await finish(server, browser, place)
        assert (await browser.post(f"{place}/start")).status_code == 409
        listed = text_of(await browser.get("/-/transfers"))
        assert "parts.csv" in listed


async def test_a_cancelled_import_goes_on_where_it_stopped(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        place = await send(browser, csv_of(*(f"p{n:04},Part,{n}" for n in range(300))), step="import")
        assert "Waits for a worker." in await result_of(browser, place)
        await browser.send(f"{place}/cancel")
        assert "Cancelled." in await result_of(browser, place)
        await browser.send(f"{place}/continue")
        assert "Waits for a worker." in await result_of(browser, place)


async def test_who_loses_the_role_half_way_is_stopped(database_url: str) -> None:
    server = make_server()

    @server.pipeline.db.middleware(models=[Part], operations="create", at="after")
    async def take_role(ctx: Context, next: Next) -> None:
        await next()
        if ctx.field("code") == "p0010":
            [user] = await server.db(AdminUser).list()
            await server.db(AdminUser).update(user.id, roles=["reader"])

    async with visiting(server, database_url) as browser:
        place = await send(browser, csv_of(*(f"p{n:04},Part,{n}" for n in range(600))), step="import")
        transfer = await server.db(AdminTransfer).read(place.rpartition("/")[2])
        admin = server.declared_panel
        assert admin is not None
        with pytest.raises(Fatal, match="may not enter"):
            await admin.transfer_handler.__self__.perform(transfer, InRequest())  # type: ignore[attr-defined]
        stopped = await server.db(AdminTransfer).read(transfer.id)
        assert 10 < stopped.position <= 200
        assert "may not enter" in stopped.message
        assert await server.db(Part).count() == stopped.position


async def test_rules_of_the_api_bind_every_line(database_url: str) -> None:
    server = make_server()
    server.pipeline.db.register(db.tenancy())
    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, "ada@one.example", tenant_id="t1")
        await add_superuser(server, "bob@two.example", tenant_id="t2")
        await server.db(Part).create(code="b2", name="theirs", tenant_id="t2")
        await browser.sign_in("ada@one.example")
        place = await send(browser, csv_of("a1,Anvil,3", "b2,Mine,1"), step="import", upsert="code")
        page = await browser.get(place)
        assert "created 1 updated 0 unchanged 0 refused 1" in text_of(page)
        assert "theirs" not in page
        rows = {part.code: (part.name, part.tenant_id) for part in await server.db(Part).list()}
        assert rows == {"a1": ("Anvil", "t1"), "b2": ("theirs", "t2")}
        browser.http.cookies.clear()
        await browser.sign_in("bob@two.example")
        for path in (place, f"{place}/refusals", f"/parts/import?id={place.rpartition('/')[2]}"):
            await browser.get(path, 404)
        for action in ("start", "cancel", "continue"):
            assert (await browser.post(f"{place}/{action}")).status_code == 404
        forged = {"id": place.rpartition("/")[2], "step": "import"}
        assert (await browser.post("/parts/import", forged)).status_code == 404
        assert "parts.csv" not in await browser.get("/-/transfers")


async def test_secrets_of_a_file_are_on_no_page(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        content = csv_of("a1,SECRET-1", "b,SECRET-2", head="code,pin")
        place = await send(browser, content)
        pages = [await browser.get(place)]
        place = await browser.send("/parts/import", {"id": place.rpartition("=")[2], "step": "check"})
        pages.append(await browser.get(place))
        await browser.send(f"{place}/start")
        pages += [await browser.get(place), await browser.get("/-/transfers"), await browser.get("/-/audit")]
        assert not any("SECRET" in page for page in pages)
        [part] = await server.db(Part).list()
        assert part.pin == "SECRET-1"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("parts.pdf", b"%PDF", "ends with .csv, .jsonl or .xlsx"),
        ("parts.csv", b"", "is empty"),
        ("parts.csv", b"\n\n", "no line with the names"),
        ("parts.csv", b"code,code\na,b\n", "two columns are called"),
        ("parts.csv", b"\xff\xfe\x00\xd8", "first line cannot be read"),
        ("parts.xlsx", b"PK\x03\x04nonsense", "no xlsx file"),
        ("parts.csv", b"foo,bar\n1,2\n", "no column is mapped"),
    ],
)
async def test_a_file_that_is_none_is_refused_in_one_sentence(
    sqlite_url: str, name: str, content: bytes, message: str
) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        await browser.get("/parts/import")
        controls = {"step": "check"}
        answer = await browser.post("/parts/import", controls, files={"file": (name, content)})
        assert answer.status_code == 422, answer.text[-500:]
        assert message in text_of(answer.text)


def workbook(rows: Sequence[Sequence[Any]]) -> bytes:
    book, out = openpyxl.Workbook(), io.BytesIO()
    assert book.active is not None
    for row in rows:
        book.active.append(list(row))
    book.save(out)
    return out.getvalue()


async def test_jsonl_and_xlsx_are_read_too(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        lines = b'{"code": "a1", "stock": 3, "note": null}\n{"code": "b2", "stock": "x"}\nnonsense\n'
        place = await send(browser, lines, "parts.jsonl", step="import", upsert="code")
        assert "created 1 updated 0 unchanged 0 refused 2" in await result_of(browser, place)
        refused = (await browser.http.get(f"/admin{place}/refusals")).text
        assert '"_error": "stock: ' in refused
        sheet = workbook(
            [["code", "name", "stock"], ["c3", 12345, 7], ["d4", "x", "=1+1"], [], ["e5", "y", 2.0]]
        )
        place = await send(browser, sheet, "parts.xlsx", step="import", upsert="code")
        page = await result_of(browser, place)
        assert "created 2 updated 0 unchanged 0 refused 1" in page
        assert "3 cell C3 is a formula" in page
        parts = {part.code: part for part in await server.db(Part).list()}
        assert (parts["c3"].name, parts["c3"].stock, parts["e5"].stock) == ("12345", 7, 2)


async def test_an_export_is_imported_without_a_change(sqlite_url: str) -> None:
    class Thing(Model, export=True):
        code: str = field(unique=True)
        note: str | None = None
        price: float = 0.5

    server = Server()
    server.register(Thing)
    server.admin().add(ModelAdmin(Thing, can_import=True))
    async with visiting(server, sqlite_url) as browser:
        for code, note in (("=1+1", None), ("+49 30", ""), ("plain", "@you\nline"), ("'q", "-")):
            await server.db(Thing).create(code=code, note=note)
        for kind in ("csv", "jsonl", "xlsx"):
            exported = await browser.http.get(f"/admin/things/export?format={kind}")
            await browser.get("/things/import")
            files = {"file": (f"things.{kind}", exported.content)}
            place = await browser.send("/things/import", {"step": "import", "upsert": "code"}, files=files)
            assert "created 0 updated 0 unchanged 4 refused 0" in await result_of(browser, place)


async def test_what_is_not_offered_cannot_be_forged(sqlite_url: str) -> None:
    server = make_server(read_only=True)
    async with visiting(server, sqlite_url) as browser:
        for path in ("/parts/import", "/-/transfers", "/-/transfers/x"):
            await browser.get(path, 404)
        for path in ("/parts/import", "/parts/export", "/-/transfers/x/start", "/-/transfers/x/cancel"):
            assert (await browser.post(path)).status_code == 404
    closed = Server()
    closed.register(Part)
    closed.admin()
    async with visiting(closed, ":memory:") as browser:
        assert "/parts/import" not in await browser.get("/parts")
        await browser.get("/parts/import", 404)
        assert (await browser.post("/parts/import", files={"file": ("a.csv", b"x")})).status_code == 404
    guarded = make_server()
    guarded.pipeline.auth.register(auth.require_role("boss"), models=[Part], operations="create")
    async with visiting(guarded, ":memory:") as browser:
        await browser.get("/parts/import", 404)


async def test_what_is_old_is_removed_with_its_file(database_url: str) -> None:
    server = make_server()
    clock = FakeClock()
    async with visiting(server, database_url, clock=clock) as browser:
        place = await send(browser, csv_of("a1,A,1", "x,B,1"), step="import")
        clock.advance(timedelta(hours=25))
        await browser.sign_in()
        await browser.get(place, 404)
        await send(browser, csv_of("c1,C,1"))
        assert await server.db(AdminTransfer).count() == 1
        assert await server.db(AdminTransferPiece).count() == 1
        assert await server.db(AdminTransferRefusal).count() == 0


async def test_an_open_panel_and_a_login_of_the_application_import_too(sqlite_url: str) -> None:
    async def login(ctx: Context, username: str, password: str) -> AuthInfo | None:
        return AuthInfo(user_id="u1", roles=["superuser"])

    server = make_server(auth=login)
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await browser.sign_in("somebody")
        place = await send(browser, csv_of("a1,A,1"), step="import")
        assert "created 1" in await result_of(browser, place)
