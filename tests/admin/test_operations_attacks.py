"""Texts that strangers chose, in every place where operations and transfers show one: text, never a tag."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from maniflex import Fatal, Run
from maniflex.admin import ModelAdmin
from maniflex.background.processes.store import WorkProcess
from maniflex.background.runs.model import WorkflowRun
from tests.admin.test_leaks import ATTACKS, dangerous
from tests.kit.panel import Browser, text_of, visiting
from tests.kit.workshop import OPERATIONS, Order, Workshop


async def look(browser: Browser, paths: list[str], attack: str) -> None:
    for path in paths:
        page = await browser.get(path)
        assert dangerous(page) == [], (attack, path)


async def test_texts_of_runs_schedules_messages_and_processes_are_only_texts(sqlite_url: str) -> None:
    shop = Workshop()

    @shop.server.work.handler("loud.v1", max_attempts=1)
    async def loud(run: Run) -> Any:
        text = run.payload["text"]
        await run.step(text[:80], lambda: {text: [text]})
        if run.payload["fails"]:
            raise Fatal(text)
        return {text: text}

    async with visiting(shop.server, sqlite_url) as browser:
        server = shop.server
        for number, attack in enumerate(ATTACKS):
            options: dict[str, Any] = {"group_key": attack[:60], "actor_id": attack[:60]}
            payload = {"text": attack, "fails": bool(number % 2), attack: attack}
            run = await server.work.submit("loud.v1", payload, idempotency_key=attack[:60], **options)
            await shop.work()
            waiting = await server.work.submit("report.daily.v1", {"waits": True})
            await shop.work()
            await server.work.signal(waiting.id, attack[:60], {attack: attack})
            async with server.transaction():
                message = await server.outbox.enqueue(
                    "order.placed", {"n": 0, attack: attack}, key=attack[:60]
                )
            await server.db(WorkflowRun).update(run.id, last_error=attack)
            await look(
                browser,
                [
                    *(f"{OPERATIONS}/runs/{one}" for one in (run.id, waiting.id)),
                    f"{OPERATIONS}/runs/{run.id}/live",
                    f"{OPERATIONS}/runs/new?from={run.id}",
                    f"{OPERATIONS}/outbox/{message.id}",
                ],
                attack,
            )
        await server.outbox.drainer().drain()
        now = datetime.now(UTC)
        for number, attack in enumerate(ATTACKS):
            await server.db(WorkProcess).create(
                host=attack[:200], role=attack[:40], version=attack[:40], types=[attack], kinds=[attack],
                pid=number, started_at=now, seen_at=now,
            )  # fmt: skip
            await look(browser, [f"{OPERATIONS}/processes", f"{OPERATIONS}/"], attack)
        lists = ["", "runs", "runs?f_status=failed", "outbox", "processes", "schedules", "numbers", "plots"]
        await look(browser, [f"{OPERATIONS}/{path}" for path in lists], "lists")


async def test_what_is_typed_into_forms_of_operations_is_only_text(sqlite_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, sqlite_url) as browser:
        await browser.get(f"{OPERATIONS}/schedules/new")
        run_id = await shop.fail()
        for attack in ATTACKS:
            for path, controls in (
                ("schedules/new", {"name": attack, "cron": "0 0 * * *", "timezone": "UTC", "run": attack}),
                ("schedules/new", {"name": "x", "cron": attack, "timezone": attack, "payload": attack}),
                ("runs", {"type": attack, "payload": attack, "run_at": attack, "priority": attack}),
                ("runs", {"type": "email.receipt.v1", "f.order_id": attack, "f.note": attack}),
                (f"runs/{run_id}/resubmit", {"payload": attack}),
                (f"runs/{run_id}/signal", {"name": attack, "payload": attack}),
                (
                    "runs/bulk",
                    {"action": "delete", "all": "1", "query": "f_type=" + attack, "reason": attack},
                ),
                ("outbox/bulk", {"all": "1", "query": "f_kind=" + attack}),
            ):
                response = await browser.post(f"{OPERATIONS}/{path}", controls)
                assert response.status_code < 500, (path, attack)
                assert dangerous(response.text) == [], (path, attack)
            for path in ("runs", "outbox", "jobs"):
                params = {"f_type": attack} if path != "outbox" else {"f_kind": attack, "f_error": attack}
                response = await browser.http.get(f"/admin{OPERATIONS}/{path}", params=params)
                assert dangerous(response.text) == [], (path, attack)
        schedules = [one.id for one in await shop.server.schedules.list()]
        await look(browser, [f"{OPERATIONS}/schedules/{one}" for one in schedules], "schedules")
        await look(browser, [f"{OPERATIONS}/schedules", "/-/audit"], "schedules")


async def test_names_of_files_and_columns_are_only_text(sqlite_url: str) -> None:
    shop = Workshop()
    shop.admin.add(ModelAdmin(Order, can_import=True))
    async with visiting(shop.server, sqlite_url) as browser:
        for attack in ATTACKS:
            column = attack.replace("\n", " ").replace("\r", " ").replace("\x00", "").replace('"', '""')
            content = f'title,"{column}"\n"{column}",x\n,y\n'.encode()
            name = f"{attack}.csv".replace("\x00", "").replace("\r", "").replace("\n", "")
            await browser.get("/orders/import")
            response = await browser.post("/orders/import", {}, files={"file": (name, content)})
            assert response.status_code in (303, 422), attack
            if response.status_code == 422:
                assert dangerous(response.text) == [], attack
                continue
            place = response.headers["location"].removeprefix("/admin")
            await look(browser, [place], attack)
            step = {"id": place.rpartition("=")[2], "step": "import"}
            place = await browser.send("/orders/import", step)
            await look(browser, [place, "/-/transfers", "/orders/import"], attack)
            headers = (await browser.http.get(f"/admin{place}/refusals")).headers
            assert headers["content-disposition"].startswith("attachment")
            assert headers["x-content-type-options"] == "nosniff"


async def test_a_priority_that_is_no_number_is_refused_beside_its_control(sqlite_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, sqlite_url) as browser:
        await browser.get(f"{OPERATIONS}/runs/new?type=email.receipt.v1")
        for priority in ("high", "--5", "\u00b2", "-", "9" * 5000, "1.5"):
            controls = {"type": "email.receipt.v1", "f.order_id": "7", "priority": priority}
            answer = await browser.post(f"{OPERATIONS}/runs", controls)
            assert answer.status_code == 422, (priority[:9], answer.status_code)
            assert "is a whole number" in text_of(answer.text), priority[:9]
        assert await shop.server.db(WorkflowRun).list() == []
