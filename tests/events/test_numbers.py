"""The numbers of events, webhooks and mail: each is on the page, with no label that names anybody."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from maniflex import Model, Server
from maniflex.errors import Fatal
from maniflex.events import Emit, Event
from maniflex.ext.mail import EmailMessage, MemoryMailer
from maniflex.middleware import auth
from maniflex.testing import FakeClock, client
from tests.events.test_bridges import ListBus
from tests.kit.scripted_http import Answer, scripted
from tests.kit.waiting import eventually

OK: Answer = (200, {}, b"fine")


class Order(Model, events=True):
    """What emits."""

    total: int = 0


class Odd(Model, events=Emit(type=lambda what, record: f"odd.{record['id']}.{what}")):
    """What emits types that nobody knows beforehand."""

    total: int = 0


async def numbers(http: Any) -> dict[str, float]:
    """The page of metrics, by name and labels."""
    lines = (await http.get("/metrics")).text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
    return {name.removeprefix("maniflex_"): float(value) for name, value in pairs}


async def test_every_number_is_on_the_page(database_url: str) -> None:
    bus, clock = ListBus(), FakeClock()
    server = Server(background=False, metrics_enabled=True)
    server.register(Order, Odd)
    server.pipeline.auth.register(auth.allow_anonymous())
    server.events.declare("mine.told", audience="nobody")
    server.events.use(bus, group="bridge-list", start="beginning")
    server.mail.use(MemoryMailer())

    seen: set[int] = set()

    @server.events.subscribe("order.created", group="billing", backoff=lambda failures: timedelta(0))
    async def bill(event: Event) -> None:
        if event.data["total"] == 2:
            raise Fatal("no bill")
        if event.data["total"] == 3 and 3 not in seen:
            seen.add(3)
            raise ValueError("not yet")

    async with scripted(OK, (410, {}, b""), OK) as receiver:
        server.webhooks.send(receiver.url, "order.*", secret=None, allow_private=True, ordering="endpoint")
        async with client(server, database=database_url, clock=clock) as http:
            for total in (1, 2, 3):
                order = await server.db(Order).create(total=total)
            await server.db(Order).update(order.id, total=4)
            await server.db(Odd).create()
            async with server.transaction():
                for _ in range(2):
                    await server.db(Order).create(total=5)
            for type in ("mine.told", "unknown.type"):
                await server.events.publish(type, outside_transaction=True)
            before = await numbers(http)
            await server.events.store.serve_group(
                "gone", "handler", ["*"], ordered=True, from_now=False, now=clock.now()
            )
            clock.advance(timedelta(seconds=7))
            await server.events.drain()
            await server.webhooks.drain()
            await server.events.drain()  # an endpoint that is gone is an event, too
            await server.mail.send(EmailMessage("ada@example.com", "Hello", "there"))
            await server.outbox.drainer().drain()
            after = await numbers(http)

    assert before["events_unrouted"] == 9
    assert after["events_unrouted"] == 0
    assert after['events_published_total{type="order.created"}'] == 5
    assert after['events_published_total{type="order.updated"}'] == 1
    assert after['events_published_total{type="mine.told"}'] == 1
    assert after['events_published_total{type="other"}'] == 3
    assert after['events_delivered_total{group="billing"}'] == 4
    assert after['events_failed_total{group="billing"}'] == 1
    assert after['events_dead_total{group="billing"}'] == 1
    assert after['events_unhandled{group="gone"}'] == 10
    assert after['events_lag_seconds{group="gone"}'] == 0
    assert after['events_bridge_lag_seconds{bus="bridge-list"}'] == 7
    assert after['webhooks_attempts_total{outcome="delivered"}'] == 1
    assert after['webhooks_attempts_total{outcome="failed"}'] == 1
    assert after["webhooks_disabled_total"] == 1
    assert after["webhooks_pending"] == 0
    assert after["mail_sent_total"] == 1
    ours = [name for name in after if name.startswith(("events_", "webhooks_", "mail_"))]
    assert not [name for name in ours if order.id in name or "127.0.0.1" in name]


async def test_routers_and_bridges_count_what_they_do(database_url: str) -> None:
    bus = ListBus()
    server = Server(metrics_enabled=True, event_poll_interval=timedelta(milliseconds=50))
    server.register(Order)
    server.pipeline.auth.register(auth.allow_anonymous())
    server.events.use(bus, group="bridge-list")
    bus.is_away = True
    async with client(server, database=database_url, background=True) as http:
        await server.db(Order).create(total=1)
        await eventually(lambda: server.metrics.value("events_routed_total") == 1)
        await eventually(lambda: server.metrics.value("events_poll_errors_total") > 0)
        bus.is_away = False
        await eventually(lambda: bus.types == ["order.created"])
        assert (await numbers(http))['events_bridge_lag_seconds{bus="bridge-list"}'] >= 0
