"""What callers may not see leaves by no way that events have: webhooks, feed routes, brokers, mails, logs.

The worlds are those of the matrices of tenants, policies and redaction, with events on their models.
"""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from maniflex import Context, Model, Server, field
from maniflex.encryption import MemoryKeyProvider
from maniflex.events import Emit, Event, NatsBus, RedisBus
from maniflex.ext.mail import EmailMessage, MemoryMailer, on
from maniflex.middleware import service
from maniflex.testing import client
from tests.catalogue.policies import world as policies
from tests.catalogue.redaction import app as redaction
from tests.catalogue.scopes import world as scopes
from tests.kit.brokers import tidy_rabbit_bus
from tests.kit.http import created, data_of
from tests.kit.scripted_http import Answer, ScriptedHttp, scripted
from tests.kit.waiting import eventually

OK: Answer = (200, {}, b"fine")
SINCE = {"since": "2020-01-01T00:00:00Z"}
OFFERED: dict[str, Any] = {"allow_http": True, "allow_private": True}


async def endpoint(http: httpx.AsyncClient, receiver: ScriptedHttp, headers: dict[str, str]) -> str:
    body = {"url": receiver.url, "patterns": ["*"], "format": "cloudevents"}
    answer = await http.post("/api/webhook_endpoints", json=body, headers=headers)
    return str(data_of(answer, 201)["id"])


def told(receiver: ScriptedHttp) -> list[dict[str, Any]]:
    return [json.loads(asked.body) for asked in receiver.asked]


def whole(receiver: ScriptedHttp) -> str:
    """All that it was sent, headers included."""
    return json.dumps([(dict(asked.headers), asked.body.decode()) for asked in receiver.asked])


# -- tenants

OF_B = ("org-b", "of b", "p-b", "t-b", "n-b", "m-b", "l-b", "new b", "note 1 b", "bob")


async def write_as(http: httpx.AsyncClient, side: str, headers: dict[str, str]) -> None:
    """Every kind of write, in the name of one organisation."""
    project = await http.post(
        "/api/projects", json={"name": f"secret plan of {side}", "org_id": f"org-{side}"}, headers=headers
    )
    path = f"/api/projects/{data_of(project, 201)['id']}"
    data_of(await http.patch(path, json={"rank": 7}, headers=headers))
    task = await http.post("/api/tasks", json={"project_id": f"p-{side}1", "title": "t"}, headers=headers)
    data_of(task, 201)
    assert (await http.delete(path, headers=headers)).status_code == 204
    data_of(await http.patch(f"/api/notes/n-{side}2", json={"text": f"new {side}"}, headers=headers))


@pytest.mark.parametrize("has_rules", [True, False])
async def test_an_organisation_is_told_nothing_of_another(database_url: str, has_rules: bool) -> None:
    server = scopes.make_server(*([scopes.bind_all] if has_rules else []))
    server.events.emit(scopes.Member, scopes.Project, tenant="org_id")
    server.events.emit(scopes.Task, scopes.Note, scopes.ProjectLabel, scopes.Org)
    server.webhooks.enable(["*"], **OFFERED)
    async with (
        scripted(OK) as of_a,
        scripted(OK) as of_b,
        scopes.serving(server, database_url) as http,
    ):
        ids = [await endpoint(http, of_a, scopes.A), await endpoint(http, of_b, scopes.B)]
        await write_as(http, "a", scopes.A)
        await write_as(http, "b", scopes.B)
        # By code in no tenant's name: of a model whose tenant nobody knows, nobody is told.
        await server.db(scopes.Task).update("t-b1", title="secret plan of b")
        await server.db(scopes.Project).update("p-a3", org_id="org-b", name="secret plan of b")
        await server.webhooks.drain()
        first = len(of_a.asked)
        for id, headers in zip(ids, (scopes.A, scopes.B), strict=True):
            answer = await http.post(f"/api/webhook_endpoints/{id}/replay", json=SINCE, headers=headers)
            assert answer.status_code == 202, answer.text
        await server.webhooks.drain()
        seen = whole(of_a)
        for path in ("/webhook_deliveries", "/webhook_endpoints", "/event_log", "/event_group"):
            seen += (await http.get(f"/api{path}", headers=scopes.A)).text
        for path in ("/event_log", "/event_group"):
            for headers, status in ((scopes.A | {"x-roles": "admin"}, 403), (scopes.NOBODY, 401)):
                assert (await http.get(f"/api{path}", headers=headers)).status_code == status

    types = [one["type"] for one in told(of_a)]
    assert len(types) > first > 4
    assert {"project.created", "project.updated", "project.deleted", "task.created", "note.updated"} <= set(
        types
    )
    assert [text for text in OF_B if text in seen] == []
    assert "secret plan of b" in whole(of_b)  # what was moved to it


# -- policies


@pytest.mark.parametrize("has_where", [True, False])
async def test_an_endpoint_whose_owner_a_policy_refuses_gets_nothing(
    database_url: str, has_where: bool
) -> None:
    server = policies.app(where=policies.where_not_archived if has_where else None)
    server.events.emit(policies.Doc)
    server.webhooks.enable(["*"], **OFFERED)
    async with scripted(OK) as ann, scripted(OK) as root, client(server, database=database_url) as http:
        ids = [await endpoint(http, ann, policies.ANN), await endpoint(http, root, policies.ADMIN)]
        house = policies.House(server, http)
        await house.fill()
        docs = "/api/docs/{}".format
        await http.patch(docs(house.ids["beta"]), json={"rank": 9}, headers=policies.ADMIN)
        await http.patch(docs(house.ids["gamma"]), json={"archived": True}, headers=policies.ADMIN)
        await http.delete(docs(house.ids["zeta"]), headers=policies.ADMIN)
        await server.webhooks.drain()
        await http.post(f"/api/webhook_endpoints/{ids[0]}/replay", json=SINCE, headers=policies.ANN)
        await server.webhooks.drain()
        listed = (await http.get("/api/webhook_deliveries", headers=policies.ANN)).text

    # Only alpha is, and was, for everybody; endpoints have no roles, whoever made them.
    for receiver in (ann, root):
        assert {one["recordid"] for one in told(receiver)} == {house.ids["alpha"]}
        assert "hidden" not in whole(receiver)
        assert "pin-" not in whole(receiver)
    assert {one["type"] for one in json.loads(listed)["data"]} == {"doc.created"}


# -- redaction


async def test_a_redacted_field_is_in_no_body_and_in_no_list_of_changes(database_url: str) -> None:
    server = redaction.a_server()
    server.events.emit(redaction.Person)
    server.webhooks.enable(["*"], **OFFERED)
    async with scripted(OK) as receiver, client(server, database=database_url) as http:
        await endpoint(http, receiver, redaction.STAFF)
        person = await created(http, "/api/people", name="ada", phoneNumber=redaction.PHONE)
        path = f"/api/people/{person['id']}"
        await http.patch(path, json={"phoneNumber": "5550199-1", "name": "eve"}, headers=redaction.STAFF)
        await http.patch(path, json={"phoneNumber": "5550199-2"}, headers=redaction.STAFF)
        await http.delete(path, headers=redaction.STAFF)
        await server.webhooks.drain()

    assert [one["type"] for one in told(receiver)][:2] == ["person.created", "person.updated"]
    assert told(receiver)[0]["data"]["name"] == "ada"
    assert told(receiver)[1]["changed"] == "name"
    for text in (redaction.PHONE, "phoneNumber", "hint"):
        assert text not in whole(receiver)


# -- secrets


class Vault(Model, table="vaults", events=Emit(scope=("team",))):
    """A field of every kind that leaves no trace, and one that conditions may ask about."""

    name: str = field(default="")
    team: str | None = field(default=None, hidden=True)
    hidden_one: str | None = field(default=None, hidden=True)
    written_one: str | None = field(default=None, writeonly=True)
    encrypted_one: str | None = field(default=None, encrypted=True, blind_index=True)


SECRETS = ("hidden_one", "written_one", "encrypted_one", "team")
MARK = "s3cret-"
WRITES = ["vault.created", "vault.updated", "vault.updated", "vault.deleted", "mine.told"]


def a_vault(database: str, **settings: Any) -> Server:
    server = Server(database, key_provider=MemoryKeyProvider(), **settings)
    server.register(Vault)
    return server


async def write_secrets(server: Server) -> None:
    """Create, update each, delete, and publish an instance."""
    rows = server.db(Vault)
    row = await rows.create(name="n", **{name: f"{MARK}{name}-0" for name in SECRETS})
    await rows.update(row.id, **{name: f"{MARK}{name}-1" for name in SECRETS})
    await rows.update(row.id, name="m", **{name: f"{MARK}{name}-2" for name in SECRETS})
    await rows.delete(row.id)
    await server.events.publish("mine.told", {"of": [row]}, outside_transaction=True)


def assert_clean(text: str) -> None:
    assert MARK not in text
    assert [name for name in SECRETS if name in text] == []


async def test_no_secret_is_in_a_mail_a_webhook_a_route_or_a_log(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, mailer = a_vault(database_url, background=False), MemoryMailer()
    server.pipeline.auth.register(scopes.identify)
    server.mail.use(mailer)
    server.webhooks.enable(["*"], **OFFERED)
    server.events.declare("mine.told", audience="everyone")

    @server.events.subscribe("*", group="mails", ordered=False)
    @on
    def mail(event: Event) -> EmailMessage:
        return EmailMessage("ada@example.com", event.type, f"{event!r} {json.dumps(event.data, default=str)}")

    def mail_of_write(ctx: Context) -> EmailMessage:
        return EmailMessage("ada@example.com", "written", ctx.request.url.path)

    server.pipeline.db.register(
        service.send_email(mail_of_write), models=[Vault], operations=["create"], at="after"
    )
    operator = {"x-user": "root", "x-roles": "admin"}
    with caplog.at_level(logging.DEBUG):
        async with scripted(OK) as receiver, client(server, database=database_url) as http:
            await endpoint(http, receiver, {"x-user": "ann"})
            await write_secrets(server)
            body = {"name": "n", "written_one": f"{MARK}written_one-3"}
            data_of(await http.post("/api/vaults", json=body, headers={"x-user": "ann"}), 201)
            await server.events.drain()
            stored = str(await server.raw_query("SELECT payload FROM outbox_event"))
            await server.outbox.drainer().drain()
            await server.webhooks.drain()
            shown = [
                (await http.get(f"/api/{path}", headers=operator)).text
                for path in ("event_log", "event_group", "webhook_deliveries", "outbox_event")
            ]
            feed = str(await server.raw_query("SELECT * FROM event_log"))

    assert sorted({one["type"] for one in told(receiver)}) == sorted({*WRITES, "vault.created"})
    assert len(mailer.sent) == len(WRITES) + 2
    assert_clean(whole(receiver))
    assert_clean("".join(mail.text for mail in mailer.sent))
    assert_clean("".join(shown))
    assert_clean(stored + caplog.text.replace("written_one-3", ""))
    assert MARK not in feed


@pytest.mark.parametrize("make", ["redis", "nats", "rabbitmq"])
async def test_no_secret_reaches_a_broker(
    database_url: str, request: pytest.FixtureRequest, make: str
) -> None:
    """The bytes on the broker, read by its own client."""
    url = request.getfixturevalue(f"{make}_url")
    place = f"maniflex-test-{uuid4().hex}"
    server = a_vault(database_url, event_poll_interval=timedelta(milliseconds=50))
    if make == "redis":
        redis_bus = RedisBus(url, prefix=place)
        server.events.use(redis_bus)
        async with server.lifespan():
            await write_secrets(server)
            entries = await eventually(lambda: _entries(redis_bus, len(WRITES)))
            await redis_bus.redis.delete(redis_bus.stream)
        text = str(entries)
    elif make == "nats":
        nats_bus = NatsBus(url, stream=place, prefix=place)
        server.events.use(nats_bus)
        async with server.lifespan():
            await write_secrets(server)
            await eventually(lambda: _has_messages(nats_bus, len(WRITES)))
            stream = await nats_bus.jetstream()
            messages = [await stream.get_msg(place, n) for n in range(1, len(WRITES) + 1)]
            await stream.delete_stream(place)
        text = str([(one.subject, one.headers, one.data) for one in messages])
    else:
        async with tidy_rabbit_bus(url=url, exchange=f"{place}.events", confirm_timeout=2) as rabbit_bus:
            connection = await rabbit_bus.dial()
            channel: Any = await connection.channel()
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(rabbit_bus.exchange, "#")
            server.events.use(rabbit_bus)
            async with server.lifespan():
                await write_secrets(server)
                taken: list[Any] = []
                await eventually(lambda: _take_all(queue, taken, len(WRITES)))
            text = str([(one.routing_key, one.headers, one.body) for one in taken])
            await connection.close()

    for type in WRITES:
        assert type in text
    assert_clean(text)


async def _take_all(queue: Any, taken: list[Any], count: int) -> bool:
    if (message := await queue.get(no_ack=True, fail=False)) is not None:
        taken.append(message)
    return len(taken) == count


async def _entries(bus: RedisBus, count: int) -> Any:
    if bus.redis is None:  # it is opened when the bridge begins
        return None
    entries = await bus.redis.xrange(bus.stream)
    return entries if len(entries) == count else None


async def _has_messages(bus: NatsBus, count: int) -> bool:
    info = await (await bus.jetstream()).stream_info(bus.stream)
    return bool(info.state.messages == count)
