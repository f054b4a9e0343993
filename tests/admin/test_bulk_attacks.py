"""Bulk changes under attack: ids of others, odd ids, forms sent at once, people who go half way."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Literal

import pytest

from maniflex import Context, Model, Next, Server, field
from maniflex.admin import ModelAdmin
from maniflex.admin.tables import AdminEvent, AdminTransfer, AdminUser
from maniflex.admin.transfers.runner import InRequest
from maniflex.errors import Fatal
from maniflex.middleware import db
from maniflex.testing import FakeClock
from tests.kit.panel import add_superuser, runner_of, text_of, visiting

ALL = {"all": "1", "action": "set", "set.state": "done", "query": "f_state=open", "confirm": "1"}


class Task(Model, versioned=True):
    tenant_id: str = field(default="", relation=None)
    title: str = field(filterable=True, sortable=True)
    state: Literal["open", "done"] = field(default="open", filterable=True)


def make_server(**options: Any) -> Server:
    server = Server(**options)
    server.register(Task)
    server.admin().add(ModelAdmin(Task, can_import=True))
    return server


async def fill(server: Server, count: int, **values: Any) -> list[str]:
    async with server.transaction():
        return [(await server.db(Task).create(title=f"Task {n:05}", **values)).id for n in range(count)]


async def test_ids_of_another_tenant_in_a_list_change_nothing(database_url: str) -> None:
    server = make_server()
    server.pipeline.db.register(db.tenancy())
    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, "ada@one.example", tenant_id="t1")
        await browser.sign_in("ada@one.example")
        own = await fill(server, 3, tenant_id="t1")
        theirs = [(await server.db(Task).create(title=f"foreign {n}", tenant_id="t2")).id for n in range(3)]
        await browser.get("/tasks")
        mixed = [own[0], theirs[0], own[1], theirs[1], theirs[2]]
        for action in ("set", "delete"):
            controls = {"ids": mixed, "action": action, "set.state": "done", "confirm": "1"}
            response = await browser.post("/tasks/bulk", controls)
            assert response.status_code in (200, 303), response.text[-500:]
            assert "foreign" not in response.text
            tasks = await server.db(Task).list([("id", "in", theirs)])
            assert [task.state for task in tasks] == ["open"] * 3
        assert await server.db(Task).count({"tenant_id": "t1"}) == 1  # of its own, two are deleted
        assert await server.db(AdminEvent).count([("record_id", "in", theirs)]) == 0


@pytest.mark.parametrize(
    "ids",
    [
        [""], ["x"], ["'; DROP TABLE tasks; --"], ["../../-/audit"], ["a\x00b"], [b"\xed\xa0\x80"],
        ["9" * 5000], [f"{n:08x}-0000-7000-8000-000000000000" for n in range(900)], ["*"], ["%"], ["1,2"],
    ],
    ids=["empty", "short", "sql", "path", "nul", "half", "long", "many", "star", "percent", "comma"],
)  # fmt: skip
async def test_odd_ids_are_refused_and_never_fail(sqlite_url: str, ids: list[Any]) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        [task_id] = await fill(server, 1)
        await browser.get("/tasks")
        for action in ("set", "delete", "export", "nothing"):
            controls = {"ids": ids, "action": action, "set.state": "done", "confirm": "1"}
            response = await browser.post("/tasks/bulk", controls)
            assert response.status_code < 500, (action, response.text[-800:])
        assert (await server.db(Task).read(task_id)).state == "open"


async def test_a_form_for_all_that_is_sent_at_once_changes_each_record_once(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        await fill(server, 120)
        await browser.get("/tasks")
        responses = await asyncio.gather(*(browser.post("/tasks/bulk", ALL) for _ in range(4)))
        assert {response.status_code for response in responses} <= {200, 303}
        assert await server.db(Task).count({"state": "done"}) == 120
        [row] = await server.raw_query("SELECT count(*) AS n FROM task_histories WHERE version > 1")
        assert row["n"] == 120


async def test_a_start_that_is_pressed_at_once_starts_one_run(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        await fill(server, 250)
        await browser.get("/tasks")
        place = await browser.send("/tasks/bulk", {**ALL, "confirm": ""})
        transfers, transfer_id = server.db(AdminTransfer), place.rpartition("/")[2]
        await runner_of(server).perform(await transfers.read(transfer_id), InRequest())
        before = await server.raw_query("SELECT count(*) AS n FROM workflow_run")
        await asyncio.gather(*(browser.post(f"{place}/start") for _ in range(4)))
        after = await server.raw_query("SELECT count(*) AS n FROM workflow_run")
        assert after[0]["n"] - before[0]["n"] == 1
        await runner_of(server).perform(await transfers.read(transfer_id), InRequest())
        assert "updated 250" in text_of(await browser.get(place))
        assert await server.db(AdminEvent).count({"action": "update"}) == 250


@pytest.mark.parametrize("what", ["disabled", "deleted"])
async def test_who_is_disabled_half_way_changes_no_more(database_url: str, what: str) -> None:
    clock = FakeClock()
    server = make_server(clock=clock)

    @server.pipeline.db.middleware(models=[Task], operations="update", at="after")
    async def remove_person(ctx: Context, next: Next) -> None:
        await next()
        for user in await server.db(AdminUser).list({"active": True}):
            if what == "disabled":
                await server.db(AdminUser).update(user.id, active=False)
            else:
                await server.db(AdminUser).delete(user.id)

    async with visiting(server, database_url) as browser:
        await fill(server, 450)
        await browser.get("/tasks")
        place = await browser.send("/tasks/bulk", ALL)
        transfer = await server.db(AdminTransfer).read(place.rpartition("/")[2])
        with pytest.raises(Fatal):
            await runner_of(server).perform(transfer, InRequest())
        changed = await server.db(Task).count({"state": "done"})
        assert 0 < changed <= 200
        clock.advance(timedelta(seconds=61))  # for a minute a session is not asked after
        for path in (f"{place}/continue", "/tasks/bulk"):
            response = await browser.post(path, ALL)
            assert response.status_code in (302, 303, 401, 403), path
            assert "/-/login" in response.headers.get("location", "/-/login"), path
        assert await server.db(Task).count({"state": "done"}) == changed
