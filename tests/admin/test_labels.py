"""Records are called by their labels everywhere, and forms offer only states that can follow."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal

from maniflex import AuthInfo, Context, Model, Run, Server, WithDeletedAt, field, has_many
from maniflex.admin import Inline, ModelAdmin
from maniflex.background.outbox.message import Message
from maniflex.middleware import workflow
from tests.kit.panel import text_of, visiting

Status = Literal["open", "pending", "closed", "merged", "spam"]


class Agent(Model):
    name: str = field(filterable=True, sortable=True)


class Ticket(Model, versioned=True):
    title: str = field(filterable=True, min_length=3)
    agent_id: str = field(filterable=True)
    status: Status = field(default="open", filterable=True)
    replies: list[Reply] = has_many()


class Reply(Model):
    ticket_id: str = field(filterable=True)
    agent_id: str = field(filterable=True)
    text: str = field(min_length=3)


def make_server(url: str) -> Server:
    server = Server(url)
    server.register(Agent, Ticket, Reply)
    server.pipeline.validate.register(
        workflow.machine(
            "status",
            workflow.allow_initial("open", "spam"),
            workflow.allow("open", "pending"),
            workflow.allow("pending", "closed"),
            workflow.allow("*", "spam"),
        ),
        models=[Ticket],
    )
    admin = server.admin()
    admin.add(ModelAdmin(Ticket, inlines=(Inline(Reply, columns=("agent_id", "text")),)))
    return server


async def test_history_calls_records_by_their_labels(sqlite_url: str) -> None:
    server = make_server(sqlite_url)
    async with visiting(server, sqlite_url) as browser:
        ada, bob = [await server.db(Agent).create(name=name) for name in ("Ada Agent", "Bob Agent")]
        ticket = await server.db(Ticket).create(title="Printer", agent_id=ada.id)
        await browser.get(f"/tickets/{ticket.id}/edit")
        seen = f'{{"agent_id": "{ada.id}", "title": "Printer", "status": "open"}}'
        controls = {"f.title": "Printer", "f.agent_id": bob.id, "f.status": "open", "_seen": seen}
        await browser.send(f"/tickets/{ticket.id}", controls)
        for query in ("", "?a=1&b=2"):
            page = text_of(await browser.get(f"/tickets/{ticket.id}/history{query}"))
            assert "Ada Agent" in page
            assert "Bob Agent" in page
            assert ada.id not in page
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        assert "Bob Agent" in text_of(await browser.get(f"/tickets/{ticket.id}/history?at={now}"))


class Team(Model):
    name: str = field(filterable=True)


class Account(Model, WithDeletedAt):
    email: str = field(filterable=True)


async def test_who_acted_and_for_which_tenant_is_called_by_labels(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    server.register(Agent, Ticket, Reply, Team, Account)
    server.schedules.enable()
    server.admin(tenants=Team, accounts=Account)

    @server.work.handler("print.v1")
    async def print_ticket(run: Run) -> None:
        pass

    @server.outbox.handler("ticket.printed")
    async def take(message: Message) -> None:
        pass

    @server.action("POST", "/messages")
    async def send(ctx: Context) -> dict[str, str]:
        async with ctx.transaction():
            return {"id": (await server.outbox.enqueue("ticket.printed", {})).id}

    async with visiting(server, sqlite_url) as browser:
        team = await server.db(Team).create(name="Red Team")
        eve, bob = [await server.db(Account).create(email=email) for email in ("eve@red", "bob@red")]
        ada = await server.db(Agent).create(name="Ada Agent")
        run = await server.work.submit("print.v1", actor_id=eve.id, tenant_id=team.id)
        await server.schedules.create(
            "nightly", cron="0 3 * * *", run="print.v1", actor_id=eve.id, tenant_id=team.id
        )
        [schedule] = await server.schedules.list()
        caller = AuthInfo(user_id=eve.id, tenant_id=team.id)
        sent = await server.call("POST", "/api/messages", auth=caller)
        ids = []
        for account in (eve, bob):
            who = AuthInfo(user_id=account.id)
            body = {"title": "Printer", "agent_id": ada.id}
            made = await server.call("POST", "/api/tickets", json=body, auth=who)
            ids.append(made.data["id"])
        await server.db(Account).delete(bob.id)
        pages = {
            f"/-/operations/runs/{run.id}": "eve@red",
            f"/-/operations/schedules/{schedule.id}": "eve@red",
            f"/-/operations/outbox/{sent.data['id']}": "eve@red",
            f"/tickets/{ids[0]}/history": "eve@red",
            f"/tickets/{ids[1]}/history": "bob@red",  # who has left
        }
        for path, name in pages.items():
            page = text_of(await browser.get(path))
            assert name in page, path
            assert eve.id not in page, path
            if "operations" in path:
                assert "Red Team" in page, path
                assert team.id not in page, path
        assert "Red Team" in text_of(await browser.get("/-/operations/schedules"))


async def test_a_refused_form_keeps_the_labels_of_its_keys(sqlite_url: str) -> None:
    server = make_server(sqlite_url)
    async with visiting(server, sqlite_url) as browser:
        ada, bob = [await server.db(Agent).create(name=name) for name in ("Ada Agent", "Bob Agent")]
        ticket = await server.db(Ticket).create(title="Printer", agent_id=ada.id)
        reply = await server.db(Reply).create(ticket_id=ticket.id, agent_id=ada.id, text="Hello")
        await browser.get(f"/tickets/{ticket.id}/edit")
        seen = f'{{"agent_id": "{ada.id}", "title": "Printer", "status": "open"}}'
        row = {
            "inline.replies.0._id": reply.id,
            "inline.replies.0._seen": f'{{"agent_id": "{ada.id}", "text": "Hello"}}',
            "inline.replies.0.agent_id": ada.id,
            "inline.replies.0.text": "x",
        }
        controls = {"f.title": "Printer", "f.agent_id": bob.id, "f.status": "open", "_seen": seen, **row}
        refused = await browser.post(f"/tickets/{ticket.id}", {**controls, "_key": "one"})
        assert refused.status_code == 422
        labels = dict(re.findall(r'value="([0-9a-f-]{36})"[^>]*data-label="([^"]*)"', refused.text))
        assert labels == {bob.id: "Bob Agent", ada.id: "Ada Agent"}
        prefilled = await browser.get(f"/tickets/new?f.agent_id={bob.id}")
        assert 'data-label="Bob Agent"' in prefilled


async def test_forms_and_lists_offer_the_states_that_can_follow(sqlite_url: str) -> None:
    server = make_server(sqlite_url)
    async with visiting(server, sqlite_url) as browser:
        ada = await server.db(Agent).create(name="Ada Agent")
        for status, expected in (
            ("open", {"open", "pending", "spam"}),
            ("pending", {"pending", "closed", "spam"}),
            ("spam", {"spam"}),
        ):
            ticket = await server.db(Ticket).create(title=status, agent_id=ada.id, status=status)
            form = await browser.get(f"/tickets/{ticket.id}/edit")
            assert set(re.findall(r'name="f.status" value="([a-z]+)"', form)) == expected, status
        form = await browser.get("/tickets/new")
        assert set(re.findall(r'name="f.status" value="([a-z]+)"', form)) == {"open", "spam"}
        page = await browser.get("/tickets?f_status=pending")
        assert "pending&#34;, &#34;closed&#34;, &#34;spam&#34;]" in page
        assert "open" not in re.findall(r"data-options=\"([^\"]*)\"", page)[0]


async def test_the_front_page_counts_without_a_script(sqlite_url: str) -> None:
    server = make_server(sqlite_url)
    async with visiting(server, sqlite_url) as browser:
        for number in range(3):
            await server.db(Agent).create(name=f"Agent {number}")
        page = await browser.get("/")
        assert '<noscript><p><a href="/admin/?counts=1">' in page
        counted = await browser.get("/?counts=1")
        assert "Agents 3" in text_of(counted)
        assert "?counts=1" not in counted
