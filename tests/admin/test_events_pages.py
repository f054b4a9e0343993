"""Events and webhooks in the panel: what waits and fails is told, every verb works, secrets stay away."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from maniflex import AuthInfo
from maniflex.admin import Operations
from maniflex.admin.tables import AdminEvent
from maniflex.background.webhooks.model import WebhookDelivery, WebhookEndpoint
from maniflex.sql.statement import Sql
from tests.kit.event_shop import NOBODY_THERE, EventShop, Order
from tests.kit.internals import adapter_of
from tests.kit.panel import text_of, visiting
from tests.kit.scripted_http import scripted
from tests.kit.workshop import OPERATIONS, Workshop

AGES_AGO = {"since": "2020-01-31T08:00"}


async def place(shop: EventShop, number: int = 1) -> str:
    """Orders whose events are routed; the id of the last one."""
    for n in range(number):
        order = await shop.server.db(Order).create(title=f"order {n}")
    await shop.server.events.route_all()
    return order.id


async def endpoint_of_code(shop: EventShop) -> str:
    [one] = await shop.server.db(WebhookEndpoint).list({"is_declared": True})
    return one.id


async def test_groups_show_what_waits_and_are_paused_resumed_and_replayed(database_url: str) -> None:
    shop = EventShop()
    async with visiting(shop.server, database_url, background=False) as browser:
        await place(shop, 3)
        page = text_of(await browser.get(f"{OPERATIONS}/events"))
        assert re.search(r"billing group order\.\* at work 0 3 \S+ \S+ 0", page), page
        assert re.search(r"bridge-redis bridge \* at work 3 0 ", page), page
        group = f"{OPERATIONS}/groups/billing"
        assert await browser.send(f"{group}/pause", {}) == group
        page = text_of(await browser.get(group))
        assert "billing is paused; what comes waits for it." in page
        assert "It is paused: what comes waits for it. What waits: 3, the oldest for" in page
        await shop.server.events.drain()
        assert shop.billed == []
        await browser.send(f"{group}/resume", {})
        await shop.server.events.drain()  # billing is broken: all three are given up
        page = text_of(await browser.get(group))
        assert "Given up, the newest first" in page
        assert page.count("Fatal: the till is <b>closed</b>") == 3
        shop.broken = False
        await browser.send(f"{group}/replay", AGES_AGO)
        assert "Events handed on again: 3." in text_of(await browser.get(group))
        await shop.server.events.drain()
        assert [event.data["title"] for event in shop.billed] == ["order 0", "order 1", "order 2"]
        refused = await browser.post(f"{group}/replay", {"since": "soon"})
        assert (refused.status_code, "since is no time" in refused.text) == (422, True)
        assert (await browser.post(f"{OPERATIONS}/groups/nobody/pause")).status_code == 404
        done = await shop.server.db(AdminEvent).list({"model": "EventGroup"}, sorts=["created_at"])
        assert [(one.action, one.record_id) for one in done] == [
            ("group.pause", "billing"), ("group.resume", "billing"), ("group.replay", "billing"),
        ]  # fmt: skip


async def test_a_group_that_no_process_serves_says_so(database_url: str) -> None:
    shop = EventShop()
    async with visiting(shop.server, database_url, background=False) as browser:
        long_ago = shop.server.events.now() - timedelta(hours=2)
        row = (await shop.server.raw_query("SELECT served_at FROM event_group WHERE name = 'archive'"))[0]
        value = long_ago.isoformat() if isinstance(row["served_at"], str) else long_ago
        await shop.server.raw_exec("UPDATE event_group SET served_at = ? WHERE name = 'archive'", value)
        page = text_of(await browser.get(f"{OPERATIONS}/groups/archive"))
        assert "not served No process has its code now." in page


async def test_the_feed_is_filtered_and_walked_and_an_event_is_shown_whole(database_url: str) -> None:
    shop = EventShop()
    async with visiting(shop.server, database_url, background=False) as browser:
        order_id = await place(shop, 60)
        events = shop.server.events
        await events.publish(
            "invoice.sent", {"api_key": "k", "n": 1}, tenant_id="t9", outside_transaction=True
        )
        await events.route_all()
        page = await browser.get(f"{OPERATIONS}/events")
        assert page.count("<tr data-row>") == 3 + 50
        assert "Older" in text_of(page)
        older = await browser.get(f"{OPERATIONS}/events?before=12")
        assert (older.count("<tr data-row>"), "order 0" in older) == (11, False)
        assert older.count("hidden-mark") == 0
        for query, number in (
            ("f_type=order.*", 50), ("f_type=*.sent", 1), ("f_type=invoice.sent", 1), ("f_type=invoice", 0),
            (f"f_subject=order/{order_id}", 1), ("f_tenant=t9", 1), ("f_tenant=t9&f_type=order.*", 0),
        ):  # fmt: skip
            page = await browser.get(f"{OPERATIONS}/events?{query}")
            assert page.count("<tr data-row>") == number, query
        refused = await browser.http.get(f"/admin{OPERATIONS}/events?f_kind=x")
        assert (refused.status_code, "f_kind: there is no such filter" in refused.text) == (400, True)
        page = await browser.get(f"{OPERATIONS}/events?f_type=invoice.sent")
        [path] = re.findall(rf"/admin({OPERATIONS}/events/[0-9a-f-]+)", page)
        page = text_of(await browser.get(path))
        assert '"api_key": "•••", "n": 1' in re.sub(r"\s+", " ", page)
        assert "To no group." in page
        await events.drain()
        [row] = await shop.server.raw_query("SELECT id FROM event_log WHERE subject = ?", f"order/{order_id}")
        page = await browser.get(f"{OPERATIONS}/events/{row['id']}")
        assert f'href="/admin/orders/{order_id}"' in page
        assert re.search(r"Group Status Error billing dead Fatal: the till", text_of(page))
        assert (await browser.http.get(f"/admin{OPERATIONS}/events/nothing")).status_code == 404


async def test_a_search_goes_back_a_bounded_way_and_says_how_far(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = EventShop()
    monkeypatch.setattr("maniflex.admin.operations.events.SEARCHED", 10)
    async with visiting(shop.server, database_url, background=False) as browser:
        await shop.server.events.publish("rare.one", {}, outside_transaction=True)
        await place(shop, 30)
        path, seen = f"{OPERATIONS}/events?f_type=rare.*", []
        while path:
            page = await browser.get(path)
            seen.append((page.count("<tr data-row>"), "10 positions were searched" in page))
            link = re.search(r'rel="next" href="/admin([^"]+)"', page)
            path = link[1].replace("&amp;", "&") if link else ""
        assert seen == [(0, True), (0, True), (0, True), (1, False)]


async def test_webhooks_show_their_deliveries_and_every_verb_works(database_url: str) -> None:
    shop = EventShop()
    async with visiting(shop.server, database_url, background=False) as browser, scripted() as receiver:
        client = await shop.add_endpoint(f"{receiver.url}/own", AuthInfo(user_id="bob"))
        await place(shop)
        await shop.server.webhooks.drain()
        code = await endpoint_of_code(shop)
        page = text_of(await browser.get(f"{OPERATIONS}/webhooks"))
        assert re.search(r"9/hook by code order\.\* enabled fails for \S+ \S+ 1 ", page), page
        assert re.search(r"/own bob order\.\* enabled 0 –", page), page
        page = await browser.get(f"{OPERATIONS}/webhooks/{code}")
        assert "the request failed: ConnectError" in page
        [delivery] = await shop.server.db(WebhookDelivery).list({"endpoint_id": code})
        page = text_of(await browser.get(f"{OPERATIONS}/deliveries/{delivery.id}"))
        assert "The last attempt failed (the request failed: ConnectError); the next one is in" in page
        assert re.search(r"Attempt Time Took Status Answer 1 \S+ \S+ \S+ ms – the request failed", page), page

        await browser.send(f"{OPERATIONS}/webhooks/{code}/disable", {})
        page = text_of(await browser.get(f"{OPERATIONS}/webhooks/{code}"))
        assert "It is disabled (by hand): it is told of nothing, and what waited was cancelled." in page
        page = text_of(await browser.get(f"{OPERATIONS}/deliveries/{delivery.id}"))
        assert "It was cancelled when its endpoint was disabled." in page
        await browser.send(f"{OPERATIONS}/webhooks/{code}/enable", {})
        await browser.send(f"{OPERATIONS}/webhooks/{code}/recover", AGES_AGO)
        assert "Deliveries sent again: 1." in text_of(await browser.get(f"{OPERATIONS}/webhooks/{code}"))

        await browser.send(f"{OPERATIONS}/webhooks/{client}/test", {})
        page = text_of(await browser.get(f"{OPERATIONS}/webhooks/{client}"))
        assert re.search(r"The endpoint answered 20\d after \d+ ms\.", page)
        await browser.send(f"{OPERATIONS}/webhooks/{code}/test", {})
        assert "The ping failed after" in text_of(await browser.get(f"{OPERATIONS}/webhooks/{code}"))

        before = len(receiver.asked)
        [own] = await shop.server.db(WebhookDelivery).list({"endpoint_id": client})
        await browser.send(f"{OPERATIONS}/deliveries/{own.id}/resend", {})
        again = {**AGES_AGO, "patterns": "order.created, order.deleted"}
        await browser.send(f"{OPERATIONS}/webhooks/{client}/replay", again)
        assert "Events handed on again: 1." in text_of(await browser.get(f"{OPERATIONS}/webhooks/{client}"))
        await shop.server.webhooks.drain()
        assert len(receiver.asked) == before + 2
        refused = await browser.post(
            f"{OPERATIONS}/webhooks/{client}/replay", {**AGES_AGO, "patterns": "x.*"}
        )
        assert refused.status_code == 422
        done = await shop.server.db(AdminEvent).list({"model": "WebhookEndpoint"}, sorts=["created_at"])
        assert [one.action for one in done] == [
            "endpoint.disable", "endpoint.enable", "endpoint.recover", "endpoint.test", "endpoint.test",
            "endpoint.replay",
        ]  # fmt: skip


async def test_no_page_has_a_secret_or_the_value_of_a_header(database_url: str) -> None:
    shop = EventShop()
    async with visiting(shop.server, database_url, background=False) as browser:
        client = await shop.add_endpoint(NOBODY_THERE, AuthInfo(user_id="bob"))
        await place(shop)
        await shop.server.events.drain()
        await shop.server.webhooks.drain()
        code = await endpoint_of_code(shop)
        [row] = await shop.server.raw_query("SELECT secret FROM webhook_endpoint WHERE id = ?", client)
        paths = [f"{OPERATIONS}/events", f"{OPERATIONS}/webhooks", f"{OPERATIONS}/groups/billing"]
        paths += [f"{OPERATIONS}/webhooks/{id}" for id in (code, client)]
        for path in list(paths):
            page = await browser.get(path)
            paths += re.findall(rf'href="/admin({OPERATIONS}/(?:events|deliveries|outbox)/[0-9a-f-]+)"', page)
        assert len(set(paths)) >= 8
        for path in set(paths):
            page = await browser.get(path)
            for mark in ("secret-mark", "whsec_", row["secret"], "header-mark", "hidden-mark"):
                assert mark not in page, (path, mark)


async def test_an_application_without_events_has_none_of_these_pages(sqlite_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, sqlite_url, background=False) as browser:
        tabs = (await browser.get(f"{OPERATIONS}/")).partition('class="tabs"')[2].partition("</nav>")[0]
        assert "Webhooks" not in tabs
        assert "Events" not in tabs
        for path in ("events", "events/x", "groups/x", "webhooks", "webhooks/x", "deliveries/x"):
            answer = await browser.http.get(f"/admin{OPERATIONS}/{path}")
            assert answer.status_code == 404, path
        for path in ("groups/x/pause", "groups/x/replay", "webhooks/x/test", "deliveries/x/resend"):
            assert (await browser.post(f"{OPERATIONS}/{path}", AGES_AGO)).status_code == 404, path


async def test_who_only_looks_has_no_buttons(sqlite_url: str) -> None:
    shop = EventShop(operations=Operations(role="operator", view_role="superuser"))
    async with visiting(shop.server, sqlite_url, background=False) as browser:
        await place(shop)
        code = await endpoint_of_code(shop)
        for path in ("groups/billing", f"webhooks/{code}"):
            main = (await browser.get(f"{OPERATIONS}/{path}")).partition("<main")[2]
            assert 'method="post"' not in main, path
        for path in ("groups/billing/pause", f"webhooks/{code}/disable", f"webhooks/{code}/test"):
            assert (await browser.post(f"{OPERATIONS}/{path}", AGES_AGO)).status_code == 403, path


MANY = 20_000
LARGE_TABLES = ("event_log", "outbox_event", "webhook_delivery")


async def test_no_page_reads_what_is_over_to_show_what_is_not(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = EventShop()
    async with visiting(shop.server, postgres_url, background=False) as browser:
        await place(shop)
        code = await endpoint_of_code(shop)
        await deliver_many(shop, code)
        adapter, asked = adapter_of(shop.server), list[Sql]()
        fetch = type(adapter).fetch

        async def noting(self: Any, sql: Sql, *rest: Any, **options: Any) -> Any:
            asked.append(sql)
            return await fetch(self, sql, *rest, **options)

        monkeypatch.setattr(type(adapter), "fetch", noting)
        for path in ("events", "events?f_type=rare.*", "groups/billing", "webhooks", f"webhooks/{code}",
                     f"webhooks/{code}?f_status=failed"):  # fmt: skip
            await browser.get(f"{OPERATIONS}/{path}")
        monkeypatch.undo()
        plans = [await fetch(adapter, Sql(f"EXPLAIN {sql.text}", sql.params)) for sql in asked]
    steps = [str(line) for plan in plans for (line,) in plan]
    assert len(steps) > 20
    assert [step for step in steps if re.search(rf"Seq Scan on ({'|'.join(LARGE_TABLES)})\b", step)] == []


async def deliver_many(shop: EventShop, endpoint: str) -> None:
    """Events that were handed on long ago, with their deliveries."""
    of_event = "'order.updated', '/x', now(), 0, false"
    of_message = "'maniflex.event.billing', 'event/e' || i, 'delivered', 1, 0, now(), now()"
    of_delivery = f"'{endpoint}', 'e' || i, 'order.updated', 'delivered', 1, 1, true, now()"
    for table, columns, values in (
        (
            "event_log",
            "position, event_id, type, source, time, schema_version, erased",
            f"i + 1, 'e' || i, {of_event}",
        ),
        ("outbox_event", "kind, about, status, attempts, claimed_with, retry_at, published_at", of_message),
        (
            "webhook_delivery",
            "endpoint_id, event_id, type, status, attempt_count, tries, is_visible, retry_at",
            of_delivery,
        ),
    ):
        await shop.server.raw_exec(
            f"INSERT INTO {table} (id, seq, {columns}, created_at, updated_at)"
            f" SELECT 'e' || i, i + 1000, {values}, now(), now() FROM generate_series(1, {MANY}) i"
        )
        await shop.server.raw_exec(f"ANALYZE {table}")
    await shop.server.raw_exec(f"UPDATE event_position SET last = {MANY + 1}")
    await shop.server.raw_exec(f"UPDATE event_group SET position = {MANY + 1}")
