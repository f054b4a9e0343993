"""Runs as a client sees them: its own, to submit, look at, cancel, retry and delete, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, Next, Run, Server
from maniflex.background.runs.model import WorkflowEvent, WorkflowRun
from maniflex.errors import DeclarationError, Unauthorized
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.http import data_of, error_of
from tests.kit.run_routes import (
    ADA,
    ADA_ELSEWHERE,
    ADA_NOWHERE,
    BOB,
    EVENTS,
    ROOT,
    RUNS,
    STRANGERS,
    Order,
    Site,
    a_server,
    site_on,
)
from tests.kit.statements import plans_of

# -- who may


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", RUNS),
        ("HEAD", RUNS),
        ("POST", RUNS),
        ("GET", f"{RUNS}/x"),
        ("DELETE", f"{RUNS}/x"),
        ("POST", f"{RUNS}/x/cancel"),
        ("POST", f"{RUNS}/x/retry"),
        ("GET", EVENTS),
        ("GET", f"{EVENTS}/x"),
    ],
)
async def test_nobody_gets_anywhere_without_an_identity(method: str, path: str, site: Site) -> None:
    answer = await site.http.request(method, path, json={} if method == "POST" else None)

    if method == "HEAD":
        assert answer.status_code == 401
    else:
        error_of(answer, 401, "UNAUTHORIZED")


async def test_a_caller_sees_its_own_runs_and_the_admin_sees_all(site: Site) -> None:
    mine = await site.submit()
    await site.submit(BOB)
    await site.submit(ADA_ELSEWHERE)
    await site.submit(ADA_NOWHERE)
    await site.server.work.submit("default.echo")

    for who, total in ((ADA, 1), (BOB, 1), (ADA_ELSEWHERE, 1), (ADA_NOWHERE, 1), (ROOT, 5)):
        listed = (await site.http.get(RUNS, headers=who)).json()
        assert (len(listed["data"]), listed["meta"]["total"]) == (total, total)
    [shown] = data_of(await site.http.get(RUNS, headers=ADA))
    assert shown["id"] == mine["id"]
    everything = data_of(await site.http.get(f"{RUNS}/{mine['id']}", headers=ROOT))
    assert everything == {**shown, "leased_by": None}


async def test_what_is_anothers_is_not_there_by_any_way(site: Site) -> None:
    run = await site.submit(payload={"secret": "hunter2"})
    one = f"{RUNS}/{run['id']}"

    for who in STRANGERS:
        for method, path in (
            ("GET", one),
            ("DELETE", one),
            ("POST", f"{one}/cancel"),
            ("POST", f"{one}/retry"),
        ):
            error_of(await site.http.request(method, path, headers=who), 404, "NOT_FOUND")
        assert (await site.http.head(one, headers=who)).status_code == 404
        for query in (
            f"filter=id:eq:{run['id']}",
            "filter=actor_id:eq:ada",
            "filter=tenant_id:eq:acme|actor_id:eq:ada",
            "filter=type:eq:default.echo&sort=id:desc",
            "page=1&limit=100",
        ):
            listed = (await site.http.get(f"{RUNS}?{query}", headers=who)).json()
            assert (listed["data"], listed["meta"]["total"]) == ([], 0)
    assert (await site.server.work.get(run["id"])).status == "pending"


async def test_events_are_those_of_the_callers_runs(site: Site) -> None:
    run = await site.submit()
    await site.drain()

    listed = (await site.http.get(f"{EVENTS}?sort=id", headers=ADA)).json()
    assert [event["event_type"] for event in listed["data"]] == ["created", "leased", "succeeded"]
    assert {event["workflow_id"] for event in listed["data"]} == {run["id"]}
    first = listed["data"][0]["id"]
    assert data_of(await site.http.get(f"{EVENTS}/{first}", headers=ADA))["event_type"] == "created"
    for who in STRANGERS:
        none = (await site.http.get(f"{EVENTS}?filter=workflow_id:eq:{run['id']}", headers=who)).json()
        assert (none["data"], none["meta"]["total"]) == ([], 0)
        none = (await site.http.get(f"{EVENTS}?filter=workflow.actor_id:eq:ada", headers=who)).json()
        assert none["meta"]["total"] == 0
        error_of(await site.http.get(f"{EVENTS}/{first}", headers=who), 404, "NOT_FOUND")
        assert (await site.http.head(f"{EVENTS}/{first}", headers=who)).status_code == 404
    assert (await site.http.get(EVENTS, headers=ROOT)).json()["meta"]["total"] == 3


async def test_the_events_of_a_caller_are_found_by_its_runs(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site_on(a_server(), sqlite_url) as site:
        await site.submit()

        plans = await plans_of(site.server, site.http, EVENTS, ADA, monkeypatch)

    assert "workflow_run_actor_idx (actor_id=?)" in plans
    assert "SCAN workflow_event" not in plans


async def test_internal_types_are_neither_submitted_nor_shown_but_to_admins(site: Site) -> None:
    run = await site.server.work.submit("default.secret", actor_id="ada", tenant_id="acme")

    refused = await site.http.post(RUNS, json={"type": "default.secret"}, headers=ADA)
    [detail] = error_of(refused, 422, "VALIDATION_FAILED")["details"]
    assert (detail["field"], detail["message"]) == ("type", "there is no such type of run")
    assert (await site.http.get(RUNS, headers=ADA)).json()["meta"]["total"] == 0
    assert (await site.http.get(EVENTS, headers=ADA)).json()["meta"]["total"] == 0
    error_of(await site.http.post(f"{RUNS}/{run.id}/cancel", headers=ADA), 404, "NOT_FOUND")
    assert (await site.http.get(RUNS, headers=ROOT)).json()["meta"]["total"] == 1
    error_of(
        await site.http.post(RUNS, json={"type": "default.secret"}, headers=ROOT), 422, "VALIDATION_FAILED"
    )


async def test_leases_are_never_shown_and_stack_traces_only_to_admins(site: Site) -> None:
    run = await site.submit(type="default.fail")
    await site.drain()

    for path in (f"{RUNS}/{run['id']}", f"{EVENTS}?include=workflow"):
        shown = (await site.http.get(path, headers=ADA)).text
        assert "no luck" not in shown
        assert "Traceback" not in shown
        assert '"lease":' not in shown
        everything = (await site.http.get(path, headers=ROOT)).text
        assert "Traceback" in everything
        assert '"lease":' not in everything
    error_of(await site.http.get(f"{RUNS}?filter=lease:eq:x", headers=ROOT), 400, "INVALID_QUERY")


async def test_the_names_of_workers_are_shown_only_to_admins(database_url: str) -> None:
    clock = FakeClock()
    async with site_on(a_server(clock=clock), database_url) as site:
        one = f"{RUNS}/{(await site.submit(max_attempts=1))['id']}"
        dead = site.server.work.worker()
        paths = (one, RUNS, EVENTS, f"{EVENTS}?include=workflow")

        async def told(who: dict[str, str]) -> list[bool]:
            return [dead.name in (await site.http.get(path, headers=who)).text for path in paths]

        await dead.claim(1)
        assert (await told(ADA), await told(ROOT)) == ([False] * 4, [True] * 4)
        clock.advance(timedelta(hours=1))
        await site.drain()  # takes back what the dead worker held
        assert (await told(ADA), await told(ROOT)) == ([False] * 4, [True] * 4)
        assert data_of(await site.http.get(one, headers=ADA))["error"]["code"] == "lease_expired"


@pytest.mark.parametrize(
    "path",
    [
        f"{RUNS}?filter=leased_by:starts_with:x",
        f"{RUNS}?filter[0]=type:eq:x&filter[0]=leased_by:is_null",
        f"{RUNS}?filter=trace_id:gt_field:leased_by",
        f"{RUNS}?filter[0]=type:eq:x&filter[0]=trace_id:eq_field:leased_by",
        f"{EVENTS}?filter=workflow.leased_by:eq:x",
        f"{EVENTS}?filter=workflow.type:lt_field:leased_by",
    ],
)
async def test_the_names_of_workers_cannot_be_guessed_by_filters(path: str, site: Site) -> None:
    error_of(await site.http.get(path, headers=ADA), 400, "INVALID_QUERY")
    assert (await site.http.get(path, headers=ROOT)).status_code == 200


async def test_the_application_may_bind_admins_further(database_url: str) -> None:
    server = a_server()

    @server.pipeline.service.middleware(models=[WorkflowRun])
    async def of_the_tenant(ctx: Context, next: Next) -> None:
        assert ctx.auth is not None
        if ctx.auth.tenant_id:
            ctx.query.force("tenant_id", ctx.auth.tenant_id)
        await next()

    async with site_on(server, database_url) as site:
        await site.submit(ADA)
        await site.submit(ADA_ELSEWHERE)

        listed = await site.http.get(RUNS, headers={**ROOT, "x-tenant": "other"})

        assert listed.json()["meta"]["total"] == 1


async def test_another_role_may_be_the_one_that_sees_all(database_url: str) -> None:
    server = a_server()
    server.work.enable(admin_role="operator")
    async with site_on(server, database_url) as site:
        await site.submit()

        assert (await site.http.get(RUNS, headers=ROOT)).json()["meta"]["total"] == 0
        operator = {"x-user": "olga", "x-roles": "operator"}
        assert (await site.http.get(RUNS, headers=operator)).json()["meta"]["total"] == 1


# -- submitting


async def test_a_submitted_run_is_the_callers_and_is_worked_on(site: Site) -> None:
    run = await site.submit(payload={"a": [1, 2.5, None, "ü"]}, priority=5, group_key="g", timeout=2.5)

    assert (run["status"], run["actor_id"], run["tenant_id"]) == ("pending", "ada", "acme")
    assert (run["priority"], run["group_key"], run["timeout"]) == (5, "g", 2.5)
    assert await site.drain() == 1
    done = data_of(await site.http.get(f"{RUNS}/{run['id']}", headers=ADA))
    assert (done["status"], done["result"]) == ("succeeded", {"a": [1, 2.5, None, "ü"]})


async def test_when_it_is_due_can_be_said_either_way(site: Site) -> None:
    at = await site.submit(run_at="2031-05-01T10:00:00+02:00")
    later = await site.submit(delay=3600)

    assert at["run_at"] == "2031-05-01T08:00:00Z"
    assert later["run_at"] > later["created_at"]
    assert await site.drain() == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "type"),
        ({"type": "nobody.knows"}, "type"),
        ({"type": "bad type"}, "type"),
        ({"type": ""}, "type"),
        ({"type": 7}, "type"),
        ({"type": "x" * 300}, "type"),
        ({"type": "default.echo", "priority": "1"}, "priority"),
        ({"type": "default.echo", "priority": 1.5}, "priority"),
        ({"type": "default.echo", "priority": True}, "priority"),
        ({"type": "default.echo", "priority": 101}, "priority"),
        ({"type": "default.echo", "max_attempts": 0}, "max_attempts"),
        ({"type": "default.echo", "delay": -1}, "delay"),
        ({"type": "default.echo", "delay": 1e300}, "delay"),
        ({"type": "default.echo", "timeout": 0}, "timeout"),
        ({"type": "default.echo", "run_at": "tomorrow"}, "run_at"),
        ({"type": "default.echo", "run_at": "2031-01-01T00:00:00"}, "run_at"),
        ({"type": "default.echo", "run_at": "0001-01-01T00:00:00+14:00"}, "run_at"),
        ({"type": "default.echo", "run_at": 1767225600}, "run_at"),
        ({"type": "default.echo", "run_at": "2031-01-01T00:00:00Z", "delay": 1}, "delay"),
        ({"type": "default.echo", "idempotency_key": ""}, "idempotency_key"),
        ({"type": "default.echo", "group_key": 5}, "group_key"),
        ({"type": "default.echo", "status": "succeeded"}, "status"),
        ({"type": "default.echo", "actor_id": "bob"}, "actor_id"),
        ({"type": "default.echo", "tenant_id": "other"}, "tenant_id"),
        ({"type": "default.echo", "trace_id": "t"}, "trace_id"),
        ({"type": "default.echo", "parent_id": None}, "parent_id"),
        ({"type": "default.echo", "lease": "mine"}, "lease"),
        ({"type": "email.receipt.v1", "payload": {}}, "payload.order_id"),
        ({"type": "email.receipt.v1", "payload": {"order_id": "x"}}, "payload.order_id"),
        ({"type": "email.receipt.v1"}, "payload.order_id"),
    ],
)
async def test_what_cannot_be_submitted_names_the_field(body: dict[str, Any], field: str, site: Site) -> None:
    refused = await site.http.post(RUNS, json=body, headers=ADA)

    details = error_of(refused, 422, "VALIDATION_FAILED")["details"]
    assert [detail["field"] for detail in details] == [field]
    assert (await site.http.get(RUNS, headers=ROOT)).json()["meta"]["total"] == 0


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "EMPTY_BODY"),
        (b"[]", "INVALID_JSON"),
        (b"{", "INVALID_JSON"),
        (b'{"type": "default.echo", "group_key": "\\u0000"}', "INVALID_JSON"),
        (b'{"type": "default.echo", "payload": "\\ud800"}', "INVALID_JSON"),
        (b'{"type": "default.echo", "payload": 123456789012345678901234567890}', "INVALID_JSON"),
        (b'{"type": "default.echo", "payload": NaN}', "INVALID_JSON"),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(content: bytes, code: str, site: Site) -> None:
    headers = {**ADA, "content-type": "application/json"}

    error_of(await site.http.post(RUNS, content=content, headers=headers), 400, code)


async def test_middleware_may_say_what_a_client_may_not(database_url: str) -> None:
    server = a_server()

    @server.pipeline.deserialize.middleware(models=[WorkflowRun], operations="create")
    async def on_behalf(ctx: Context, next: Next) -> None:
        ctx.set_field("actor_id", "bob")
        await next()

    async with site_on(server, database_url) as site:
        assert (await site.submit(ROOT))["actor_id"] == "bob"
        refused = await site.http.post(RUNS, json={"type": "default.echo", "trace_id": "t"}, headers=ROOT)

        [detail] = error_of(refused, 422, "VALIDATION_FAILED")["details"]
        assert detail["field"] == "trace_id"


async def test_middleware_may_say_whose_run_it_is(database_url: str) -> None:
    server = a_server()

    @server.pipeline.service.middleware(models=[WorkflowRun], operations="create")
    async def for_the_team(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant_id", "team")
        await next()

    async with site_on(server, database_url) as site:
        run = await site.submit(ROOT)

        assert (run["actor_id"], run["tenant_id"]) == ("root", "team")


async def test_only_the_types_that_are_opened_can_be_submitted(database_url: str) -> None:
    server = a_server()
    server.work.enable(public_submit=["email.", "far.away"])
    async with site_on(server, database_url) as site:
        for type, status in (
            ("email.receipt.v1", 201),
            ("email.unheard.of", 201),
            ("far.away", 201),
            ("far.away.too", 422),
            ("default.echo", 201),  # its handler is public
            ("default.closed", 422),
            ("default.secret", 422),
        ):
            body = {"type": type, "payload": {"order_id": 1}}
            answer = await site.http.post(RUNS, json=body, headers=ADA)
            assert answer.status_code == status, type


async def test_submitting_can_be_closed(database_url: str) -> None:
    server = a_server()
    server.work.enable(public_submit=False)
    async with site_on(server, database_url) as site:
        refused = await site.http.post(RUNS, json={"type": "default.echo"}, headers=ADA)

        error_of(refused, 405, "METHOD_NOT_ALLOWED")
        assert refused.headers["allow"] == "GET, HEAD, OPTIONS"
        assert (await site.http.get(RUNS, headers=ADA)).status_code == 200


async def test_a_run_submitted_in_a_request_is_the_callers(site: Site) -> None:
    traced = {**ADA, "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}

    assert (await site.http.post("/api/orders/7/pay", headers=traced)).status_code == 204
    assert (await site.http.post("/api/orders/8/pay")).status_code == 204

    [run] = data_of(await site.http.get(RUNS, headers=ADA))
    assert (run["payload"], run["trace_id"]) == ({"order": "7"}, "ab" * 16)
    assert len(await site.server.work.list()) == 2
    outside = await site.server.work.submit("default.echo")
    assert (outside.actor_id, outside.tenant_id) == (None, None)


async def test_what_a_run_submits_is_for_whom_the_run_is(database_url: str) -> None:
    server = a_server(database=database_url)
    server.config = server.config.with_(background=True)

    @server.work.handler("default.more", public=True)
    async def more(run: Run) -> str:
        return (await server.work.submit("default.echo")).id

    async def child_of(run_id: str) -> WorkflowRun:
        parent = await server.work.wait(run_id, 20)
        return await server.work.get(str(parent.result))

    transport = httpx.ASGITransport(app=server)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        # Nobody has started the server: this request does, and with it the worker.
        asked = data_of(await http.post(RUNS, json={"type": "default.more"}, headers=ADA), 201)
        try:
            hers = await child_of(asked["id"])
            nobodys = await child_of((await server.work.submit("default.more")).id)
        finally:
            await server.stop()

    assert hers.actor_id == asked["actor_id"]
    assert (nobodys.actor_id, nobodys.tenant_id) == (None, None)


async def test_a_run_submitted_by_a_request_that_fails_is_not_there(database_url: str) -> None:
    server = a_server()

    @server.action("POST", "/try")
    async def attempt(ctx: Context) -> None:
        async with ctx.transaction():
            await server.work.submit("default.echo")
            ctx.abort(409, "NO", "after all")

    async with site_on(server, database_url) as site:
        assert (await site.http.post("/api/try", headers=ADA)).status_code == 409
        assert await server.work.list() == []


# -- changing


async def test_cancelling_and_trying_again(site: Site) -> None:
    run = await site.submit()
    one = f"{RUNS}/{run['id']}"

    assert data_of(await site.http.post(f"{one}/cancel", headers=ADA))["status"] == "cancelled"
    error = error_of(await site.http.post(f"{one}/cancel", headers=ADA), 409, "CONFLICT")
    assert error["message"] == "the run is cancelled already"
    assert await site.drain() == 0
    assert data_of(await site.http.post(f"{one}/retry", headers=ADA))["status"] == "pending"
    error_of(await site.http.post(f"{one}/retry", headers=ADA), 409, "CONFLICT")
    assert await site.drain() == 1
    error_of(await site.http.post(f"{one}/cancel", headers=ROOT), 409, "CONFLICT")
    error_of(await site.http.post(f"{RUNS}/nothing/cancel", headers=ROOT), 404, "NOT_FOUND")
    error_of(await site.http.post(f"{RUNS}/nothing/retry", headers=ROOT), 404, "NOT_FOUND")


@pytest.mark.parametrize("way", ["query", "body", "none"])
async def test_deleting_keeps_the_reason(way: str, site: Site) -> None:
    run = await site.submit()
    one = f"{RUNS}/{run['id']}"

    match way:
        case "query":
            gone = await site.http.delete(f"{one}?reason=sent%20twice", headers=ADA)
        case "body":
            gone = await site.http.request("DELETE", one, json={"reason": "sent twice"}, headers=ADA)
        case _:
            gone = await site.http.delete(one, headers=ADA)

    assert (gone.status_code, gone.content) == (204, b"")
    error_of(await site.http.get(one, headers=ADA), 404, "NOT_FOUND")
    error_of(await site.http.delete(one, headers=ADA), 404, "NOT_FOUND")
    assert await site.drain() == 0
    [[reason]] = [
        list(row.values()) for row in await site.server.raw_query("SELECT delete_reason FROM workflow_run")
    ]
    assert reason == (None if way == "none" else "sent twice")


@pytest.mark.parametrize("reason", ["%00", "x" * 1001])
async def test_a_reason_that_cannot_be_kept_is_refused(reason: str, site: Site) -> None:
    run = await site.submit()

    refused = await site.http.delete(f"{RUNS}/{run['id']}?reason={reason}", headers=ADA)

    error_of(refused, 400, "INVALID_QUERY")


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b'{"reson": "x"}', 422, "VALIDATION_FAILED"),
        (b'{"reason": 7}', 422, "VALIDATION_FAILED"),
        (b'{"reason": "%s"}' % (b"x" * 1001), 422, "VALIDATION_FAILED"),
        (b'["reason"]', 400, "INVALID_JSON"),
        (b"reason", 400, "INVALID_JSON"),
    ],
)
@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_of_a_deletion_has_a_reason_and_nothing_else(
    content: bytes, status: int, code: str, announced: bool, site: Site
) -> None:
    run = await site.submit()
    one = f"{RUNS}/{run['id']}"

    async def in_pieces() -> AsyncIterator[bytes]:
        yield content

    headers = {**ADA, "content-type": "application/json"}
    sent = content if announced else in_pieces()
    refused = await site.http.request("DELETE", one, content=sent, headers=headers)

    error_of(refused, status, code)
    assert data_of(await site.http.get(one, headers=ADA))["id"] == run["id"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PATCH", f"{RUNS}/x", "DELETE, GET, HEAD, OPTIONS"),
        ("PUT", f"{RUNS}/x", "DELETE, GET, HEAD, OPTIONS"),
        ("DELETE", RUNS, "GET, HEAD, OPTIONS, POST"),
        ("POST", EVENTS, "GET, HEAD, OPTIONS"),
        ("PATCH", f"{EVENTS}/x", "GET, HEAD, OPTIONS"),
        ("DELETE", f"{EVENTS}/x", "GET, HEAD, OPTIONS"),
    ],
)
async def test_nothing_else_can_be_changed(method: str, path: str, allow: str, site: Site) -> None:
    refused = await site.http.request(method, path, json={"status": "succeeded"}, headers=ROOT)

    error_of(refused, 405, "METHOD_NOT_ALLOWED")
    assert refused.headers["allow"] == allow
    assert (await site.http.options(path)).headers["allow"] == allow


@pytest.mark.parametrize(
    "query", ["limit=x", "limit=0", "page=-1", "filter=attempt:eq:x", "filter=payload:eq:x"]
)
async def test_a_list_that_cannot_be_is_refused(query: str, site: Site) -> None:
    error_of(await site.http.get(f"{RUNS}?{query}", headers=ADA), 400, "INVALID_QUERY")


async def test_lists_take_filters_sorts_and_pages_like_any_other(site: Site) -> None:
    for n in range(5):
        await site.submit(priority=n)

    path = f"{RUNS}?filter=priority:gte:1&sort=priority:desc&limit=2&page=2&select=id,priority"
    page = (await site.http.get(path, headers=ADA)).json()

    assert [run["priority"] for run in page["data"]] == [2, 1]
    assert page["meta"] == {"total": 4, "page": 2, "limit": 2, "pages": 2}


# -- the rest


async def test_the_routes_can_be_left_out(database_url: str) -> None:
    server = a_server()
    server.work.enable(routes=False)
    async with site_on(server, database_url) as site:
        for path in (RUNS, f"{RUNS}/x", EVENTS):
            error_of(await site.http.get(path, headers=ROOT), 404, "NOT_FOUND")
        assert (await server.work.submit("default.echo")).status == "pending"


async def test_a_server_without_durable_work_has_no_such_routes(sqlite_url: str) -> None:
    server = Server()
    server.register(Order)
    async with client(server, database=sqlite_url) as http:
        assert (await http.get(RUNS)).status_code == 404


async def test_in_process_calls_are_bound_too(site: Site) -> None:
    run = await site.submit()

    refused = await site.server.execute("list", WorkflowRun)
    assert (refused.status, refused.error and refused.error["code"]) == (401, "UNAUTHORIZED")
    found = await site.server.execute("read", WorkflowRun, run["id"], auth=AuthInfo("ada", tenant_id="acme"))
    assert found.data["id"] == run["id"]
    hidden = await site.server.execute("list", WorkflowEvent, auth=AuthInfo("bob"))
    assert hidden.data == []


async def test_the_description_has_the_routes_and_what_they_take(site: Site) -> None:
    document = await site.server.openapi()

    assert set(document["paths"][RUNS]) == {"get", "post"}
    assert set(document["paths"][f"{RUNS}/{{id}}"]) == {"get", "delete"}
    assert set(document["paths"][f"{RUNS}/{{id}}/cancel"]) == {"post"}
    assert set(document["paths"][EVENTS]) == {"get"}
    submit = document["paths"][RUNS]["post"]
    assert set(submit["requestBody"]["content"]["application/json"]["schema"]["properties"]) == {
        "type",
        "payload",
        "priority",
        "run_at",
        "delay",
        "idempotency_key",
        "max_attempts",
        "group_key",
        "timeout",
    }
    assert {"200", "201", "401", "409", "422"} <= set(submit["responses"])
    delete = document["paths"][f"{RUNS}/{{id}}"]["delete"]
    assert "content" not in delete["responses"]["204"]
    assert delete["requestBody"]["required"] is False
    reason = delete["requestBody"]["content"]["application/json"]["schema"]
    assert (set(reason["properties"]), reason["additionalProperties"]) == ({"reason"}, False)
    assert "422" in delete["responses"]
    assert "lease" not in document["components"]["schemas"]["WorkflowRun"]["properties"]
    assert "WorkflowRunUpdate" not in document["components"]["schemas"]


def test_who_sees_what_is_said_before_the_start() -> None:
    server = a_server()
    server.seal()

    with pytest.raises(DeclarationError, match="sealed"):
        server.work.enable(admin_role="other")


def test_the_refusal_has_its_code() -> None:
    assert (Unauthorized.status, Unauthorized.code) == (401, "UNAUTHORIZED")
