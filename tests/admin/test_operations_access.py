"""Who sees and changes durable work in the panel: roles, tenants, people who only look, forged forms."""

from __future__ import annotations

import re
import socket

import pytest

from maniflex import Run, Server
from maniflex.admin import Operations
from maniflex.admin.declare import Admin
from maniflex.admin.operations.pages import ROUTES
from maniflex.admin.tables import AdminEvent
from maniflex.errors import DeclarationError
from tests.kit.panel import Browser, add_superuser, text_of, visiting
from tests.kit.workshop import OPERATIONS, Order, Workshop

PHRASE = "a long enough phrase"
FOR_ALL_TENANTS = ("outbox", "scheduled", "processes", "doctor", "plots")


async def sign_in_as(browser: Browser, server: Server, roles: list[str], tenant: str | None = None) -> None:
    email = f"{'-'.join(roles)}-{tenant}@example.org"
    await add_superuser(server, email, PHRASE, roles=roles, tenant_id=tenant)
    browser.http.cookies.clear()
    assert (await browser.sign_in(email, PHRASE)).status_code == 303


def writing_paths(run_id: str) -> list[str]:
    return [r.path.replace("{id}", run_id) for r in ROUTES if r.method == "POST"]


async def test_people_who_only_look_have_no_buttons_and_forged_forms_are_refused(database_url: str) -> None:
    shop = Workshop(role=None, operations=Operations(role="operator", view_role="support"))

    @shop.server.work.handler("boom.v1", max_attempts=1)
    async def boom(run: Run) -> None:
        raise ValueError("no such file: /srv/secret")

    async with visiting(shop.server, database_url, signed_in=False) as browser:
        run_id = await shop.fail()
        await shop.server.schedules.declare()
        [schedule] = await shop.server.schedules.list()
        await sign_in_as(browser, shop.server, ["support"])
        for path in (
            "",
            "runs",
            f"runs/{run_id}",
            "schedules",
            f"schedules/{schedule.id}",
            "outbox",
            "scheduled",
        ):
            page = await browser.get(f"{OPERATIONS}/{path}")
            forms = re.findall(r'<form[^>]*method="post" action="([^"]+)"', page)
            assert forms == ["/admin/-/logout"], path
            assert "Submit a run" not in page
        assert "the printer is" in text_of(await browser.get(f"{OPERATIONS}/runs/{run_id}"))
        broken = (await shop.server.work.submit("boom.v1")).id
        await shop.work()
        for path in ("runs", f"runs/{broken}", "outbox", "processes"):
            page = await browser.get(f"{OPERATIONS}/{path}")
            internals = ("/srv/secret", "Traceback", socket.gethostname())
            assert [text for text in internals if text in page] == [], path
        for path in ("runs", "outbox"):
            await browser.get(f"{OPERATIONS}/{path}?f_error=printer", 400)
        await browser.get(f"{OPERATIONS}/runs/new", 403)
        for path in writing_paths(run_id):
            response = await browser.post(path, {"type": "email.receipt.v1", "payload": "{}", "all": "1"})
            assert response.status_code == 403, path
        assert (await shop.server.work.get(run_id)).status == "failed"
        await sign_in_as(browser, shop.server, ["operator"])
        page = await browser.get(f"{OPERATIONS}/runs/{broken}")
        assert "/srv/secret" in text_of(page)
        assert "Traceback" in text_of(page)
        assert "Retry" in await browser.get(f"{OPERATIONS}/runs/{run_id}")
        await browser.send(f"{OPERATIONS}/runs/{run_id}/retry")
        await sign_in_as(browser, shop.server, ["clerk"])
        for path in ("", "runs", f"runs/{run_id}", "schedules", "numbers", "failed"):
            await browser.get(f"{OPERATIONS}/{path}", 403)
        assert OPERATIONS not in await browser.get("/")
        order = await shop.server.db(Order).create(title="One")
        assert f"{order.id}/work" not in await browser.get(f"/orders/{order.id}")


async def test_every_form_needs_its_token_and_our_own_origin(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url) as browser:
        run_id = await shop.fail()
        events = await shop.server.db(AdminEvent).count()
        for path in writing_paths(run_id):
            for controls, headers in (
                ({"_csrf": ""}, {}),
                ({"_csrf": "0" * 64}, {}),
                ({}, {"Origin": "https://evil.example"}),
            ):
                response = await browser.post(path, controls, headers=headers)
                assert response.status_code == 403, path
        assert (await shop.server.work.get(run_id)).status == "failed"
        assert await shop.server.db(AdminEvent).count() == events


async def test_an_operator_with_a_tenant_sees_its_work_alone(database_url: str) -> None:
    shop = Workshop()
    async with visiting(shop.server, database_url, signed_in=False) as browser:
        ours = await shop.fail(1, tenant_id="acme", actor_id="ada")
        theirs = await shop.fail(2, tenant_id="zeta-corp", actor_id="bob-of-zeta", group_key="zeta-group")
        await sign_in_as(browser, shop.server, ["superuser"], "acme")
        pages = [
            await browser.get(f"{OPERATIONS}/{path}") for path in ("", "runs", f"runs/{ours}", "numbers")
        ]
        assert ours in pages[1]
        for page in pages:
            assert theirs not in page
            assert "zeta" not in page
        assert "Failed, 24 h 1" in text_of(pages[0])
        # The text of a `Fatal` is for the caller; traces and workers are not.
        assert "Worker" not in text_of(pages[2])
        await browser.get(f"{OPERATIONS}/runs/{theirs}", 404)
        await browser.get(f"{OPERATIONS}/runs/{theirs}/live", 404)
        await browser.get(f"{OPERATIONS}/runs/new?from={theirs}", 404)
        assert "Nothing matches" in await browser.get(f"{OPERATIONS}/runs?f_tenant=zeta-corp")
        await browser.get(f"{OPERATIONS}/runs?f_error=paper", 400)
        for path in FOR_ALL_TENANTS:
            await browser.get(f"{OPERATIONS}/{path}", 403)
        foreign = await shop.server.schedules.create(
            "of zeta", cron="@daily", run="report.daily.v1", tenant_id="zeta-corp"
        )
        assert "zeta" not in await browser.get(f"{OPERATIONS}/schedules")
        for path in ("", "/edit"):
            await browser.get(f"{OPERATIONS}/schedules/{foreign.id}{path}", 404)
        for path in ("run", "pause", "delete"):
            assert (await browser.post(f"{OPERATIONS}/schedules/{foreign.id}/{path}")).status_code == 404
        form = {"name": "ours", "cron": "@daily", "timezone": "UTC", "kind": "run", "policy": "once"}
        await browser.get(f"{OPERATIONS}/schedules/new")
        made = await browser.send(f"{OPERATIONS}/schedules/new", {**form, "target": "report.daily.v1"})
        assert (await shop.server.schedules.get(made.rpartition("/")[2])).tenant_id == "acme"
        for path in writing_paths(theirs):
            controls = {"action": "retry", "ids": theirs, "confirm": "1", "name": "x", "payload": "{}"}
            response = await browser.post(path, controls)
            assert response.status_code in (303, 403, 404, 422), path
        assert (await shop.server.work.get(theirs)).status == "failed"
        look = await browser.post(f"{OPERATIONS}/runs/bulk", {"action": "retry", "all": "1", "query": ""})
        assert "1 would change" in text_of(look.text)
        internal = await browser.post(f"{OPERATIONS}/runs", {"type": "audit.internal.v1", "payload": "{}"})
        assert internal.status_code == 403
        place = await browser.send(f"{OPERATIONS}/runs", {"type": "report.daily.v1", "payload": "{}"})
        assert (await shop.server.work.get(place.rpartition("/")[2])).tenant_id == "acme"


async def test_a_panel_that_only_shows_has_no_form(sqlite_url: str) -> None:
    shop = Workshop(read_only=True)
    async with visiting(shop.server, sqlite_url) as browser:
        run_id = await shop.fail()
        for path in ("", "runs", f"runs/{run_id}", "outbox", "schedules", "scheduled"):
            page = await browser.get(f"{OPERATIONS}/{path}")
            assert re.findall(r'method="post" action="([^"]+)"', page) == ["/admin/-/logout"], path
        for path in writing_paths(run_id):
            assert (await browser.post(path)).status_code == 404, path
        await browser.get(f"{OPERATIONS}/schedules/new", 404)


async def test_a_panel_without_operations_or_an_application_without_work(sqlite_url: str) -> None:
    shop = Workshop(operations=False)
    async with visiting(shop.server, sqlite_url) as browser:
        for path in ("/", "/runs", "/failed"):
            await browser.get(f"{OPERATIONS}{path}", 404)
        assert "Operations" not in await browser.get("/")
    server = Server(path_prefix="/api")
    server.register(Order)
    server.admin(read_only=True)  # another panel has runs of its own: imports, bulk changes
    async with visiting(server, f"{sqlite_url}.other") as browser:
        await browser.get(f"{OPERATIONS}/", 404)
        assert "Operations" not in await browser.get("/")


async def test_payloads_can_be_kept_out_and_more_keys_masked(sqlite_url: str) -> None:
    shop = Workshop(operations=Operations(role="superuser", redact=("iban",)))
    async with visiting(shop.server, sqlite_url) as browser:
        payload = {
            "order": {"IBAN": "DE-marker", "Set-Cookie": "marker2"},
            "list": [{"authToken": "marker3"}],
        }
        run = await shop.server.work.submit("other.v1", payload)
        async with shop.server.transaction():
            message = await shop.server.outbox.enqueue("order.placed", payload)
        for path in (f"runs/{run.id}", f"runs/new?from={run.id}", f"outbox/{message.id}"):
            assert "marker" not in await browser.get(f"{OPERATIONS}/{path}"), path
    shop = Workshop(operations=Operations(role="superuser", show_payloads=False))
    async with visiting(shop.server, f"{sqlite_url}.other") as browser:
        run = await shop.server.work.submit("other.v1", {"plain": "marker"})
        async with shop.server.transaction():
            message = await shop.server.outbox.enqueue("order.placed", {"plain": "marker"})
        for path in (f"runs/{run.id}", f"runs/new?from={run.id}", f"outbox/{message.id}"):
            assert "marker" not in await browser.get(f"{OPERATIONS}/{path}"), path
        place = await browser.send(f"{OPERATIONS}/runs/{run.id}/resubmit", {"priority": "1"})
        assert (await shop.server.work.get(place.rpartition("/")[2])).payload == {"plain": "marker"}


async def test_work_without_routes_is_in_the_panel_and_nowhere_else(sqlite_url: str) -> None:
    shop = Workshop()
    shop.server.work.enable(routes=False)
    shop.server.outbox.enable(routes=False)
    shop.server.schedules.enable(routes=False)
    async with visiting(shop.server, sqlite_url) as browser:
        run_id = await shop.fail()
        await shop.server.schedules.declare()
        for path in ("runs", f"runs/{run_id}", "schedules", "outbox"):
            await browser.get(f"{OPERATIONS}/{path}")
        await browser.send(f"{OPERATIONS}/runs/{run_id}/retry")
        [schedule] = await shop.server.schedules.list()
        await browser.send(f"{OPERATIONS}/schedules/{schedule.id}/pause")
        for path in ("workflow_run", f"workflow_run/{run_id}", "schedules", "outbox_event"):
            assert (await browser.http.get(f"/api/{path}")).status_code == 404


def test_operations_are_checked_when_they_are_declared() -> None:
    for operations, text in (
        ("yes", "none of True, False and Operations"),
        (Operations(role=""), "role='' is no role"),
        (Operations(redact="iban"), "redact lists the names"),
    ):
        server = Server(path_prefix="/api")
        server.register(Order)
        admin = server.admin(operations=operations)  # type: ignore[arg-type]
        assert isinstance(admin, Admin)
        with pytest.raises(DeclarationError, match=re.escape(text)):
            server.seal()
