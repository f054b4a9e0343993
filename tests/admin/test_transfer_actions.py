"""Actions of the application on more records than fit into a request: batch by batch, each record once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel, Field

from maniflex import Operation, Server
from maniflex.admin import AdminContext
from maniflex.admin.tables import AdminEvent, AdminTransfer, AdminUser
from maniflex.errors import Conflict, Fatal
from tests.admin.test_transfer_bulk import Task, fill, look, make_server, perform
from tests.kit.panel import visiting

ALL = {"all": "1", "action": "action:close", "query": "f_state=open"}


class Words(BaseModel):
    """What the action is given."""

    note: str = Field(min_length=3)


class Killed(BaseException):
    """The end of a process, half way."""


class Closing:
    """A server with an action, and what it was called with."""

    def __init__(self) -> None:
        self.server: Server = make_server()
        self.calls: list[tuple[list[str], str, str]] = []
        self.kill_at = self.refuse_at = -1
        admin = self.server.declared_panel
        assert admin is not None

        @admin.action(
            Task,
            label="Close",
            on="records",
            confirm="Close {count} tasks?",
            operation=Operation.UPDATE,
            form=Words,
        )
        async def close(ctx: AdminContext, ids: Sequence[str]) -> str:
            for task_id in ids:
                await self.server.db(Task).update(task_id, state="done")
            self.calls.append((list(ids), ctx.form.note, ctx.auth.user_id if ctx.auth else ""))
            if len(self.calls) == self.kill_at:
                raise Killed
            if len(self.calls) == self.refuse_at:
                raise Conflict("these stay open")
            return "done"


async def begin(closing: Closing, browser: Any) -> str:
    await fill(closing.server, 450)
    await fill(closing.server, 5, state="done")
    await browser.get("/tasks")
    asked = await browser.post("/tasks/bulk", ALL)
    assert asked.status_code == 200
    assert "Close 450 tasks?" in asked.text
    short = await browser.post("/tasks/bulk", {**ALL, "confirm": "1", "f.note": "x"})
    assert short.status_code == 422
    assert "at least 3 characters" in short.text
    place: str = await browser.send("/tasks/bulk", {**ALL, "confirm": "1", "f.note": "too old"})
    return place


async def test_an_action_is_called_with_batches_and_each_record_once(database_url: str) -> None:
    closing = Closing()
    closing.kill_at = 2
    server = closing.server
    async with visiting(server, database_url) as browser:
        place = await begin(closing, browser)
        assert closing.calls == []
        with pytest.raises(Killed):
            await perform(server, place)
        half = await server.db(AdminTransfer).read(place.rpartition("/")[2])
        assert (half.position, await server.db(Task).count({"state": "done"})) == (200, 205)
        await perform(server, place)
        assert "updated 450 refused 0" in await look(browser, place)
        kept = [*closing.calls[:1], *closing.calls[2:]]  # what the killed call stored was rolled back
        ids = [one for call_ids, _, _ in kept for one in call_ids]
        assert len(ids) == len(set(ids)) == 450
        [user] = await server.db(AdminUser).list()
        assert {(note, person) for _, note, person in closing.calls} == {("too old", user.id)}
        reasons = [e.reason for e in await server.db(AdminEvent).list({"action": "action"})]
        assert sorted(reasons) == ["close (200)", "close (200)", "close (50)"]


async def test_a_batch_that_is_refused_is_listed_and_stores_nothing(sqlite_url: str) -> None:
    closing = Closing()
    closing.refuse_at = 2
    server = closing.server
    async with visiting(server, sqlite_url) as browser:
        place = await begin(closing, browser)
        await perform(server, place)
        page = await look(browser, place)
        assert "updated 250 refused 200" in page
        assert "these stay open" in page
        assert await server.db(Task).count({"state": "done"}) == 255


async def test_who_loses_the_role_is_stopped_and_few_are_done_at_once(sqlite_url: str) -> None:
    closing = Closing()
    server = closing.server
    async with visiting(server, sqlite_url) as browser:
        place = await begin(closing, browser)
        [user] = await server.db(AdminUser).list()
        await server.db(AdminUser).update(user.id, roles=["clerk"])
        with pytest.raises(Fatal):
            await perform(server, place)
        assert closing.calls == []
        await server.db(AdminUser).update(user.id, roles=["superuser"])
        few = {**ALL, "query": "f_state=done"}
        assert await browser.send("/tasks/bulk", {**few, "confirm": "1", "f.note": "again"}) == "/tasks"
        assert [len(ids) for ids, _, _ in closing.calls] == [5]
