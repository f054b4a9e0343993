"""Forms of actions: a value that refers to a record is looked up, as in the form of a record."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from maniflex import Context, DeclarationError, Model, Server, field
from maniflex.admin import AdminContext
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfers.runner import InRequest
from maniflex.middleware import auth
from tests.kit.panel import add_superuser, runner_of, text_of, visiting


class Agent(Model):
    name: str = field(filterable=True, sortable=True)


class Ticket(Model):
    title: str = field(filterable=True)
    agent_id: str | None = field(default=None, filterable=True)


class Note(Model):
    ticket_id: str
    agent_id: str
    text: str = field(alias="words")
    seen: bool = field(default=False, readonly=True)


class Urgency(StrEnum):
    LOW = "low"
    HIGH = "high"


@dataclass
class Handover:
    agent_id: str
    reviewer: Annotated[str | None, field(relation="Agent")] = None
    watchers: Annotated[list[str], field(relation=Agent)] | None = None
    ticket_id: Annotated[str, field(relation=None)] = ""
    urgency: Urgency = Urgency.LOW
    due: date | None = None
    call_at: datetime | None = None
    tags: list[str] | None = None


class Assign(BaseModel):
    agent_id: str = Field(min_length=10)
    reason: str = ""


def make_server(received: list[Any]) -> Server:
    server = Server()
    server.register(Agent, Ticket, Note)

    @server.action("POST", "/tickets/{id}/hand_over", request=Handover)
    async def hand_over(ctx: Context) -> None:
        if await ctx.db(Agent).count({"id": ctx.body.agent_id}) == 0:
            ctx.abort(422, "VALIDATION_FAILED", "no such agent")
        received.append(ctx.body)

    @server.action("POST", "/tickets/{id}/add_note", request=Note)
    async def add_note(ctx: Context) -> None:
        received.append(ctx.body)

    admin = server.admin()

    @admin.action(Ticket, label="Assign", on="records", form=Assign)
    async def assign(ctx: AdminContext, ids: Sequence[str]) -> str:
        for one in ids:
            await ctx.call("PATCH", f"/api/tickets/{one}", json={"agent_id": ctx.form.agent_id})
        return "assigned"

    return server


def controls_of(page: str) -> dict[str, str]:
    """The tags of the controls of a form, by name."""
    tags = re.findall(r"<(?:input|select|textarea)\b[^>]*\bname=\"f\.([a-z_]+)\"[^>]*>", page)
    return {
        name: next(t for t in re.findall(r"<[a-z]+\b[^>]*>", page) if f'name="f.{name}"' in t)
        for name in tags
    }


async def test_an_action_looks_up_the_records_that_it_refers_to(sqlite_url: str) -> None:
    received: list[Any] = []
    server = make_server(received)
    async with visiting(server, sqlite_url) as browser:
        ada, bob = [await server.db(Agent).create(name=name) for name in ("Ada Agent", "Bob Agent")]
        ticket = await server.db(Ticket).create(title="Printer")
        place = f"/tickets/{ticket.id}/action/hand_over"
        controls = controls_of(await browser.get(place))
        for name in ("agent_id", "reviewer", "watchers"):
            assert 'data-pick="/admin/-/pick/agents"' in controls[name], name
        assert "data-many" in controls["watchers"]
        assert "data-pick" not in controls["ticket_id"]
        assert 'type="date"' in controls["due"]
        assert controls["urgency"].startswith("<select")

        browser.http.cookies.set("maniflex_admin_zone", "Europe/Berlin")
        twice = await browser.post(place, {"f.agent_id": ada.id, "f.call_at": "2026-10-25T02:30"})
        assert (twice.status_code, 'name="fold.call_at"' in twice.text) == (422, True)
        wrong = await browser.post(place, {"f.agent_id": "nobody", "f.reviewer": bob.id})
        assert wrong.status_code == 422
        assert 'data-label="Bob Agent"' in wrong.text
        assert "no such agent" in text_of(wrong.text)

        values = {
            "f.agent_id": ada.id,
            "f.reviewer": bob.id,
            "f.watchers": f"{ada.id}\r\n{bob.id}",
            "f.urgency": "high",
            "f.due": "2026-03-01",
            "f.tags": "one\r\ntwo words",
            "f.call_at": "2026-10-25T02:30",
            "fold.call_at": "second",
        }
        await browser.send(place, values)
        assert received == [
            Handover(
                agent_id=ada.id,
                reviewer=bob.id,
                watchers=[ada.id, bob.id],
                urgency=Urgency.HIGH,
                due=date(2026, 3, 1),
                call_at=datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
                tags=["one", "two words"],
            )
        ]


async def test_an_action_that_takes_a_model_asks_for_what_its_form_asks_for(sqlite_url: str) -> None:
    received: list[Any] = []
    server = make_server(received)
    async with visiting(server, sqlite_url) as browser:
        ada = await server.db(Agent).create(name="Ada Agent")
        ticket = await server.db(Ticket).create(title="Printer")
        place = f"/tickets/{ticket.id}/action/add_note"
        controls = controls_of(await browser.get(place))
        assert set(controls) == {"ticket_id", "agent_id", "words"}
        assert 'data-pick="/admin/-/pick/tickets"' in controls["ticket_id"]
        await browser.send(place, {"f.ticket_id": ticket.id, "f.agent_id": ada.id, "f.words": "Hello"})
        assert [(one.agent_id, one.text) for one in received] == [(ada.id, "Hello")]


async def test_who_may_not_list_the_records_types_the_id(sqlite_url: str) -> None:
    server = make_server([])
    server.pipeline.auth.register(auth.require_role("boss"), models=[Agent], operations="list")
    async with visiting(server, sqlite_url, signed_in=False) as browser:
        await add_superuser(server)
        await add_superuser(server, "eve@example.org", roles=("superuser", "boss"))
        ticket = await server.db(Ticket).create(title="Printer")
        for email, may in (("ada@example.org", False), ("eve@example.org", True)):
            await browser.sign_in(email)
            controls = controls_of(await browser.get(f"/tickets/{ticket.id}/action/hand_over"))
            assert ("data-pick" in controls["agent_id"]) is may, email


@pytest.mark.parametrize("count", [2, 230])
async def test_an_action_on_many_records_looks_up_and_keeps_labels(sqlite_url: str, count: int) -> None:
    server = make_server([])
    async with visiting(server, sqlite_url) as browser:
        ada = await server.db(Agent).create(name="Ada Agent")
        async with server.transaction():
            for number in range(count):
                await server.db(Ticket).create(title=f"Ticket {number}")
        await browser.get("/tickets")
        chosen = {"action": "action:assign", "all": "1", "query": ""}
        page = (await browser.post("/tickets/bulk", chosen)).text
        assert 'data-pick="/admin/-/pick/agents"' in controls_of(page)["agent_id"]
        hidden = dict(re.findall(r'<input type="hidden" name="([a-z]+)" value="([^"]*)">', page))
        ids = re.findall(r'name="ids" value="([^"]*)"', page)
        sent = {**hidden, **({"ids": ids} if ids else {})}
        wrong = await browser.post("/tickets/bulk", {**sent, "f.agent_id": "short"})
        assert wrong.status_code == 422
        assert "at least 10 characters" in text_of(wrong.text)
        place = await browser.send("/tickets/bulk", {**sent, "f.agent_id": ada.id})
        if count > 200:
            transfer = await server.db(AdminTransfer).read(place.rpartition("/")[2])
            await runner_of(server).perform(transfer, InRequest())
        assert await server.db(Ticket).count({"agent_id": ada.id}) == count


def test_a_relation_of_an_action_to_no_model_stops_the_start(sqlite_url: str) -> None:
    @dataclass
    class Wrong:
        who: Annotated[str, field(relation="Agnet")]

    server = Server(sqlite_url)
    server.register(Agent, Ticket)
    admin = server.admin()

    @admin.action(Ticket, form=Wrong)
    async def blame(ctx: AdminContext, ids: Sequence[str]) -> str:
        return "blamed"

    @server.action("POST", "/tickets/{id}/shame", request=Wrong)
    async def shame(ctx: Context) -> None:
        pass

    with pytest.raises(DeclarationError) as refused:
        server.seal()
    text = str(refused.value)
    expected = "who: no model named 'Agnet' is registered; did you mean 'Agent'?"
    assert f"admin: action blame: form: {expected}" in text
    assert f"action POST /tickets/{{id}}/shame: request: {expected}" in text
