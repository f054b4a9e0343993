"""Webhooks of code: every event is posted, signed, in order, again after a failure, and to nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from maniflex import DeclarationError, Model, Server, field
from maniflex.background.webhooks.attempt import PAUSES
from maniflex.background.webhooks.model import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from maniflex.events import Event
from maniflex.middleware import service
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.scripted_http import Answer, ScriptedHttp, scripted

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OK: Answer = (200, {}, b"fine")
FAILS: Answer = (500, {}, b"broken")
MOMENT = timedelta(milliseconds=1)


class Order(Model, events=True):
    """What emits."""

    total: int = field(default=0)
    secret: str | None = field(default=None, hidden=True)


@asynccontextmanager
async def serving(
    url: str, declare: Callable[[Server], object], clock: FakeClock | None = None, **settings: Any
) -> AsyncIterator[Server]:
    server = Server(url, clock=clock, background=False, **settings)
    server.register(Order)
    declare(server)
    async with server.lifespan():
        yield server


def to(
    receiver: ScriptedHttp, *patterns: str, secret: str | None = SECRET, **options: Any
) -> Callable[[Server], None]:
    def declare(server: Server) -> None:
        server.webhooks.send(
            receiver.url, *(patterns or ("*",)), secret=secret, allow_private=True, **options
        )

    return declare


async def publish(server: Server, *types: str, **values: Any) -> list[Event]:
    return [await server.events.publish(type, outside_transaction=True, **values) for type in types]


async def statuses(server: Server) -> list[str]:
    return [str(one.status) for one in await server.db(WebhookDelivery).list(sorts=["id"], limit=100)]


async def test_every_event_is_posted_and_verified_by_another_library(database_url: str) -> None:
    async with scripted(OK) as receiver, serving(database_url, to(receiver, "order.*")) as server:
        order = await server.db(Order).create(total=7, secret="s3cret")
        await server.db(Order).update(order.id, total=8)
        await publish(server, "bill.paid")

        assert await server.webhooks.drain() == 2

        events = await server.events.read(patterns=["order.*"])
        for asked, event in zip(receiver.asked, events, strict=True):
            Webhook(SECRET).verify(asked.body, asked.headers)
            body = json.loads(asked.body)
            assert (asked.method, asked.headers["webhook-id"]) == ("POST", event.id)
            assert (body["type"], body["data"]) == (event.type, event.data)
            assert b"s3cret" not in asked.body
        changed = receiver.asked[0].body.replace(b"7", b"9")
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(changed, receiver.asked[0].headers)
        assert await statuses(server) == ["delivered", "delivered"]


async def test_what_is_rolled_back_is_posted_nowhere(sqlite_url: str) -> None:
    async with scripted(OK) as receiver, serving(sqlite_url, to(receiver)) as server:
        with pytest.raises(ZeroDivisionError):
            await write_and_fail(server)

        assert await server.webhooks.drain() == 0
    assert receiver.asked == []


async def write_and_fail(server: Server) -> None:
    async with server.transaction():
        await server.db(Order).create(total=1)
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("answer", "status"), [(FAILS, 500), ((302, {"Location": "/elsewhere"}, b""), 302), ((404, {}, b""), 404)]
)
async def test_what_is_not_2xx_is_tried_again_after_its_pauses(
    database_url: str, answer: Any, status: int
) -> None:
    clock = FakeClock()
    async with scripted(answer) as receiver, serving(database_url, to(receiver), clock) as server:
        [event] = await publish(server, "a")
        counts = [await server.webhooks.drain()]
        for pause in PAUSES:
            clock.advance(pause * 0.9 - MOMENT)
            counts.append(await server.webhooks.drain())
            clock.advance(pause * 0.2 + 2 * MOMENT)
            counts.append(await server.webhooks.drain())
            if not await server.db(WebhookDelivery).count(filters={"status": "pending"}):
                break

        # The endpoint is not disabled meanwhile: all of it takes three days.
        assert counts == [1, *([0, 1] * len(PAUSES))]
        assert {asked.headers["webhook-id"] for asked in receiver.asked} == {event.id}
        assert {asked.target for asked in receiver.asked} == {"/"}
        attempts = await server.db(WebhookAttempt).list(sorts=["number"], limit=100)
        assert [one.number for one in attempts] == list(range(1, 11))
        assert {one.status for one in attempts} == {status}
        assert await statuses(server) == ["failed"]


async def test_an_endpoint_that_is_gone_is_disabled_and_told_of(database_url: str) -> None:
    def declare(server: Server) -> None:
        to(receiver, "order.*", "a", ordering="endpoint")(server)
        server.events.subscribe("webhook.*", group="g")(told.append)

    told: list[Event] = []
    async with scripted((410, {}, b"")) as receiver, serving(database_url, declare) as server:
        await publish(server, "a", "a")
        assert await server.webhooks.drain() == 1
        await server.events.drain()
        await publish(server, "a")
        assert await server.webhooks.drain() == 0

        assert await statuses(server) == ["cancelled", "cancelled"]
        [endpoint] = await server.db(WebhookEndpoint).list()
        assert (endpoint.status, endpoint.disabled_reason) == ("disabled", "gone")
        assert [(event.type, event.data["reason"]) for event in told] == [
            ("webhook.endpoint_disabled", "gone")
        ]


async def test_an_endpoint_that_only_fails_is_disabled_in_the_end(sqlite_url: str) -> None:
    clock = FakeClock()
    async with scripted(FAILS) as receiver, serving(sqlite_url, to(receiver), clock) as server:
        for _ in range(6):
            await publish(server, "a")
            await server.webhooks.drain()
            clock.advance(timedelta(days=1))

        [endpoint] = await server.db(WebhookEndpoint).list()
        assert (endpoint.status, endpoint.disabled_reason) == ("disabled", "failing")
        assert set(await statuses(server)) <= {"cancelled", "failed"}


async def test_a_success_begins_the_time_of_failures_again(sqlite_url: str) -> None:
    clock = FakeClock()
    async with scripted(FAILS, OK, FAILS) as receiver, serving(sqlite_url, to(receiver), clock) as server:
        await publish(server, "a")
        await server.webhooks.drain()
        clock.advance(timedelta(days=4))
        await server.webhooks.drain()
        clock.advance(timedelta(days=4))
        await publish(server, "a")
        await server.webhooks.drain()

        [endpoint] = await server.db(WebhookEndpoint).list()
        assert endpoint.status == "enabled"
        assert endpoint.failing_since == clock.now()


async def test_too_many_requests_pauses_the_whole_endpoint(database_url: str) -> None:
    clock = FakeClock()
    async with scripted((429, {"Retry-After": "120"}, b""), OK) as busy, scripted(OK) as other:

        def declare(server: Server) -> None:
            to(busy, ordering="none")(server)
            to(other)(server)

        async with serving(database_url, declare, clock) as server:
            await publish(server, "a", subject="thing/1")
            await server.webhooks.drain()
            await publish(server, "b", subject="thing/2")
            clock.advance(timedelta(seconds=120) - MOMENT)
            await server.webhooks.drain()
            assert (len(busy.asked), len(other.asked)) == (1, 2)

            clock.advance(MOMENT)
            await server.webhooks.drain()
            assert (len(busy.asked), len(other.asked)) == (3, 2)


@pytest.mark.parametrize(
    ("ordering", "types"),
    [("record", ["first", "other", "first", "second"]), ("endpoint", ["first", "first", "second", "other"])],
)
async def test_what_waits_holds_up_its_own_line_only(
    database_url: str, ordering: str, types: Sequence[str]
) -> None:
    clock = FakeClock()
    async with (
        scripted(FAILS, OK) as receiver,
        serving(database_url, to(receiver, ordering=ordering), clock) as server,
    ):
        await publish(server, "first", subject="thing/1")
        await server.webhooks.drain()
        await publish(server, "second", subject="thing/1")
        await publish(server, "other", subject="thing/2")
        await server.webhooks.drain()
        clock.advance(timedelta(seconds=6))
        await server.webhooks.drain()

    assert [json.loads(asked.body)["type"] for asked in receiver.asked] == types


async def test_a_cloudevent_the_old_signature_and_own_headers(sqlite_url: str) -> None:
    options: Any = {"format": "cloudevents", "legacy_signature": True, "headers": {"X-Team": "blue"}}
    async with scripted(OK) as receiver, serving(sqlite_url, to(receiver, **options)) as server:
        [event] = await publish(server, "a", data={"n": 1}, subject="thing/1")
        await server.webhooks.drain()

    [asked] = receiver.asked
    from maniflex._webhook_signatures import hex_digest

    assert asked.headers["x-webhook-signature"] == f"sha256={hex_digest(SECRET.encode(), asked.body)}"
    assert asked.headers["x-team"] == "blue"
    assert asked.headers["content-type"] == "application/cloudevents+json"
    assert asked.headers["user-agent"] == "maniflex-webhooks"
    body = json.loads(asked.body)
    assert (body["specversion"], body["id"], body["data"]) == ("1.0", event.id, {"n": 1})


async def test_service_webhook_posts_the_writes_of_requests_alone(database_url: str) -> None:
    async with scripted(OK) as receiver:
        server = Server(database_url, background=False)
        server.register(Order)
        entry = service.webhook(receiver.url, SECRET, allow_private=True)
        server.pipeline.db.register(entry, models=[Order], at="after")
        async with client(server, database=database_url) as http:
            answer = await http.post("/api/orders", json={"total": 3, "secret": "s3cret"})
            assert answer.status_code == 201, answer.text
            await server.db(Order).create(total=4)
            await server.webhooks.drain()

            [asked] = receiver.asked
            Webhook(SECRET).verify(asked.body, asked.headers)
            body = json.loads(asked.body)
            assert (body["type"], body["data"]["total"]) == ("order.created", 3)
            assert b"s3cret" not in asked.body
            # Nobody who subscribes hears of it twice.
            assert len(await server.events.read()) == 2


def test_mistakes_of_endpoints_stop_the_start() -> None:
    server = Server("sqlite://", background=False)
    server.register(Order)
    server.webhooks.send("http://10.0.0.1/x", "a", secret=SECRET)
    server.webhooks.send("https://example.com/b", "a b", secret=SECRET)
    server.webhooks.send("https://example.com/c", "a", secret="short")
    server.webhooks.send("https://example.com/d", "a", secret=SECRET, headers={"Host": "x"})
    server.webhooks.send("https://example.com/e", "a", secret="")
    server.webhooks.send("https://example.com/f", "a", secret=SECRET)
    server.webhooks.send("https://example.com/f", "b", secret=SECRET)
    server.webhooks.send("https://example.com/g", "b", secret=SECRET, signing="ed25519")
    server.webhooks.send("https://example.com/h", "b", secret=None, format="xml", timeout=0)

    with pytest.raises(DeclarationError) as problems:
        server.seal()

    text = str(problems.value)
    for letter in "xbcdefgh":
        assert f"/{letter}'" in text
    assert SECRET not in text


async def test_deliveries_of_events_that_another_router_routed_are_made(sqlite_url: str) -> None:
    """A process without the webhooks, of a version before, gives the positions."""
    async with scripted(OK) as receiver:
        async with serving(sqlite_url, to(receiver, ordering="endpoint")):
            pass
        async with serving(sqlite_url, lambda server: None) as old:
            await publish(old, "a", "b")
            await old.events.drain()
        async with serving(sqlite_url, to(receiver, ordering="endpoint")) as server:
            await publish(server, "c")
            assert await server.webhooks.drain() == 3
            assert await server.webhooks.drain() == 0
    assert [json.loads(asked.body)["type"] for asked in receiver.asked] == ["a", "b", "c"]


async def test_hanging_endpoints_keep_nothing_from_others(sqlite_url: str) -> None:
    async with scripted(None) as hanging, scripted(OK) as good:

        def declare(server: Server) -> None:
            for number in range(100):
                to(hanging, name=str(number), timeout=2, ordering="none")(server)
            to(good)(server)

        alone = await _longest_wait(sqlite_url, good, to(good))
        beside_others = await _longest_wait(sqlite_url, good, declare)
        assert beside_others < 1 + 5 * alone


async def _longest_wait(url: str, receiver: ScriptedHttp, declare: Callable[[Server], None]) -> float:
    """How long the slowest of five times three events takes to the receiver, which answers at once."""
    server = Server(url, event_poll_interval=timedelta(milliseconds=50))
    server.register(Order)
    declare(server)
    loop, longest = asyncio.get_running_loop(), 0.0
    async with server.lifespan():
        for _ in range(5):
            await publish(server, "a", "a", "a")
            began, before = loop.time(), len(receiver.asked)
            while len(receiver.asked) < before + 3:
                await a_moment(loop)
            longest = max(longest, loop.time() - began)
    return longest


def a_moment(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    moment: asyncio.Future[None] = loop.create_future()
    loop.call_later(0.01, moment.set_result, None)
    return moment
