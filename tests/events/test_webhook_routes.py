"""Endpoints as data: who has which, what they are sent, and that no URL leads inside."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex._webhook_signatures import checking_key, is_signed
from maniflex.background.webhooks.model import WebhookDelivery, WebhookEndpoint
from maniflex.encryption import MemoryKeyProvider
from maniflex.errors import DeclarationError
from maniflex.middleware import auth, db, response
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.scripted_http import Answer, scripted

OK: Answer = (200, {}, b"fine")
API = "/api/webhook_endpoints"


class Doc(Model, events=True):
    """What belongs to a tenant."""

    org: str | None = field(default=None)
    title: str = field(default="")
    salary: int = field(default=0)


class Note(Model, events=True):
    """What belongs to one person."""

    owner: str | None = field(default=None)
    text: str = field(default="")


class Team(Model, events=True):
    """What belongs to a tenant, and has members."""

    org: str = field(default="", filterable=True)


class Member(Model, events=True):
    """What belongs to a tenant and to a team."""

    org: str = field(default="", filterable=True)
    team_id: str = field(relation="Team", on_delete="cascade")


async def authenticate(ctx: Context, next: Next) -> None:
    """Who is asking stands in headers."""
    user = ctx.request.headers.get("x-user")
    if user:
        roles = tuple(filter(None, ctx.request.headers.get("x-roles", "").split(",")))
        ctx.auth = AuthInfo(user, roles, tenant_id=ctx.request.headers.get("x-tenant", ""))
    await next()


def who(user: str, tenant: str = "", *roles: str) -> dict[str, str]:
    return {"x-user": user, "x-tenant": tenant, "x-roles": ",".join(roles)}


async def own_notes(ctx: Context, next: Next) -> None:
    """A scope of the application's own, on the service step."""
    if ctx.auth is not None and not ctx.has_role("boss"):
        ctx.query.force("owner", ctx.auth.user_id)
    await next()


@asynccontextmanager
async def serving(
    url: str,
    *,
    clock: FakeClock | None = None,
    declare: Callable[[Server], object] = lambda server: None,
    **options: Any,
) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    server = Server(url, background=False)
    server.register(Doc, Note)
    server.pipeline.auth.register(authenticate)
    server.events.declare("mine.*".replace("*", "told"), audience="tenant")
    server.webhooks.enable(["*"], **({"allow_private": True, "allow_http": True} | options))
    declare(server)
    async with client(server, database=url, clock=clock) as http:
        yield server, http


async def endpoint(
    http: httpx.AsyncClient, url: str, caller: dict[str, str], **values: Any
) -> dict[str, Any]:
    body = {"url": url, "patterns": ["*"], **values}
    answer = await http.post(API, json=body, headers=caller)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()["data"]
    return made


async def test_an_endpoint_is_made_told_and_shown_without_its_secret(database_url: str) -> None:
    async with scripted(OK) as receiver, serving(database_url) as (server, http):
        ada = who("ada", "acme")
        made = await endpoint(http, receiver.url, ada, headers={"X-Key": "hunter2"}, description="mine")
        assert made["secret"].startswith("whsec_")
        async with server.transaction():
            await server.events.publish("mine.told", {"n": 1}, tenant_id="acme")
            await server.events.publish("mine.told", {"n": 2}, tenant_id="other")
            await server.events.publish("undeclared", {"n": 3}, tenant_id="acme")
        await server.webhooks.drain()

        [asked] = receiver.asked
        Webhook(made["secret"]).verify(asked.body, asked.headers)
        assert asked.headers["x-key"] == "hunter2"
        assert json.loads(asked.body)["data"] == {"n": 1}
        texts = [
            (await http.get(path, headers=ada)).text
            for path in (API, f"{API}/{made['id']}", "/api/webhook_deliveries")
        ]
        assert all("hunter2" not in text and made["secret"] not in text for text in texts)
        [delivery] = json.loads(texts[2])["data"]
        assert (delivery["status"], delivery["type"]) == ("delivered", "mine.told")
        assert delivery["attempt_count"] == 1
        assert "attempts" not in delivery
        one = f"/api/webhook_deliveries/{delivery['id']}"
        answer = await http.get(one, headers=ada)
        [attempt] = answer.json()["data"]["attempts"]
        assert set(attempt) == {"number", "time", "ms", "status", "error", "answer"}
        assert (attempt["number"], attempt["status"], attempt["answer"]) == (1, 200, "fine")
        head = await http.head(one, headers=ada)
        assert head.headers["content-length"] == str(len(answer.content))
        narrow = (await http.get(one, params={"select": "id,status"}, headers=ada)).json()["data"]
        assert set(narrow) == {"id", "status"}
        assert server.metrics.value("webhooks_withheld_total") == 1


async def test_a_tenant_reaches_nothing_of_another(database_url: str) -> None:
    async with scripted(OK) as receiver, serving(database_url) as (server, http):
        made = await endpoint(http, receiver.url, who("ada", "acme"))
        async with server.transaction():
            await server.events.publish("mine.told", {"n": 1}, tenant_id="acme")
        await server.webhooks.drain()
        [delivery] = await server.db(WebhookDelivery).list()
        one = f"{API}/{made['id']}"
        since = {"since": "2020-01-01T00:00:00Z"}
        for stranger in (who("eve", "evil"), who("ada"), who("eve", "evil", "admin")):
            for method, path, body in (
                ("GET", one, None),
                ("PATCH", one, {"description": "x"}),
                ("DELETE", one, None),
                ("POST", f"{one}/rotate", None),
                ("POST", f"{one}/test", None),
                ("POST", f"{one}/enable", None),
                ("POST", f"{one}/recover", since),
                ("POST", f"{one}/replay", since),
                ("GET", f"/api/webhook_deliveries/{delivery.id}", None),
                ("HEAD", f"/api/webhook_deliveries/{delivery.id}", None),
                ("POST", f"/api/webhook_deliveries/{delivery.id}/resend", None),
            ):
                answer = await http.request(method, path, json=body, headers=stranger)
                assert answer.status_code == 404, (method, path, answer.text)
            for path in (API, "/api/webhook_deliveries"):
                assert (await http.get(path, headers=stranger)).json()["data"] == []
        assert (await http.get(API)).status_code == 401
        assert (await http.get(one, headers=who("bob", "acme"))).status_code == 200
        assert (await http.get(one, headers=who("root", "", "admin"))).status_code == 200


async def test_an_endpoint_gets_what_its_owner_is_shown_and_no_more(database_url: str) -> None:
    def declare(server: Server) -> None:
        server.pipeline.service.register(own_notes, models=[Note])
        server.pipeline.response.register(
            response.redact_field("salary", lambda ctx: not ctx.has_role("boss")), models=[Doc]
        )
        server.pipeline.response.register(
            response.transform_field("title", lambda value: str(value).upper()), models=[Doc]
        )

    async with (
        scripted(OK) as ada,
        scripted(OK) as bob,
        serving(database_url, declare=declare) as (server, http),
    ):
        await endpoint(http, ada.url, who("ada", "acme"), ordering="endpoint")
        of_bob = await endpoint(http, bob.url, who("bob", "acme"))
        made = await http.post(
            "/api/docs", json={"title": "plan", "salary": 7}, headers=who("ada", "acme", "boss")
        )
        id = made.json()["data"]["id"]
        await http.patch(
            f"/api/docs/{id}", json={"salary": 8, "title": "b"}, headers=who("ada", "acme", "boss")
        )
        note = await http.post("/api/notes", json={"owner": "ada", "text": "x"}, headers=who("ada", "acme"))
        await http.delete(f"/api/notes/{note.json()['data']['id']}", headers=who("ada", "acme"))
        await server.webhooks.drain()

        bodies = [json.loads(asked.body) for asked in ada.asked]
        assert [body["type"] for body in bodies] == ["doc.created", "doc.updated", "note.deleted"]
        assert bodies[0]["data"]["title"] == "PLAN"
        assert all("salary" not in body["data"] for body in bodies)
        assert sorted(json.loads(asked.body)["type"] for asked in bob.asked) == ["doc.created", "doc.updated"]
        # Of what is withheld, no trace is left that its owner could see.
        query = {"filter": f"endpoint_id:eq:{of_bob['id']}"}
        listed = await http.get("/api/webhook_deliveries", params=query, headers=who("root", "", "admin"))
        assert {one["type"] for one in listed.json()["data"]} == {"doc.created", "doc.updated"}


async def test_models_that_refer_to_each_other_are_told_within_their_tenant(database_url: str) -> None:
    def declare(server: Server) -> None:
        server.register(Team, Member)
        server.pipeline.db.register(db.tenancy("org"), models=[Team, Member])

    async with scripted(OK) as receiver, serving(database_url, declare=declare) as (server, http):
        ada, bob = who("ada", "acme"), who("bob", "other")
        await endpoint(http, receiver.url, ada)
        for caller in (ada, bob):
            team = (await http.post("/api/teams", json={}, headers=caller)).json()["data"]["id"]
            body = {"team_id": team}
            assert (await http.post("/api/members", json=body, headers=caller)).status_code == 201
        await server.webhooks.drain()

        told = [json.loads(request.body) for request in receiver.asked]
        assert sorted(one["type"] for one in told) == ["member.created", "team.created"]
        assert {one["data"]["org"] for one in told} == {"acme"}


async def test_endpoints_of_staff_are_told_what_staff_see_while_they_are_staff(database_url: str) -> None:
    members = {"ada": ["boss"]}

    def check(ctx: Context, claims: Any, info: AuthInfo) -> None:
        if info.user_id not in members:
            raise ValueError("the member was removed")
        info.roles = members[info.user_id]

    def declare(server: Server) -> None:
        server.pipeline.auth.register(auth.verify(check))
        server.pipeline.auth.register(auth.api_keys(keys={"k" * 20: AuthInfo("ada", ["boss"])}))
        server.pipeline.service.register(own_notes, models=[Note])

    clock, boss = FakeClock(), who("ada", "acme", "boss")
    offer: dict[str, Any] = {"role": "boss", "view_roles": ["boss"]}
    async with (
        scripted(OK) as ada,
        serving(database_url, clock=clock, declare=declare, **offer) as (server, http),
    ):
        await endpoint(http, ada.url, boss, ordering="endpoint")

        async def write(text: str) -> list[str]:
            made = await http.post("/api/notes", json={"owner": "bob", "text": text}, headers=boss)
            assert made.status_code == 201
            await server.webhooks.drain()
            clock.advance(timedelta(seconds=61))  # what was asked of a caller is remembered for a minute
            return [json.loads(asked.body)["data"]["text"] for asked in ada.asked]

        assert await write("of a boss") == ["of a boss"]
        members["ada"] = ["clerk"]
        assert await write("of a clerk") == ["of a boss"]
        members["ada"] = ["boss"]
        assert await write("of a boss again") == ["of a boss", "of a boss again"]
        del members["ada"]
        assert await write("of nobody") == ["of a boss", "of a boss again"]


def test_roles_to_look_with_are_for_those_who_have_a_role() -> None:
    server = Server()
    server.register(Doc)
    server.webhooks.enable(["doc.*"], view_roles="boss")
    with pytest.raises(DeclarationError, match="view_roles= without role="):
        _ = server.routes


async def test_a_replay_gives_no_more_than_the_first_time(sqlite_url: str) -> None:
    async with scripted(OK) as receiver, serving(sqlite_url) as (server, http):
        async with server.transaction():
            for tenant in ("acme", "other"):
                await server.events.publish("mine.told", {"of": tenant}, tenant_id=tenant)
        await server.webhooks.drain()
        made = await endpoint(http, receiver.url, who("ada", "acme"))
        span = {"since": "2020-01-01T00:00:00Z"}
        answer = await http.post(f"{API}/{made['id']}/replay", json=span, headers=who("ada", "acme"))
        assert (answer.status_code, answer.json()["data"]) == (202, {"count": 1})
        await server.webhooks.drain()
        assert [json.loads(asked.body)["data"] for asked in receiver.asked] == [{"of": "acme"}]


async def test_the_old_secret_signs_along_for_a_day(sqlite_url: str) -> None:
    clock, ada = FakeClock(), who("ada", "acme")
    async with scripted(OK) as receiver, serving(sqlite_url, clock=clock) as (server, http):
        for signing in ("hmac", "ed25519"):
            made = await endpoint(http, receiver.url, ada, signing=signing)
            name = "public_key" if signing == "ed25519" else "secret"
            rotated = (await http.post(f"{API}/{made['id']}/rotate", headers=ada)).json()["data"]
            old, new = checking_key(made[name]), checking_key(rotated[name])
            for later, holds in ((timedelta(hours=23), [True, True]), (timedelta(hours=2), [False, True])):
                clock.advance(later)
                await server.events.publish("mine.told", tenant_id="acme", outside_transaction=True)
                receiver.asked.clear()
                await server.webhooks.drain()
                asked = receiver.asked[-1]
                parts = [asked.headers[f"webhook-{part}"] for part in ("id", "timestamp", "signature")]
                id, timestamp, signature = parts
                assert [is_signed([key], id, timestamp, asked.body, signature) for key in (old, new)] == holds
            await http.delete(f"{API}/{made['id']}", headers=ada)


async def test_what_cannot_be_an_endpoint_is_422(sqlite_url: str) -> None:
    ada = who("ada", "acme")
    async with serving(sqlite_url, max_endpoints=2) as (_, http):
        good = {"url": "https://example.com/x", "patterns": ["mine.told"]}
        for bad, place in (
            ({"url": "ftp://example.com"}, "url"),
            ({"patterns": ["a b"]}, "patterns"),
            ({"patterns": []}, "patterns"),
            ({"timeout": 31}, "timeout"),
            ({"headers": {"Host": "x"}}, "headers.Host"),
            ({"headers": {"webhook-id": "x"}}, "headers.webhook-id"),
            ({"headers": {"X-A": "a\r\nX-B: b"}}, "headers.X-A"),
            ({"signing": "rsa"}, "signing"),
            ({"tenant_id": "other"}, "tenant_id"),
        ):
            answer = await http.post(API, json=good | bad, headers=ada)
            assert answer.status_code == 422, (bad, answer.text)
            assert any(one["field"] == place for one in answer.json()["error"]["details"]), answer.text
        for _ in range(2):
            await endpoint(http, "https://example.com/x", ada)
        assert (await http.post(API, json=good, headers=ada)).status_code == 422
        await endpoint(http, "https://example.com/x", who("ada"))


async def test_only_what_is_offered_can_be_had_and_by_a_role(sqlite_url: str) -> None:
    server = Server(sqlite_url, background=False)
    server.register(Doc)
    server.pipeline.auth.register(authenticate)
    server.webhooks.enable(["doc.*"], role="partner")
    async with client(server, database=sqlite_url) as http:
        body = {"url": "https://example.com/x", "patterns": ["doc.created", "*"]}
        assert (await http.post(API, json=body, headers=who("ada", "a"))).status_code == 403
        answer = await http.post(API, json=body, headers=who("ada", "a", "partner"))
        [detail] = answer.json()["error"]["details"]
        assert (detail["field"], detail["code"]) == ("patterns[1]", "not_offered")
        body = {"url": "http://example.com/x", "patterns": ["doc.*"]}
        answer = await http.post(API, json=body, headers=who("ada", "a", "partner"))
        assert answer.json()["error"]["details"][0]["code"] == "https"


HOST_TEXT = """
127.0.0.1 127.1 127.0.1 2130706433 0x7f000001 0x7f.1 0177.0.0.1 017700000001 0 0.0.0.0 0x0
127.0.0.1. 127.255.255.254 10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1
192.168.255.255 169.254.169.254 169.254.0.1 0xa9fea9fe 2852039166 0251.0376.0251.0376 100.64.0.1
100.127.255.255 192.0.0.1 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255
240.0.0.1 255.255.255.255 168.63.129.16 192.88.99.1 localhost LOCALHOST localhost.
localhost.localdomain a.localhost foo.localhost. [::1] [::] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1]
[::ffff:7f00:1] [::ffff:10.0.0.1] [::ffff:169.254.169.254] [::127.0.0.1] [::7f00:1]
[64:ff9b::7f00:1] [64:ff9b::10.0.0.1] [64:ff9b:1::1] [2002:7f00:1::] [2002:a00:1::] [2002:c0a8:1::]
[2001:0:7f00:1::1] [2001::1] [fe80::1] [fec0::1] [fc00::1] [fd00::1] [fd12:3456::1] [ff02::1]
[ff05::2] [2001:db8::1] [3fff::1] [100::1] [2001:10::1] [fe80::1%25eth0] [::ffff:0:127.0.0.1]
1.1.1.1@127.0.0.1 127.0.0.1:80@10.0.0.1 127.0.0.1%00.example.com 127.0.0.1#.example.com
0x7f.0x0.0x0.0x1 00000177.0.0.1 10.1 192.168.257 172.1048577 169.16689662 [::ffff:a9fe:a9fe]
"""
LOOK_ALIKES = (
    "127\u30020\u30020\u30021",
    "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460",
    "\u24dbocalhost",
    "LOCALHO\u017fT",
)
HOSTS = [*HOST_TEXT.split(), *LOOK_ALIKES]


async def test_no_url_leads_inside(sqlite_url: str) -> None:
    assert len(HOSTS) >= 80
    async with serving(sqlite_url, allow_private=False) as (_, http):
        for host in HOSTS:
            body = {"url": f"http://{host}/x", "patterns": ["mine.told"]}
            answer = await http.post(API, json=body, headers=who("ada", "acme"))
            assert answer.status_code == 422, (host, answer.text)


async def test_a_name_that_leads_elsewhere_by_delivery_reaches_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver of this machine is the one thing that is not ours."""
    real, inside = socket.getaddrinfo, ["127.0.0.1"]

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host == "rebinding.example" and not options.get("flags"):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in inside]
        return real(host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with scripted(OK) as receiver, serving(sqlite_url, allow_private=False) as (server, http):
        await endpoint(
            http, f"http://rebinding.example:{receiver.port}/", who("ada", "acme"), ordering="none"
        )
        for addresses in (["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["::ffff:127.0.0.1"]):
            inside[:] = addresses
            await server.events.publish("mine.told", tenant_id="acme", outside_transaction=True)
            await server.webhooks.drain()
        deliveries = await server.db(WebhookDelivery).list()
        assert receiver.asked == []
        assert len(deliveries) == 4
        for one in deliveries:
            assert one.last_error == "rebinding.example has an address that is not public"


async def test_by_hand(sqlite_url: str) -> None:
    ada, clock = who("ada", "acme"), FakeClock()
    async with scripted((410, {}, b""), OK) as receiver, serving(sqlite_url, clock=clock) as (server, http):
        made = await endpoint(http, receiver.url, ada)
        one = f"{API}/{made['id']}"
        await server.events.publish("mine.told", tenant_id="acme", outside_transaction=True)
        await server.webhooks.drain()
        shown = (await http.get(one, headers=ada)).json()["data"]
        assert (shown["status"], shown["disabled_reason"]) == ("disabled", "gone")
        assert (await http.post(f"{one}/enable", headers=ada)).json()["data"]["status"] == "enabled"
        since = {"since": "2020-01-01T00:00:00Z"}
        assert (await http.post(f"{one}/recover", json=since, headers=ada)).json()["data"] == {"count": 1}
        assert await server.webhooks.drain() == 1
        [delivery] = (await http.get("/api/webhook_deliveries", headers=ada)).json()["data"]
        assert delivery["status"] == "delivered"
        resend = f"/api/webhook_deliveries/{delivery['id']}/resend"
        assert (await http.post(resend, headers=ada)).status_code == 202
        assert (await http.post(resend, headers=ada)).status_code == 409
        assert await server.webhooks.drain() == 1
        ping = (await http.post(f"{one}/test", headers=ada)).json()["data"]
        assert ping["status"] == 200
        assert json.loads(receiver.asked[-1].body)["type"] == "webhook.ping"
        assert (await http.patch(one, json={"status": "disabled"}, headers=ada)).status_code == 200
        await server.events.publish("mine.told", tenant_id="acme", outside_transaction=True)
        assert await server.webhooks.drain() == 0
        assert (await http.delete(one, headers=ada)).status_code == 204
        assert await server.db(WebhookEndpoint).count() == await server.db(WebhookDelivery).count() == 0


async def test_who_changes_an_endpoint_of_a_colleague_answers_for_it(sqlite_url: str) -> None:
    def declare(server: Server) -> None:
        server.pipeline.service.register(own_notes, models=[Note])

    async with scripted(OK) as receiver, serving(sqlite_url, declare=declare) as (server, http):
        made = await endpoint(http, "https://example.com/x", who("ada", "acme"))
        change = {"url": receiver.url}
        answer = await http.patch(f"{API}/{made['id']}", json=change, headers=who("bob", "acme"))
        assert answer.json()["data"]["actor_id"] == "bob"
        await http.post("/api/notes", json={"owner": "ada", "text": "x"}, headers=who("ada", "acme"))
        await http.post("/api/notes", json={"owner": "bob", "text": "y"}, headers=who("bob", "acme"))
        await server.webhooks.drain()
        assert [json.loads(asked.body)["data"]["text"] for asked in receiver.asked] == ["y"]


async def test_secrets_are_sealed_where_there_is_a_key_provider(sqlite_url: str) -> None:
    def declare(server: Server) -> None:
        server.set_key_provider(MemoryKeyProvider({"default": bytes(range(32))}))

    async with scripted(OK) as receiver, serving(sqlite_url, declare=declare) as (server, http):
        made = await endpoint(http, receiver.url, who("ada", "acme"), headers={"X-Key": "hunter2"})
        [row] = await server.raw_query("SELECT secret, headers FROM webhook_endpoint")
        assert made["secret"] not in str(row)
        assert "hunter2" not in str(row)
        await server.events.publish("mine.told", tenant_id="acme", outside_transaction=True)
        await server.webhooks.drain()
        [asked] = receiver.asked
        Webhook(made["secret"]).verify(asked.body, asked.headers)
        assert asked.headers["x-key"] == "hunter2"
