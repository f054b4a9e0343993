"""The operations panel: schedules, outbox, scheduled fields, processes and the doctor."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

from maniflex.admin.operations.schedules import next_times
from maniflex.background.processes.store import WorkProcess
from maniflex.background.schedules.model import ScheduleFiring
from maniflex.testing import FakeClock
from tests.admin.test_operations import actions_of, go_on
from tests.kit.panel import text_of, visiting
from tests.kit.workshop import OPERATIONS, Order, Workshop


def test_the_next_times_cross_a_clock_change_as_an_independent_library_says() -> None:
    berlin, now = ZoneInfo("Europe/Berlin"), datetime(2026, 10, 20, 12, tzinfo=UTC)
    times = next_times("30 2 * * *", "Europe/Berlin", ZoneInfo("UTC"), now)
    walk = CronSim("30 2 * * *", now.astimezone(berlin))
    assert [one.instant for one in times] == [next(walk).astimezone(UTC).isoformat() for _ in range(10)]
    assert [one.change for one in times if one.change] == ["UTC+0100"]
    assert times[0].own == "Wed 2026-10-21 02:30"
    assert times[0].theirs == "Wed 2026-10-21 00:30"
    assert next_times("30 2 * * *", "Europe/Berlin", berlin, now)[0].theirs == ""


async def test_a_schedule_is_looked_at_changed_paused_resumed_fired_and_deleted(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        schedules = shop.server.schedules
        await schedules.declare()
        page = text_of(await browser.get(f"{OPERATIONS}/schedules"))
        assert "nightly every day at 02:30 Europe/Berlin report.daily.v1 active" in page
        [schedule] = await schedules.list()
        place = f"{OPERATIONS}/schedules/{schedule.id}"
        assert (await browser.get(place)).count('<td class="time" data-label="Europe/Berlin">') == 10
        assert await browser.send(f"{place}/run") == place
        await shop.work()
        page = text_of(await browser.get(place))
        assert "by hand" in page
        assert "succeeded" in page
        assert await shop.server.db(ScheduleFiring).count({"schedule_id": schedule.id}) == 1
        await browser.send(f"{place}/pause")
        assert (await schedules.get(schedule.id)).status == "inactive"
        assert "It is paused." in text_of(await browser.get(place))
        await browser.send(f"{place}/resume")
        assert (await schedules.get(schedule.id)).status == "active"
        assert 'name="cron" value="30 2 * * *"' in await browser.get(f"{place}/edit")
        form = {"name": "nightly", "cron": "61 2 * * *", "timezone": "Europe/Berlin", "kind": "run"}
        form |= {"target": "report.daily.v1", "policy": "once", "payload": "{}"}
        wrong = await browser.post(f"{place}/edit", form)
        assert wrong.status_code == 422
        assert 'aria-invalid="true"' in wrong.text
        wrong = await browser.post(f"{place}/edit", {**form, "payload": "{"})
        assert wrong.status_code == 422
        look = await browser.post(f"{place}/edit", {**form, "cron": "0 4 * * 1", "preview": "1"})
        assert "every Monday at 04:00 Europe/Berlin" in text_of(look.text)
        await browser.send(f"{place}/edit", {**form, "cron": "0 4 * * 1"})
        assert (await schedules.get(schedule.id)).cron == "0 4 * * 1"
        part = await browser.get(f"{OPERATIONS}/schedules/preview?cron=@hourly&timezone=Asia/Kolkata")
        assert "every hour at minute 0 Asia/Kolkata" in part
        assert "note warning" in await browser.get(f"{OPERATIONS}/schedules/preview?cron=nonsense")
        await browser.get(f"{OPERATIONS}/schedules/new")
        new = await browser.send(f"{OPERATIONS}/schedules/new", {**form, "name": "other", "cron": "@daily"})
        assert "every day at 00:00" in text_of(await browser.get(new))
        twice = await browser.post(f"{OPERATIONS}/schedules/new", {**form, "name": "other", "cron": "@daily"})
        assert twice.status_code == 422
        await browser.send(f"{new}/delete", {"reason": "no longer"})
        assert [one.name for one in await schedules.list()] == ["nightly"]
        assert await actions_of(shop.server) == [
            "schedule.run", "schedule.pause", "schedule.resume", "schedule.update", "schedule.create",
            "schedule.delete",
        ]  # fmt: skip


async def test_a_late_schedule_is_called_late(sqlite_url: str) -> None:
    shop, clock = Workshop(), FakeClock()
    async with visiting(shop.server, sqlite_url, clock=clock) as browser:
        await shop.server.schedules.declare()
        [schedule] = await shop.server.schedules.list()
        assert schedule.next_run_at is not None
        clock.advance(schedule.next_run_at - clock.now() + timedelta(minutes=30))
        await browser.sign_in()
        assert "late for 30 min" in text_of(await browser.get(f"{OPERATIONS}/schedules"))
        assert "late for 30 min" in text_of(await browser.get(f"{OPERATIONS}/schedules/{schedule.id}"))


async def test_dead_messages_of_one_kind_are_delivered_once_each_and_others_stay(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        server = shop.server
        async with server.transaction():
            for n in range(3):
                await server.outbox.enqueue("order.placed", {"n": n})
            [other] = await server.outbox.enqueue_many("order.paid", [{}])
        await server.outbox.drainer().drain()
        page = text_of(await browser.get(f"{OPERATIONS}/outbox?f_status=dead"))
        assert "Dead messages by error" in page
        assert "2 Fatal: the broker refused 0" in page
        detail = await browser.get(f"{OPERATIONS}/outbox/{other.id}")
        assert "Dead" in text_of(detail)
        assert "&#34;specversion&#34;: &#34;1.0&#34;" in detail
        await browser.get(f"{OPERATIONS}/outbox?f_odd=1", 400)
        await browser.get(f"{OPERATIONS}/outbox?f_status=odd", 400)
        shop.broken = False
        controls = {"all": "1", "query": "f_kind=order.placed"}
        words, _ = await go_on(browser, f"{OPERATIONS}/outbox/bulk", controls)
        assert "3 dead messages would wait for delivery again." in words[0]
        await server.outbox.drainer().drain()
        assert len(shop.delivered) == len(set(shop.delivered)) == 3
        assert f"/outbox/{other.id}" in await browser.get(f"{OPERATIONS}/outbox?f_status=dead")
        assert await browser.send(f"{OPERATIONS}/outbox/{other.id}/redrive")
        again = await browser.post(f"{OPERATIONS}/outbox/{other.id}/redrive")
        assert again.status_code == 409
        assert await actions_of(server) == ["outbox.redrive"] * 4


async def test_a_waiting_message_says_why(sqlite_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, sqlite_url) as browser:
        async with shop.server.transaction():
            first = await shop.server.outbox.enqueue("order.placed", {"n": 1}, key="k")
            second = await shop.server.outbox.enqueue("order.placed", {"n": 2}, key="k")
        text = text_of(await browser.get(f"{OPERATIONS}/outbox/{second.id}"))
        assert f"Message {first.id} of key k is before it." in text
        text = text_of(await browser.get(f"{OPERATIONS}/outbox/{first.id}"))
        assert "No living process has a handler for order.placed." in text


async def test_scheduled_fields_are_counted_and_swept(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        past = datetime.now(UTC) - timedelta(minutes=1)
        order = await shop.server.db(Order).create(title="One", publish_at=past)
        page = text_of(await browser.get(f"{OPERATIONS}/scheduled"))
        assert "Order.publish_at sets status to published 1 0 0" in page
        await browser.send(f"{OPERATIONS}/scheduled/sweep")
        assert (await shop.server.db(Order).read(order.id)).status == "published"
        page = text_of(await browser.get(f"{OPERATIONS}/scheduled"))
        assert "Order.publish_at sets status to published 0 1 0" in page
        assert await actions_of(shop.server) == ["sweep"]


async def test_processes_are_alive_late_gone_or_idle(database_url: str) -> None:
    shop, clock = Workshop(), FakeClock()
    async with visiting(shop.server, database_url, clock=clock) as browser:
        records = shop.server.db(WorkProcess)
        for host, age in (("fresh", 5), ("slow", 40), ("dead", 700)):
            seen = clock.now() - timedelta(seconds=age)
            await records.create(
                host=host, pid=1, role="worker", version="1", types=["report.*"], concurrency=4,
                started_at=seen, seen_at=seen,
            )  # fmt: skip
        page = text_of(await browser.get(f"{OPERATIONS}/processes"))
        for words in ("fresh 1 alive", "slow 1 late", "dead 1 gone"):
            assert words in page
        await shop.server.work.submit("report.daily.v1", {})
        [process] = await records.list({"host": "fresh"})
        clock.advance(timedelta(minutes=3))
        await records.update(process.id, seen_at=clock.now())
        part = text_of(await browser.get(f"{OPERATIONS}/processes/rows"))
        assert "fresh 1 alive does not take report.daily.v1, which is due" in part
        clock.advance(timedelta(minutes=3))
        numbers = text_of(await browser.get(f"{OPERATIONS}/numbers"))
        assert "no living process takes report.daily.v1 (the last one was seen 3 min ago)" in numbers


async def test_the_doctor_shows_its_findings_and_changes_nothing(sqlite_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, sqlite_url) as browser:
        page = await browser.get(f"{OPERATIONS}/doctor")
        assert re.search(r"Errors: \d+ · Warnings: \d+", text_of(page))
        assert "<code>T1" in page
