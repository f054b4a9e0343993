"""What streams show is what REST would show: scopes, policies, redaction, audiences, revocation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, Model, Next, Operation, Server, field
from maniflex.events import Emit, Event
from maniflex.middleware import auth, db, response
from maniflex.testing import client, sse, websocket
from maniflex.testing.streams import ConnectionEnded, HandshakeRefused, WebSocketClient


class Doc(Model, events=True):
    """What belongs to a tenant that its records show."""

    org: str = field(default="")
    title: str = field(default="")
    salary: int = field(default=0)
    code: str = field(default="s3cret", hidden=True)


class Vault(Model, events=True):
    """What belongs to a tenant that its records do not show."""

    org: str = field(default="", hidden=True)
    title: str = field(default="")


class Safe(Model, events=Emit(scope=("org",))):
    """The same, with digests of the tenant beside its events."""

    org: str = field(default="", hidden=True)
    title: str = field(default="")


async def authenticate(ctx: Context, next: Next) -> None:
    """Who is asking stands in headers."""
    user = ctx.request.headers.get("x-user")
    if user:
        roles = tuple(filter(None, ctx.request.headers.get("x-roles", "").split(",")))
        ctx.auth = AuthInfo(user, roles, tenant_id=ctx.request.headers.get("x-tenant", ""))
    await next()


def who(user: str, tenant: str = "", *roles: str) -> dict[str, str]:
    return {"x-user": user, "x-tenant": tenant, "x-roles": ",".join(roles)}


@asynccontextmanager
async def serving(
    url: str, declare: Callable[[Server], object] = lambda server: None, **options: Any
) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    server = Server(url)
    server.register(Doc, Vault, Safe)
    server.pipeline.auth.register(authenticate)
    server.events.declare("told.tenant")
    server.events.declare("told.actor", audience="actor")
    server.events.declare("told.all", audience="everyone")
    server.events.declare("told.nobody", audience="nobody")
    server.events.declare("told.some", audience=lambda auth, event: auth.user_id == event.data["for"])
    server.realtime.enable(**options)
    declare(server)
    async with client(server, database=url) as http:
        yield server, http


async def until_closed(ws: WebSocketClient) -> int:
    """The code that the server closes with; no event comes before it."""
    while True:
        try:
            assert (await ws.receive())["op"] != "event"
        except ConnectionEnded as ended:
            return ended.code


async def heard(ws: WebSocketClient, server: Server) -> list[dict[str, Any]]:
    """The events that a client is told of, up to one that everybody hears."""
    await server.events.publish("told.all", {"end": True}, outside_transaction=True)
    events: list[dict[str, Any]] = []
    while True:
        message = await ws.receive()
        if message["op"] != "event":
            continue
        if message["data"]["type"] == "told.all":
            return events
        events.append(message["data"])


def titles(events: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["title"] for event in events]


def by_tenant(server: Server) -> None:
    tenancy = db.force_filter("org", lambda ctx: ctx.auth.tenant_id if ctx.auth else None)
    server.pipeline.auth.register(tenancy, models=[Doc, Vault, Safe])


async def test_tenants_hear_of_their_own_rows_alone(database_url: str) -> None:
    async with serving(database_url, by_tenant) as (server, http), AsyncExitStack() as stack:
        red, blue = [
            await stack.enter_async_context(websocket(server, headers=who("u", tenant)))
            for tenant in ("red", "blue")
        ]
        for ws in (red, blue):
            assert (await ws.subscribe("*"))["op"] == "ack"
        for tenant in ("red", "blue"):
            answer = await http.post("/api/docs", json={"title": f"of {tenant}"}, headers=who("u", tenant))
            assert answer.status_code == 201, answer.text
        row = await server.db(Doc).create(org="red", title="moved")
        await server.db(Doc).update(row.id, org="blue")
        await server.db(Doc).delete(row.id)

        of_red, of_blue = await heard(red, server), await heard(blue, server)
        assert titles(of_red) == ["of red", "moved"]
        assert [event["operation"] for event in of_red] == ["created", "created"]
        assert titles(of_blue) == ["of blue", "moved", "moved"]
        assert [event["operation"] for event in of_blue] == ["created", "updated", "deleted"]


async def test_a_tenant_whose_field_is_hidden_is_asked_of_the_database(database_url: str) -> None:
    async with serving(database_url, by_tenant) as (server, _), AsyncExitStack() as stack:
        red, blue = [
            await stack.enter_async_context(websocket(server, headers=who("u", tenant)))
            for tenant in ("red", "blue")
        ]
        for ws in (red, blue):
            await ws.subscribe("vault.*")
            await ws.subscribe("told.*")
        for tenant in ("red", "blue"):
            await server.db(Vault).create(org=tenant, title=f"of {tenant}")
        gone = await server.db(Vault).create(org="red", title="gone")
        await server.db(Vault).delete(gone.id)

        assert set(titles(await heard(red, server))) <= {"of red", "gone"}
        assert titles(await heard(blue, server)) == ["of blue"]


async def test_digests_tell_whose_a_row_was_also_when_it_is_gone(database_url: str) -> None:
    async with serving(database_url, by_tenant) as (server, _), AsyncExitStack() as stack:
        red, blue = [
            await stack.enter_async_context(websocket(server, headers=who("u", tenant)))
            for tenant in ("red", "blue")
        ]
        for ws in (red, blue):
            await ws.subscribe("*")
        for tenant in ("red", "blue"):
            row = await server.db(Safe).create(org=tenant, title=f"of {tenant}")
            await server.db(Safe).delete(row.id)
        assert titles(await heard(red, server)) == ["of red", "of red"]
        assert titles(await heard(blue, server)) == ["of blue", "of blue"]


async def test_what_is_replayed_is_judged_as_it_is_now(database_url: str) -> None:
    async with serving(database_url, by_tenant) as (server, _):
        async with websocket(server, headers=who("u", "red")) as ws:
            start = (await ws.subscribe("*"))["cursor"]
        for number in range(5):
            await server.db(Doc).create(org="red" if number % 2 else "blue", title=str(number))
            await server.db(Vault).create(org="red" if number % 2 else "blue", title=f"v{number}")
        await server.events.drain()
        async with websocket(server, headers=who("u", "red")) as ws:
            await ws.subscribe("*", after=start)
            assert titles(await heard(ws, server)) == ["1", "v1", "3", "v3"]
        async with websocket(server, headers=who("u", "green")) as ws:
            await ws.subscribe("*", after=start)
            assert await heard(ws, server) == []


@pytest.mark.parametrize("operation", [Operation.LIST, Operation.READ])
async def test_a_rule_for_lists_or_for_reads_closes_the_events_of_its_model(
    database_url: str, operation: Operation
) -> None:
    def close(server: Server) -> None:
        boss = auth.require_role("boss")
        server.pipeline.auth.register(boss, models=[Vault], operations=[operation])

    async with serving(database_url, close) as (server, _):
        async with websocket(server, headers=who("ada")) as ws:
            refusal = await ws.subscribe("vault.*", ref="r")
            assert (refusal["op"], refusal["code"], refusal["ref"]) == ("error", "FORBIDDEN_PATTERN", "r")
            both = await ws.subscribe("doc.*", "vault.created")
            assert both["code"] == "FORBIDDEN_PATTERN"
            ack = await ws.subscribe("*")
            assert "doc.created" in ack["types"]
            assert not any(name.startswith("vault") for name in ack["types"])
            await server.db(Vault).create(title="closed")
            await server.db(Doc).create(title="open")
            assert titles(await heard(ws, server)) == ["open"]
        with pytest.raises(HandshakeRefused) as refused:
            async with sse(server, query={"subscribe": "vault.*"}, headers=who("ada")):
                pass
        assert (refused.value.status, refused.value.code) == (403, "FORBIDDEN_PATTERN")
        async with websocket(server, headers=who("eve", "", "boss")) as ws:
            assert (await ws.subscribe("vault.*"))["op"] == "ack"


async def test_policies_are_asked_about_the_row_as_it_is_stored(database_url: str) -> None:
    asked: list[str] = []

    def may_see(ctx: Context, doc: Any) -> bool:
        asked.append(doc.title)
        return ctx.auth is not None and (doc.salary < 100 or ctx.has_role("boss"))

    def enforce(server: Server) -> None:
        server.pipeline.db.register(auth.enforce(may_see), models=[Doc])

    async with serving(database_url, enforce) as (server, _), AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(websocket(server, headers=caller))
            for caller in (who("ada"), who("ada"), who("eve", "", "boss"))
        ]
        for ws in clients:
            await ws.subscribe("*")
        await server.db(Doc).create(title="cheap", salary=1)
        await server.db(Doc).create(title="dear", salary=1000)
        one, same, boss = [titles(await heard(ws, server)) for ws in clients]
        assert (one, same, boss) == (["cheap"], ["cheap"], ["cheap", "dear"])


async def test_hidden_redacted_and_changed_fields_are_as_in_answers(database_url: str) -> None:
    def rules(server: Server) -> None:
        server.pipeline.response.register(
            response.redact_field("salary", lambda ctx: not ctx.has_role("boss")), models=[Doc]
        )
        server.pipeline.response.register(
            response.transform_field("title", lambda ctx, value: value.upper()), models=[Doc]
        )

    async with serving(database_url, rules) as (server, _), AsyncExitStack() as stack:
        plain, boss = [
            await stack.enter_async_context(websocket(server, headers=caller))
            for caller in (who("ada"), who("eve", "", "boss"))
        ]
        for ws in (plain, boss):
            await ws.subscribe("*")
        row = await server.db(Doc).create(title="pay", salary=7)
        await server.db(Doc).update(row.id, salary=8)
        created, updated = await heard(plain, server)
        assert created["data"]["title"] == "PAY"
        assert "salary" not in created["data"]
        assert "salary" not in updated.get("changed", "")
        created, updated = await heard(boss, server)
        assert (created["data"]["title"], created["data"]["salary"]) == ("PAY", 7)
        assert updated["changed"] == "salary"
        assert "code" not in created["data"]


async def test_types_without_a_model_are_for_those_whom_they_name(database_url: str) -> None:
    async with serving(database_url) as (server, _), AsyncExitStack() as stack:
        ada, eve, other = [
            await stack.enter_async_context(websocket(server, headers=caller))
            for caller in (who("ada", "red"), who("eve", "red"), who("ada", "blue"))
        ]
        for ws in (ada, eve, other):
            assert (await ws.subscribe("told.nobody"))["code"] == "FORBIDDEN_PATTERN"
            ack = await ws.subscribe("*")
            assert "told.nobody" not in ack["types"]
        async with server.transaction():
            for name in ("told.tenant", "told.actor", "told.nobody", "undeclared"):
                await server.events.publish(name, {"for": ""}, tenant_id="red", actor_id="ada")
            await server.events.publish("told.some", {"for": "eve"}, tenant_id="green")

        def types(events: list[dict[str, Any]]) -> list[str]:
            return [event["type"] for event in events]

        assert types(await heard(ada, server)) == ["told.tenant", "told.actor"]
        assert types(await heard(eve, server)) == ["told.tenant", "told.some"]
        assert types(await heard(other, server)) == []


async def test_visibility_withholds_replaces_and_fails_for_one_client_alone(database_url: str) -> None:
    calls: list[str] = []

    def visibility(info: AuthInfo, event: Event) -> Any:
        calls.append(f"{info.user_id} {event.type}")
        if event.type != "doc.created":
            return True
        if info.user_id == "fails":
            raise RuntimeError("no")
        if info.user_id == "replaced":
            return event.with_data({"title": "another"}, None)
        return info.user_id != "withheld"

    async with serving(database_url, visibility=visibility) as (server, _), AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(websocket(server, headers=who(name)))
            for name in ("fails", "replaced", "withheld", "plain")
        }
        for ws in clients.values():
            await ws.subscribe("*")
        await clients["plain"].subscribe("doc.*")
        await server.db(Doc).create(title="one")
        outcomes = {name: titles(await heard(ws, server)) for name, ws in clients.items()}
        assert outcomes == {"fails": [], "replaced": ["another"], "withheld": [], "plain": ["one", "one"]}
        assert calls.count("plain doc.created") == 1


async def test_allow_patterns_are_covered_and_all_of_a_list_counts(database_url: str) -> None:
    async with serving(database_url, allow_patterns=("doc.*",)) as (server, _):
        async with websocket(server, headers=who("ada")) as ws:
            assert (await ws.subscribe("doc.created"))["types"] == ["doc.created"]
            for patterns in (("*",), ("doc.*", "vault.*"), ("*.created",)):
                assert (await ws.subscribe(*patterns))["code"] == "FORBIDDEN_PATTERN"
            assert (await ws.subscribe("doc.unknown"))["types"] == []
        with pytest.raises(HandshakeRefused) as refused:
            async with sse(server, headers=who("ada")):
                pass
        assert refused.value.code == "FORBIDDEN_PATTERN"


async def test_disconnect_ends_the_connections_of_those_it_names(database_url: str) -> None:
    async with serving(database_url) as (server, _), AsyncExitStack() as stack:
        ada = await stack.enter_async_context(websocket(server, headers=who("ada", "red")))
        eve = await stack.enter_async_context(websocket(server, headers=who("eve", "red")))
        stream = await stack.enter_async_context(sse(server, headers=who("ada", "red")))
        for ws in (ada, eve):
            await ws.subscribe("*")
        async with server.transaction():
            await server.realtime.disconnect(user_id="ada")
            await server.db(Doc).create(title="afterwards")
        assert await until_closed(ada) == 4401
        assert (await stream.receive()).event == "revoked"
        with pytest.raises(ConnectionEnded):
            await stream.receive()
        assert titles(await heard(eve, server)) == ["afterwards"]
        with pytest.raises(ValueError, match="whose connections"):
            await server.realtime.disconnect()


async def test_a_caller_who_is_refused_later_is_sent_away(database_url: str) -> None:
    welcome = {"ada"}

    async def refuse(ctx: Context, next: Next) -> None:
        if ctx.request.headers.get("x-user") not in welcome:
            ctx.abort(401, "UNAUTHORIZED", "go away")
        await next()

    def declare(server: Server) -> None:
        server.pipeline.auth.register(refuse)

    async with serving(database_url, declare, recheck_interval=0.3) as (server, _):
        with pytest.raises(HandshakeRefused) as refused:
            async with websocket(server, headers=who("eve")):
                pass
        assert refused.value.status == 401
        async with websocket(server, headers=who("ada")) as ws:
            await ws.subscribe("*")
            welcome.clear()
            assert await until_closed(ws) == 4401


async def test_a_scope_that_changes_holds_from_the_next_look(database_url: str) -> None:
    tenant = {"ada": "red"}

    def declare(server: Server) -> None:
        rule = db.force_filter("org", lambda ctx: tenant[ctx.auth.user_id] if ctx.auth else None)
        server.pipeline.auth.register(rule, models=[Doc, Vault])

    async with (
        serving(database_url, declare, recheck_interval=0.2) as (server, _),
        websocket(server, headers=who("ada")) as ws,
    ):
        await ws.subscribe("*")
        await server.db(Doc).create(org="red", title="first")
        assert titles(await heard(ws, server)) == ["first"]
        tenant["ada"] = "blue"
        async with asyncio.timeout(10):
            while True:
                await server.db(Doc).create(org="blue", title="blue")
                if "blue" in titles(await heard(ws, server)):
                    break
        await server.db(Doc).create(org="red", title="red again")
        assert titles(await heard(ws, server)) == []
