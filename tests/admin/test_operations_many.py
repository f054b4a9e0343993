"""Many runs or messages at once: few while the browser waits, more by a durable run that does each once."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from maniflex import Context, Next, Server
from maniflex.admin import Operations
from maniflex.admin.operations import commands
from maniflex.admin.tables import AdminEvent, AdminTransfer, AdminUser
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.runs.model import WorkflowRun
from maniflex.errors import Fatal
from maniflex.testing import FakeClock
from maniflex.transfer import batches
from tests.admin.test_operations_access import sign_in_as
from tests.admin.test_transfer_bulk import look, perform
from tests.kit.panel import Browser, text_of, visiting
from tests.kit.workshop import OPERATIONS, Workshop

BULK = f"{OPERATIONS}/runs/bulk"


async def confirm(browser: Browser, path: str, controls: dict[str, str]) -> tuple[str, str]:
    """The words of the look, and where the confirmed form leads."""
    response = await browser.post(path, controls)
    assert response.status_code == 200, response.text[-500:]
    pairs = re.findall(r'<input type="hidden" name="([a-z_]+)" value="([^"]*)">', response.text)
    form = dict(pairs[pairs.index(next(p for p in pairs if p[0] == "action")) :])
    return text_of(response.text), await browser.send(path, {**form, "_csrf": browser.token})


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions and batches that a test fills quickly."""
    monkeypatch.setattr(commands, "AT_ONCE", 5)
    monkeypatch.setattr("maniflex.admin.transfers.batches.BATCH", 4)


async def fail_many(shop: Workshop, count: int, **options: Any) -> list[str]:
    runs = await shop.server.work.submit_many(
        "email.receipt.v1", [{"order_id": n} for n in range(count)], **options
    )
    await shop.work()
    return [run.id for run in runs]


async def audited(server: Server, action: str) -> list[str | None]:
    return [event.record_id for event in await server.db(AdminEvent).list({"action": action})]


@pytest.mark.usefixtures("few")
async def test_more_than_fit_into_a_request_are_changed_by_a_durable_run(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        server = shop.server
        ids = await fail_many(shop, 11)
        other = await server.work.submit("report.daily.v1", {}, delay=3600)
        assert "all that match these filters" in await browser.get(f"{OPERATIONS}/runs")
        words, place = await confirm(
            browser, BULK, {"action": "retry", "all": "1", "query": "f_status=failed"}
        )
        assert "11 would change: retry." in words
        assert "in the background" in words
        assert place.startswith("/-/transfers/")
        assert "Waits for a worker." in await look(browser, place)
        late = await server.work.submit("report.daily.v1", {}, delay=3600)
        await server.work.cancel(late.id)  # it was not there when somebody looked
        assert await server.db(WorkflowRun).count({"status": "pending", "type": "email.receipt.v1"}) == 0
        transfer = await perform(server, place)
        assert (transfer.position, transfer.updated, transfer.refused) == (11, 11, 0)
        page = await look(browser, place)
        assert "changed 11 refused 0" in page
        assert "Durable work: Retry" in page
        assert "Durable work: Retry" in text_of(await browser.get("/-/transfers"))
        assert "/-/transfers" in await browser.get("/")
        states = {run.id: run.status for run in await server.db(WorkflowRun).list()}
        assert {states[run_id] for run_id in ids} == {"pending"}
        assert (states[late.id], states[other.id]) == ("cancelled", "pending")
        assert sorted(map(str, await audited(server, "run.retry"))) == sorted(ids)
        assert len(await audited(server, "bulk")) == 1


@pytest.mark.usefixtures("few")
async def test_all_runs_are_cancelled_but_the_one_that_cancels_them(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        server = shop.server
        await server.work.submit_many("report.daily.v1", [{}] * 9, delay=3600)
        await browser.get(f"{OPERATIONS}/runs")
        _, place = await confirm(
            browser, BULK, {"action": "cancel", "all": "1", "query": "", "reason": "old"}
        )
        await shop.work()
        assert "changed 9 refused 0" in await look(browser, place)
        transfer = await server.db(AdminTransfer).read(place.rpartition("/")[2])
        assert (await server.work.get(transfer.run_id or "")).status == "succeeded"
        assert await server.db(WorkflowRun).count({"status": "cancelled"}) == 9


class Killed(BaseException):
    """The end of a process, half way."""


@pytest.mark.usefixtures("few")
async def test_what_was_killed_half_way_goes_on_and_changes_each_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        server = shop.server
        ids = await fail_many(shop, 11)
        await browser.get(f"{OPERATIONS}/runs")
        _, place = await confirm(browser, BULK, {"action": "retry", "all": "1", "query": ""})
        count, store = 0, batches._together

        async def die(*args: Any, act: Any, **options: Any) -> Any:
            async def act_or_die(item: Any) -> Any:
                nonlocal count
                count += 1
                if count == 7:  # in the middle of the second batch
                    raise Killed
                return await act(item)

            return await store(*args, act=act_or_die, **options)

        monkeypatch.setattr(batches, "_together", die)
        with pytest.raises(Killed):
            await perform(server, place)
        half = await server.db(AdminTransfer).read(place.rpartition("/")[2])
        assert half.position == half.updated == 4
        assert await server.db(WorkflowRun).count({"status": "failed"}) == 7
        assert len(await audited(server, "run.retry")) == 4
        transfer = await perform(server, place)
        assert transfer.updated == 11
        assert sorted(map(str, await audited(server, "run.retry"))) == sorted(ids)


@pytest.mark.usefixtures("few")
async def test_one_that_is_refused_is_listed_and_the_others_are_done(database_url: str) -> None:
    shop = Workshop()

    @shop.server.pipeline.auth.middleware(models=[WorkflowRun])
    async def refuse(ctx: Context, next: Next) -> None:
        if ctx.resource_id and ctx.resource_id in kept:
            ctx.abort(403, "FORBIDDEN", "=not this one")
        await next()

    kept: set[str] = set()
    async with visiting(shop.server, database_url) as browser:
        server = shop.server
        ids = await fail_many(shop, 7)
        kept.add(ids[3])
        await browser.get(f"{OPERATIONS}/runs")
        controls = {"action": "delete", "all": "1", "query": "f_status=failed", "reason": "old"}
        _, place = await confirm(browser, BULK, controls)
        await perform(server, place)
        page = await look(browser, place)
        assert "changed 6 refused 1" in page
        assert f"{ids[3]} =not this one" in page
        lines = (await browser.http.get(f"/admin{place}/refusals")).text.splitlines()
        assert lines == ["id,field,message", f"{ids[3]},,'=not this one"]
        assert [run.id for run in await server.db(WorkflowRun).list({"status": "failed"})] == [ids[3]]
        assert len(await audited(server, "run.delete")) == 6


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("what", ["panel", "operations"])
async def test_who_loses_the_role_half_way_is_stopped(database_url: str, what: str) -> None:
    shop = Workshop(
        role=None if what == "operations" else "superuser", operations=Operations(role="superuser")
    )
    async with visiting(shop.server, database_url) as browser:
        server = shop.server
        await fail_many(shop, 11)
        await browser.get(f"{OPERATIONS}/runs")
        _, place = await confirm(browser, BULK, {"action": "retry", "all": "1", "query": ""})
        [user] = await server.db(AdminUser).list()
        await server.db(AdminUser).update(user.id, roles=["clerk"])
        with pytest.raises(Fatal):
            await perform(server, place)
        assert await server.db(WorkflowRun).count({"status": "failed"}) == 11
        assert await audited(server, "run.retry") == []


@pytest.mark.usefixtures("few")
async def test_an_operator_with_a_tenant_changes_its_runs_alone(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url, signed_in=False) as browser:
        server = shop.server
        ours = await fail_many(shop, 8, tenant_id="acme")
        theirs = await fail_many(shop, 8, tenant_id="zeta")
        await sign_in_as(browser, server, ["superuser"], "acme")
        await browser.get(f"{OPERATIONS}/runs")
        words, place = await confirm(browser, BULK, {"action": "retry", "all": "1", "query": ""})
        assert "8 would change" in words
        await perform(server, place)
        states = {run.id: run.status for run in await server.db(WorkflowRun).list()}
        assert {states[one] for one in ours} == {"pending"}
        assert {states[one] for one in theirs} == {"failed"}
        await sign_in_as(browser, server, ["superuser"], "zeta")
        for path in ("", "/refusals", "/file"):
            await browser.get(place + path, 404)
        for path in ("/start", "/cancel", "/continue"):
            assert (await browser.post(place + path)).status_code == 404
        assert "Durable work" not in text_of(await browser.get("/-/transfers"))


@pytest.mark.usefixtures("few")
async def test_dead_messages_are_put_back_by_a_durable_run(database_url: str) -> None:
    shop = Workshop()
    clock = FakeClock()
    async with visiting(shop.server, database_url, clock=clock) as browser:
        server = shop.server
        async with server.transaction():
            await server.outbox.enqueue_many("order.placed", [{"n": n} for n in range(9)])
        await server.outbox.drainer().drain()
        clock.advance(timedelta(seconds=1))
        assert await server.db(OutboxMessage).count({"status": "dead"}) == 9
        await browser.get(f"{OPERATIONS}/outbox")
        words, place = await confirm(
            browser, f"{OPERATIONS}/outbox/bulk", {"all": "1", "query": "f_kind=order.placed"}
        )
        assert "9 dead messages would wait for delivery again." in words
        await perform(server, place)
        assert "changed 9 refused 0" in await look(browser, place)
        shop.broken = False
        await server.outbox.drainer().drain()
        assert len(set(shop.delivered)) == len(shop.delivered) == 9
        assert len(await audited(server, "outbox.redrive")) == 9
