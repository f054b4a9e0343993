"""Setting a field of many records: the page asks for what the field can be, and says what it would do."""

from __future__ import annotations

import html
import re
from datetime import UTC, date, datetime
from typing import Literal

from maniflex import Context, Model, Next, Server, WithDeletedAt, field
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfers.runner import InRequest
from maniflex.middleware import workflow
from tests.kit.panel import Browser, runner_of, text_of, visiting

Status = Literal["open", "pending", "closed", "merged", "spam"]


class Agent(Model):
    name: str = field(filterable=True, sortable=True)


class Ticket(Model, WithDeletedAt, restore=True):
    title: str = field(filterable=True, sortable=True)
    agent_id: str | None = field(default=None, filterable=True)
    status: Status = field(default="open", filterable=True)
    note: str | None = None
    is_urgent: bool = False
    due_on: date | None = None
    call_at: datetime | None = None


def make_server() -> Server:
    server = Server()
    server.register(Agent, Ticket)
    server.pipeline.validate.register(
        workflow.machine(
            "status",
            workflow.allow("open", "pending"),
            workflow.allow("pending", "closed"),
            workflow.allow("open", "spam"),
            workflow.allow("merged", "closed"),
        ),
        models=[Ticket],
    )
    server.admin()
    return server


def hidden_of(page: str) -> dict[str, list[str]]:
    """What a form keeps without showing it."""
    controls: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([a-z._]+)" value="([^"]*)">', page):
        controls.setdefault(name, []).append(html.unescape(value))
    return {name: values for name, values in controls.items() if name != "_csrf"}


def states_of(page: str) -> set[str]:
    return set(re.findall(r'name="set.status" value="([a-z]*)"', page))


async def ask(browser: Browser, field_name: str, *ids: str, query: str = "") -> str:
    """The page that asks for the value of a field, of these records or of all that match."""
    await browser.get("/tickets")
    chosen = {"ids": list(ids)} if ids else {"all": "1"}
    controls = {"action": "set", "field": field_name, "query": query, **chosen}
    return (await browser.post("/tickets/bulk", controls)).text


async def test_only_states_are_offered_that_can_follow_for_the_chosen_records(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        ids = {
            status: (await server.db(Ticket).create(title=f"A {status} one", status=status)).id
            for status in ("open", "pending", "closed", "merged")
        }
        assert states_of(await ask(browser, "status", ids["open"])) == {"pending", "spam"}
        assert states_of(await ask(browser, "status", ids["pending"], ids["merged"])) == {"closed"}
        assert states_of(await ask(browser, "status", query="f_status=open")) == {"pending", "spam"}
        none = await ask(browser, "status", ids["closed"])
        assert "no other state can follow" in text_of(none)

        page = await ask(browser, "status", ids["open"], ids["pending"])
        assert states_of(page) == {"pending", "spam", "closed"}
        empty = await browser.post("/tickets/bulk", hidden_of(page))
        assert (empty.status_code, "required" in text_of(empty.text)) == (422, True)
        look = (await browser.post("/tickets/bulk", {**hidden_of(page), "set.status": "closed"})).text
        assert "1 record would change, 1 would not" in text_of(look)
        assert f'<a href="/admin/tickets/{ids["open"]}" title="{ids["open"]}">A open one</a>' in look
        assert "open" in text_of(look)
        await browser.post("/tickets/bulk", hidden_of(look))
        tickets = {one.id: one.status for one in await server.db(Ticket).list()}
        assert (tickets[ids["open"]], tickets[ids["pending"]]) == ("open", "closed")


async def test_a_record_to_refer_to_is_looked_up_and_called_by_its_label(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        ada = await server.db(Agent).create(name="Ada Agent")
        ids = [(await server.db(Ticket).create(title=f"Ticket {n}")).id for n in range(3)]
        page = await ask(browser, "agent_id", *ids[:2], query="f_status=open&sort=title:asc")
        assert re.search(r'name="set.agent_id"[^>]*data-pick="/admin/-/pick/agents"', page)
        look = (await browser.post("/tickets/bulk", {**hidden_of(page), "set.agent_id": ada.id})).text
        assert "Set Agent to Ada Agent?" in text_of(look)
        assert ada.id not in text_of(look)
        place = await browser.send("/tickets/bulk", hidden_of(look))
        assert place == "/tickets?f_status=open&sort=title%3Aasc"
        assert await server.db(Ticket).count({"agent_id": ada.id}) == 2
        page = await ask(browser, "agent_id", *ids)
        look = (await browser.post("/tickets/bulk", {**hidden_of(page), "set.agent_id": ""})).text
        assert "Set Agent to null?" in text_of(look)
        await browser.send("/tickets/bulk", hidden_of(look))
        assert await server.db(Ticket).count({"agent_id": ada.id}) == 0


async def test_every_kind_of_value_is_typed_as_in_the_form_of_a_record(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        ticket = await server.db(Ticket).create(title="Ticket", is_urgent=True, note="x")
        for name, typed, expected in (
            ("is_urgent", {"set.is_urgent": "false"}, False),
            ("is_urgent", {"set.is_urgent": "true"}, True),
            ("due_on", {"set.due_on": "2026-03-01"}, date(2026, 3, 1)),
            ("due_on", {"set.due_on": ""}, None),
            ("call_at", {"set.call_at": "2026-03-01T10:30"}, datetime(2026, 3, 1, 10, 30, tzinfo=UTC)),
            ("note", {"set.note": ""}, ""),
            ("note", {"set.note": "", "null.set.note": "1"}, None),
        ):
            page = await ask(browser, name, ticket.id)
            look = (await browser.post("/tickets/bulk", {**hidden_of(page), **typed})).text
            await browser.send("/tickets/bulk", hidden_of(look))
            assert getattr(await server.db(Ticket).read(ticket.id), name) == expected, (name, typed)


async def test_a_time_that_there_is_twice_is_asked_about(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        ticket = await server.db(Ticket).create(title="Ticket")
        browser.http.cookies.set("maniflex_admin_zone", "Europe/Berlin")
        page = await ask(browser, "call_at", ticket.id)
        assert "Europe/Berlin" in page
        typed = {**hidden_of(page), "set.call_at": "2026-10-25T02:30"}
        twice = await browser.post("/tickets/bulk", typed)
        assert twice.status_code == 422
        assert 'name="fold.set.call_at"' in twice.text
        look = (await browser.post("/tickets/bulk", {**typed, "fold.set.call_at": "second"})).text
        await browser.send("/tickets/bulk", hidden_of(look))
        assert (await server.db(Ticket).read(ticket.id)).call_at == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)


async def test_many_in_the_background_are_asked_for_and_refused_by_their_labels(database_url: str) -> None:
    server = make_server()

    @server.pipeline.service.middleware(models=[Ticket], operations="update")
    async def refuse(ctx: Context, next: Next) -> None:
        ticket = await ctx.db(Ticket).read(ctx.resource_id)
        if ticket.title == "Ticket 7":
            ctx.abort(403, "FORBIDDEN", "not this one")
        await next()

    async with visiting(server, database_url) as browser:
        ada = await server.db(Agent).create(name="Ada Agent")
        async with server.transaction():
            for number in range(230):
                await server.db(Ticket).create(title=f"Ticket {number}")
        page = await ask(browser, "status")
        assert states_of(page) == {"pending", "spam", "closed"}
        page = await ask(browser, "agent_id")
        place = await browser.send("/tickets/bulk", {**hidden_of(page), "set.agent_id": ada.id})
        transfer = await server.db(AdminTransfer).read(place.rpartition("/")[2])
        await runner_of(server).perform(transfer, InRequest())
        shown = text_of(await browser.get(place))
        assert "Set Agent to Ada Agent." in shown
        assert "Ticket 7 not this one" in shown
