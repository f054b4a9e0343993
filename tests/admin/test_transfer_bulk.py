"""All records that match, more than fit into a request; exports that are larger than allowed."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from maniflex import Context, Model, Next, Server, WithDeletedAt, field
from maniflex.admin import ModelAdmin
from maniflex.admin.tables import AdminEvent, AdminTransfer, AdminUser
from maniflex.admin.transfers.runner import InRequest
from maniflex.errors import Fatal
from maniflex.middleware import auth, db
from tests.kit.cut_off import cut_off, expect_cut_off
from tests.kit.panel import Browser, add_superuser, runner_of, text_of, visiting

SET = {"all": "1", "action": "set", "set.state": "done", "query": "f_state=open"}


class Task(Model, WithDeletedAt, versioned=True, restore=True, export=True, max_export_rows=100):
    tenant_id: str = field(default="", relation=None)
    title: str = field(filterable=True, sortable=True)
    state: Literal["open", "done"] = field(default="open", filterable=True)
    secret: str | None = field(default=None, hidden=True)


def make_server(**options: Any) -> Server:
    server = Server()
    server.register(Task)
    server.admin(**options).add(ModelAdmin(Task))
    return server


async def fill(server: Server, count: int, **values: Any) -> None:
    async with server.transaction():
        for n in range(count):
            await server.db(Task).create(title=f"Task {n:05}", **values)


async def perform(server: Server, place: str) -> AdminTransfer:
    transfer = await server.db(AdminTransfer).read(place.rpartition("/")[2])
    await runner_of(server).perform(transfer, InRequest())
    return transfer


async def look(browser: Browser, place: str) -> str:
    return text_of(await browser.get(place))


async def test_all_that_match_are_changed_in_the_background(database_url: str) -> None:
    server = make_server()

    @server.pipeline.service.middleware(models=[Task], operations="update")
    async def refuse(ctx: Context, next: Next) -> None:
        task = await ctx.db(Task).read(ctx.resource_id)
        if task.title == "Task 00250":
            ctx.abort(403, "FORBIDDEN", "not this one")
        await next()

    async with visiting(server, database_url) as browser:
        await fill(server, 300)
        await fill(server, 5, state="done")
        await browser.get("/tasks")
        place = await browser.send("/tasks/bulk", SET)
        assert "Waits for a worker." in await look(browser, place)
        await perform(server, place)
        page = await look(browser, place)
        assert "would be updated 299 would be refused 1" in page
        assert "not this one" in page
        assert await server.db(Task).count({"state": "done"}) == 5
        assert await server.db(AdminEvent).count({"action": "update"}) == 0
        await browser.send(f"{place}/start")
        await perform(server, place)
        assert "updated 299 refused 1" in await look(browser, place)
        assert await server.db(Task).count({"state": "done"}) == 304
        events = await server.db(AdminEvent).list({"action": "update"})
        assert len({event.record_id for event in events}) == len(events) == 299
        assert {event.actor_name for event in events} == {"ada@example.org"}
        [row] = await server.raw_query("SELECT count(*) AS n FROM task_histories WHERE version = 2")
        assert row["n"] == 299
        lines = (await browser.http.get(f"/admin{place}/refusals")).text.splitlines()
        assert lines[0] == "id,field,message"
        assert len(lines) == 2


async def test_a_change_that_was_killed_goes_on_and_changes_each_record_once(database_url: str) -> None:
    server = make_server()
    kill_at = ["Task 00300"]

    @server.pipeline.db.middleware(models=[Task], operations="delete", at="after")
    async def kill(ctx: Context, next: Next) -> None:
        await next()
        if kill_at and await ctx.db(Task).count() <= 200:
            kill_at.clear()
            await cut_off()

    async with visiting(server, database_url) as browser:
        await fill(server, 450)
        await browser.get("/tasks")
        place = await browser.send("/tasks/bulk", {"all": "1", "action": "delete", "confirm": "1"})
        await perform(server, place)  # the look, which no delete of so many goes without
        assert "Delete 450 records" in await look(browser, place)
        for typed in ({}, {"typed": "449"}):
            await browser.send(f"{place}/start", typed)
            assert "Nothing was deleted" in await look(browser, place)
        assert await server.db(Task).count() == 450
        await browser.send(f"{place}/start", {"typed": "450"})
        await expect_cut_off(perform(server, place))
        half = await server.db(AdminTransfer).read(place.rpartition("/")[2])
        assert half.position == half.updated == 450 - await server.db(Task).count() > 0
        await perform(server, place)
        assert await server.db(Task).count() == 0
        events = await server.db(AdminEvent).list({"action": "delete"})
        assert len({event.record_id for event in events}) == len(events) == 450
        place = await browser.send(
            "/tasks/bulk", {"all": "1", "action": "restore", "query": "trash=1", "confirm": "1"}
        )
        await perform(server, place)
        assert await server.db(Task).count() == 450


@pytest.mark.parametrize("what", ["panel", "operation"])
async def test_who_loses_the_role_half_way_is_stopped(database_url: str, what: str) -> None:
    server = make_server()
    if what == "operation":
        server.pipeline.auth.register(auth.require_role("boss"), models=[Task], operations="update")

    @server.pipeline.db.middleware(models=[Task], operations="update", at="after")
    async def take_role(ctx: Context, next: Next) -> None:
        await next()
        [user] = await server.db(AdminUser).list()
        roles = ["boss"] if what == "panel" else ["superuser"]
        if user.roles != roles:
            await server.db(AdminUser).update(user.id, roles=roles)

    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, roles=("superuser", "boss"))
        await browser.sign_in()
        await fill(server, 450)
        await browser.get("/tasks")
        place = await browser.send("/tasks/bulk", {**SET, "confirm": "1"})
        with pytest.raises(Fatal, match="any more"):
            await perform(server, place)
        changed = await server.db(Task).count({"state": "done"})
        assert 0 < changed <= 200
        stopped = await server.db(AdminTransfer).read(place.rpartition("/")[2])
        assert (stopped.position, "any more" in stopped.message) == (changed, True)


async def test_records_of_another_tenant_are_never_among_them(database_url: str) -> None:
    server = make_server()
    server.pipeline.db.register(db.tenancy())
    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, "ada@one.example", tenant_id="t1")
        await add_superuser(server, "bob@two.example", tenant_id="t2")
        await fill(server, 210, tenant_id="t1")
        await fill(server, 210, tenant_id="t2")
        await browser.sign_in("ada@one.example")
        place = await browser.send("/tasks/bulk", {**SET, "confirm": "1"})
        transfer = await perform(server, place)
        assert (transfer.updated, transfer.refused) == (210, 0)
        assert await server.db(Task).count({"tenant_id": "t2", "state": "done"}) == 0
        browser.http.cookies.clear()
        await browser.sign_in("bob@two.example")
        await browser.get(place, 404)


async def test_a_panel_exports_what_the_api_exports(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        await fill(server, 30)
        await fill(server, 5, state="done", secret="SECRET-1")
        for kind in ("csv", "jsonl"):
            own = await browser.http.get(
                f"/admin/tasks/export?format={kind}&f_state=done&sort=title:desc&columns=title,state"
            )
            query = f"format={kind}&filter=state:eq:done&sort=title:desc&select=title,state"
            api = await browser.http.get(f"/api/tasks/export?{query}")
            assert own.content == api.content
            assert len(own.text.splitlines()) == (6 if kind == "csv" else 5)
            assert "SECRET" not in own.text
        page = await browser.get("/tasks?f_state=done&columns=title")
        assert "format=jsonl" in page
        assert "columns=title&amp;format=csv" in page


async def test_an_export_that_is_too_large_is_made_in_the_background(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        await fill(server, 150)
        page = await browser.get("/tasks/export?format=csv&columns=title&sort=title:asc", 413)
        assert "Make the file in the background" in text_of(page)
        controls = {"format": "csv", "query": "format=csv&columns=title&sort=title:asc"}
        place = await browser.send("/tasks/export", controls)
        await browser.get(f"{place}/file", 404)
        await perform(server, place)
        assert "Download the file" in await look(browser, place)
        file = await browser.http.get(f"/admin{place}/file")
        lines = file.text.splitlines()
        assert (lines[0], lines[1], lines[-1]) == ("title", "Task 00000", "Task 00149")
        assert len(lines) == 151
        assert file.headers["content-disposition"].startswith('attachment; filename="tasks-')
        refused = await browser.http.get("/api/tasks/export")
        assert refused.status_code == 413  # the limit of the API stands


async def test_a_large_export_is_nobody_elses(database_url: str) -> None:
    server = make_server()
    server.pipeline.db.register(db.tenancy())
    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, "ada@one.example", tenant_id="t1")
        await add_superuser(server, "eve@one.example", tenant_id="t1")
        await fill(server, 120, tenant_id="t1")
        await fill(server, 120, tenant_id="t2")
        await browser.sign_in("ada@one.example")
        place = await browser.send("/tasks/export", {"format": "jsonl", "query": ""})
        await perform(server, place)
        assert len((await browser.http.get(f"/admin{place}/file")).text.splitlines()) == 120
        browser.http.cookies.clear()
        await browser.sign_in("eve@one.example")
        for path in (place, f"{place}/file"):
            await browser.get(path, 404)
