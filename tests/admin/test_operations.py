"""The operations panel: runs, their story and what can be done with them, over HTTP on both databases."""

from __future__ import annotations

import re
from datetime import timedelta

from maniflex import Server
from maniflex.admin.tables import AdminEvent
from maniflex.background.runs.model import WorkflowRun
from maniflex.testing import FakeClock
from tests.kit.panel import Browser, text_of, visiting
from tests.kit.statements import statements_of
from tests.kit.workshop import OPERATIONS, Order, Workshop


async def actions_of(server: Server) -> list[str]:
    events = await server.db(AdminEvent).list(sorts="id")
    return [event.action for event in events if "." in event.action or event.action == "sweep"]


async def status_of(server: Server, run_id: str) -> str:
    return (await server.work.get(run_id)).status


async def test_a_failed_run_tells_its_story_and_succeeds_after_a_retry(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        order = await shop.server.db(Order).create(title="One")
        run_id = await shop.fail(about=order)
        page = await browser.get(f"{OPERATIONS}/runs/{run_id}")
        text = text_of(page)
        assert "the printer is <b>out of paper</b>" in text
        assert "<b>out of paper" not in page
        for word in ("created", "leased", "failed", "render", "Failed", f"order/{order.id}"):
            assert word in text, word
        assert f'href="/admin/orders/{order.id}"' in page
        assert '<rect class="failed"' in page
        assert "hidden-token" not in page
        shop.broken = False
        assert await browser.send(f"{OPERATIONS}/runs/{run_id}/retry") == f"{OPERATIONS}/runs/{run_id}"
        await shop.work()
        page = await browser.get(f"{OPERATIONS}/runs/{run_id}")
        assert shop.receipts == [7]
        assert '"sent": true' in text_of(page)
        assert "hidden-password" not in page
        assert "•••" in page
        refusal = await browser.post(f"{OPERATIONS}/runs/{run_id}/retry")
        assert refusal.status_code == 409
        assert await actions_of(shop.server) == ["run.retry"]
        work = text_of(await browser.get(f"/orders/{order.id}/work"))
        assert "email.receipt.v1" in work
        assert f"/orders/{order.id}/work" in await browser.get(f"/orders/{order.id}")


async def test_a_payload_is_edited_checked_by_its_type_and_submitted_as_a_new_run(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        run = await shop.server.work.submit("email.receipt.v1", {"order_id": 1, "api_key": "k-secret"})
        await shop.work()
        form = await browser.get(f"{OPERATIONS}/runs/new?from={run.id}")
        assert "k-secret" not in form
        assert 'name="f.order_id" value="1"' in form
        wrong = await browser.post(f"{OPERATIONS}/runs/{run.id}/resubmit", {"f.order_id": "many"})
        assert wrong.status_code == 422
        assert 'aria-invalid="true"' in wrong.text
        assert "must be an integer" in wrong.text
        wrong = await browser.post(f"{OPERATIONS}/runs/{run.id}/resubmit", {"payload": '{"order_id": "x"}'})
        assert wrong.status_code == 422
        assert "order_id" in text_of(wrong.text)
        wrong = await browser.post(f"{OPERATIONS}/runs/{run.id}/resubmit", {"payload": "{"})
        assert wrong.status_code == 422
        assert await shop.server.db(WorkflowRun).count() == 1
        shop.broken = False
        controls = {"f.order_id": "2", "f.api_key": "•••", "f.note": "again"}
        place = await browser.send(f"{OPERATIONS}/runs/{run.id}/resubmit", controls)
        new = await shop.server.work.get(place.rpartition("/")[2])
        assert new.payload == {"order_id": 2, "note": "again", "api_key": "k-secret"}
        assert new.id != run.id
        assert await actions_of(shop.server) == ["run.resubmit"]


async def test_runs_are_submitted_with_priority_time_and_key(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        chooser = await browser.get(f"{OPERATIONS}/runs/new")
        assert "email.receipt.v1" in chooser
        assert "audit.internal.v1" not in chooser
        controls = {"type": "elsewhere.job", "payload": '{"a": [1]}', "priority": "3"}
        controls |= {"run_at": "2031-01-01T10:00", "idempotency_key": "one"}
        place = await browser.send(f"{OPERATIONS}/runs", controls)
        run = await shop.server.work.get(place.rpartition("/")[2])
        assert (run.type, run.payload, run.priority, run.idempotency_key) == (
            "elsewhere.job", {"a": [1]}, 3, "one",
        )  # fmt: skip
        assert run.run_at.isoformat() == "2031-01-01T10:00:00+00:00"
        assert run.actor_id is not None
        again = await browser.post(f"{OPERATIONS}/runs", controls)
        assert again.status_code == 422
        assert f"run {run.id} has this key" in again.text
        bad = {"type": "no such", "payload": "{}", "priority": "1.5", "run_at": "soon"}
        assert (await browser.post(f"{OPERATIONS}/runs", bad)).status_code == 422
        text = text_of(await browser.get(place))
        assert "Due at 2031-01-01 10:00:00 UTC." in text
        assert await browser.send(f"{place}/now") == place
        assert "No living process takes elsewhere.job." in text_of(await browser.get(place))
        await browser.send(f"{place}/delete", {"reason": "a mistake"})
        text = text_of(await browser.get(place))
        assert "deleted" in text
        assert "a mistake" in text
        assert await actions_of(shop.server) == ["run.submit", "run.retry", "run.delete"]


async def test_a_waiting_run_is_told_a_signal_and_another_one_is_cancelled(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        run = await shop.server.work.submit("report.daily.v1", {"waits": True})
        await shop.work()
        place = f"{OPERATIONS}/runs/{run.id}"
        page = await browser.get(place)
        assert "Waits for signal paid." in text_of(page)
        assert 'name="name" value="paid"' in page
        await browser.send(f"{place}/signal", {"name": "paid", "payload": '{"amount": 3}'})
        await shop.work()
        assert (await shop.server.work.get(run.id)).result == {"signal": {"amount": 3}}
        other = await shop.server.work.submit("report.daily.v1", {"waits": True})
        await browser.send(f"{OPERATIONS}/runs/{other.id}/cancel")
        assert await status_of(shop.server, other.id) == "cancelled"
        refusal = await browser.post(f"{OPERATIONS}/runs/{other.id}/signal", {"name": "paid"})
        assert refusal.status_code == 409
        assert await actions_of(shop.server) == ["run.signal", "run.cancel"]


async def test_lists_are_filtered_and_walked_and_unknown_filters_refused(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        work = shop.server.work
        failed_id = await shop.fail(1, actor_id="ada", tenant_id="acme", idempotency_key="k1")
        await work.submit_many("report.daily.v1", [{} for _ in range(60)], delay=3600)
        seen: list[str] = []
        path: str | None = f"{OPERATIONS}/runs"
        while path is not None:
            page = await browser.get(path)
            seen += re.findall(r'name="ids" value="([^"]+)"', page)
            link = re.search(r'rel="next" href="/admin([^"]+)"', page)
            path = None if link is None else link[1].replace("&amp;", "&")
        assert len(seen) == len(set(seen)) == 61
        for query in (
            "f_type=email.receipt.v1", "f_type=email.*", "f_status=failed", "f_actor=ada", "f_tenant=acme",
            "f_key=k1", "f_error=out+of+paper", "f_error=out+of+paper&f_status=failed",
            "f_type=email.&f_created_at~gte=2020-01-01T00:00",
        ):  # fmt: skip
            page = await browser.get(f"{OPERATIONS}/runs?{query}")
            assert re.findall(r'name="ids" value="([^"]+)"', page) == [failed_id], query
        for query in (
            "f_status=due",
            "f_status=leased",
            "f_status=retrying",
            "f_status=deleted",
            "f_error=no",
        ):
            assert "Nothing matches" in await browser.get(f"{OPERATIONS}/runs?{query}"), query
        future = await browser.get(f"{OPERATIONS}/runs?f_status=future")
        assert len(re.findall(r'name="ids"', future)) == 50
        await browser.get(f"{OPERATIONS}/runs?f_nothing=1", 400)
        await browser.get(f"{OPERATIONS}/runs?f_status=odd", 400)
        await browser.get(f"{OPERATIONS}/runs?f_created_at~gte=soon", 400)
        await browser.get(f"{OPERATIONS}/runs?f_status=failed&after=x&value=y", 400)
        await browser.get(f"{OPERATIONS}/runs/nothing", 404)


async def go_on(browser: Browser, path: str, controls: dict[str, str]) -> tuple[list[str], str]:
    """Confirm a look and press the button of each portion; the words of the pages, and where it ends."""
    words = []
    response = await browser.post(path, controls)
    while response.status_code == 200:
        words.append(text_of(response.text))
        pairs = re.findall(r'<input type="hidden" name="([a-z_]+)" value="([^"]*)">', response.text)
        form = dict(pairs[pairs.index(next(p for p in pairs if p[0] == "action" or p[0] == "query")) :])
        response = await browser.post(path, {**form, "_csrf": browser.token})
    assert response.status_code == 303, response.text
    return words, response.headers["location"]


async def test_all_that_match_are_retried_after_a_look(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        server = shop.server
        await server.work.submit_many("email.receipt.v1", [{"order_id": n} for n in range(7)])
        await shop.work()
        other = await server.work.submit("report.daily.v1", {}, delay=3600)
        page = await browser.get(f"{OPERATIONS}/runs")
        assert "all that match these filters" in page
        controls = {"action": "retry", "all": "1", "query": ""}
        words, place = await go_on(browser, f"{OPERATIONS}/runs/bulk", controls)
        assert "7 would change: retry." in words[0]
        assert "1 more match and would not change" in words[0]
        assert place == f"/admin{OPERATIONS}/runs"
        assert "7 done." in text_of(await browser.get(f"{OPERATIONS}/runs"))
        assert await server.db(WorkflowRun).count({"status": "pending"}) == 8
        assert (await server.work.get(other.id)).attempt == 0
        assert (await actions_of(server)).count("run.retry") == 7
        chosen = {"action": "cancel", "ids": other.id, "query": ""}
        words, _ = await go_on(browser, f"{OPERATIONS}/runs/bulk", chosen)
        assert "1 would change: cancel runs." in words[0]
        assert await status_of(server, other.id) == "cancelled"
        nothing = await browser.post(f"{OPERATIONS}/runs/bulk", {"action": "retry", "query": ""})
        assert nothing.status_code == 422
        odd = await browser.post(f"{OPERATIONS}/runs/bulk", {"action": "format", "all": "1", "query": ""})
        assert odd.status_code == 404


async def test_the_overview_is_a_few_bounded_statements_and_the_same_part_is_not_sent_twice(
    database_url: str,
) -> None:
    shop = Workshop()
    clock = FakeClock()
    async with visiting(shop.server, database_url, clock=clock) as browser:
        await shop.fail()
        page = text_of(await browser.get(f"{OPERATIONS}/"))
        for word in ("Failed, 24 h 1", "Due 0", "Outbox waiting 0", "Schedules late", "1 hour"):
            assert word in page, word
        for part in ("numbers", "plots?over=24h"):
            with statements_of(shop.server) as statements:
                response = await browser.http.get(f"/admin{OPERATIONS}/{part}", headers={"X-Fragment": "1"})
            assert response.status_code == 200
            assert "<html" not in response.text
            assert len(statements) <= 8, statements
            etag = response.headers["etag"]
            again = await browser.http.get(
                f"/admin{OPERATIONS}/{part}", headers={"X-Fragment": "1", "If-None-Match": etag}
            )
            assert (again.status_code, again.content) == (304, b"")
        run = await shop.server.work.submit("report.daily.v1", {})
        clock.advance(timedelta(minutes=5))
        numbers = text_of(await browser.get(f"{OPERATIONS}/numbers"))
        assert "1 run of report.daily.v1 due, and no living process takes report.daily.v1" in numbers
        assert "nobody takes it" in numbers
        await browser.get(f"{OPERATIONS}/plots?over=1y", 400)
        assert run.id in await browser.get(f"{OPERATIONS}/runs?f_status=due")
        assert text_of(await browser.get(f"{OPERATIONS}/failed")).endswith("Failed work, 24 h 1")


async def test_families_and_schedules_are_linked(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        work = shop.server.work
        parent = await work.submit("report.daily.v1", {})
        child = await work.submit("report.daily.v1", {}, parent_id=parent.id)
        page = await browser.get(f"{OPERATIONS}/runs/{parent.id}")
        assert f"/runs/{child.id}" in page
        assert "Family" in page
        assert f"/runs/{parent.id}" in await browser.get(f"{OPERATIONS}/runs/{child.id}")
        await shop.server.schedules.declare()
        fired = await shop.server.schedules.run_now("nightly")
        assert "nightly" in text_of(await browser.get(f"{OPERATIONS}/runs/{fired.id}"))


async def test_texts_of_others_are_only_text(sqlite_url: str) -> None:
    marker = '"><script>window.marker=1</script>'
    shop = Workshop()
    async with visiting(shop.server, sqlite_url) as browser:
        async with shop.server.transaction():
            await shop.server.outbox.enqueue(f"k{marker}", {marker: marker}, key=marker)
        run = await shop.server.work.submit("email.x", {marker: marker}, group_key=marker, actor_id=marker)
        schedule = await shop.server.schedules.create(marker, cron="@daily", run="email.x")
        parts = ("", "runs", "outbox", "schedules", "scheduled", "processes", "doctor", "plots")
        for path in (*parts, f"runs/{run.id}", f"schedules/{schedule.id}", f"runs/new?from={run.id}"):
            assert "<script>window" not in await browser.get(f"{OPERATIONS}/{path}"), path


async def test_odd_addresses_and_forms_are_refused_and_never_fail(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        run_id = await shop.fail()
        for odd in ("%00", "a%2Fb", "..", "x" * 3000, "%ED%A0%80", "%FF", "'"):
            for path in (
                f"runs/{odd}", f"runs?f_type={odd}", f"runs?f_error={odd}", f"runs?f_key={odd}",
                f"runs?after={odd}", f"outbox/{odd}", f"outbox?f_kind={odd}&after={odd}", f"schedules/{odd}",
                f"schedules/preview?cron={odd}&timezone={odd}", f"runs/new?type={odd}",
                f"runs/new?from={odd}",
            ):  # fmt: skip
                response = await browser.http.get(f"/admin{OPERATIONS}/{path}")
                assert response.status_code < 500, (path, response.text[-300:])
        await browser.get(f"{OPERATIONS}/runs")
        for controls in (
            {"type": "x" * 300, "payload": "{}"},
            {"type": "a.b", "payload": "[" * 5000},
            {"type": "a.b", "payload": '{"a": NaN}'},
            {"type": "a.b", "payload": "1e400"},
            {"type": "a.b", "priority": "9" * 30},
            {"type": "a.b", "run_at": "0001-01-01T00:00"},
            {"type": "a.b", "idempotency_key": "k" * 300},
        ):
            response = await browser.post(f"{OPERATIONS}/runs", controls)
            assert response.status_code in (303, 400, 422), (controls, response.text[-300:])
        for path in (f"runs/{run_id}/signal", "runs/bulk", "outbox/bulk", f"runs/{run_id}/resubmit"):
            controls = {"name": "", "payload": "{", "query": "f_odd=1&%00=%00", "action": "retry", "all": "1"}
            response = await browser.post(f"{OPERATIONS}/{path}", controls)
            assert response.status_code in (400, 404, 409, 422), (path, response.status_code)
        big = await shop.server.work.submit("a.big", {"text": "y" * 400_000})
        page = await browser.get(f"{OPERATIONS}/runs/{big.id}")
        assert len(page) < 60_000
        assert "y" * 400_000 in await browser.get(f"{OPERATIONS}/runs/new?from={big.id}")
