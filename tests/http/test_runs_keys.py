"""The keys of runs: every client has its own, and sees them as it said them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from maniflex import Context, Next
from maniflex.background.runs.model import WorkflowRun
from tests.kit.http import data_of
from tests.kit.run_routes import (
    ADA,
    ADA_ELSEWHERE,
    BOB,
    EVENTS,
    ROOT,
    RUNS,
    STRANGERS,
    TENANT_ADMIN,
    Site,
    a_server,
    site_on,
)


async def test_the_same_key_gives_the_same_run_to_the_same_caller_only(site: Site) -> None:
    first = await site.submit(idempotency_key="order-7", payload={"n": 1})
    again = await site.http.post(
        RUNS, json={"type": "default.echo", "idempotency_key": "order-7"}, headers=ADA
    )

    assert again.status_code == 200
    assert again.json()["data"]["id"] == first["id"]
    for who in (*STRANGERS, ROOT):
        other = await site.submit(who, idempotency_key="order-7")
        assert other["id"] != first["id"]
        assert other["payload"] == {}
    assert (await site.http.delete(f"{RUNS}/{first['id']}", headers=ADA)).status_code == 204
    assert (await site.submit(idempotency_key="order-7"))["id"] != first["id"]


async def test_names_that_look_like_a_tenant_and_a_user_do_not_share_keys(site: Site) -> None:
    one = await site.submit({"x-user": "b:c", "x-tenant": "a"}, idempotency_key="k")
    two = await site.submit({"x-user": "b", "x-tenant": "a"}, idempotency_key="c:k")
    three = await site.submit({"x-user": "a/b"}, idempotency_key="k")
    four = await site.submit({"x-user": "b", "x-tenant": "a"}, idempotency_key="k")

    assert len({run["id"] for run in (one, two, three, four)}) == 4


async def test_twenty_at_once_with_one_key_make_one_run(site: Site) -> None:
    body = {"type": "default.echo", "idempotency_key": "once"}

    answers = await asyncio.gather(*(site.http.post(RUNS, json=body, headers=ADA) for _ in range(20)))

    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["data"]["id"] for answer in answers}) == 1


async def test_keys_come_back_as_they_were_said(site: Site) -> None:
    run = await site.submit(idempotency_key="order-7", group_key="customer:7")
    await site.drain()

    [listed] = data_of(await site.http.get(RUNS, headers=ADA))
    [selected] = data_of(await site.http.get(f"{RUNS}?select=idempotency_key,group_key", headers=ADA))
    again = {"type": "default.echo", "idempotency_key": "order-7"}
    event = data_of(await site.http.get(f"{EVENTS}?include=workflow", headers=ADA))[0]
    for shown in (
        run,
        listed,
        selected,
        data_of(await site.http.post(RUNS, json=again, headers=ADA)),
        data_of(await site.http.get(f"{RUNS}/{run['id']}", headers=ADA)),
        event["workflow"],
    ):
        assert (shown["idempotency_key"], shown["group_key"]) == ("order-7", "customer:7")
    # The admin role sees the keys of all, and so whose they are.
    shown = data_of(await site.http.get(f"{RUNS}/{run['id']}", headers=ROOT))
    assert (shown["idempotency_key"], shown["group_key"]) == ("@acme/ada:order-7", "@acme/ada:customer:7")


@pytest.mark.parametrize("also", ["", ",actor_id", ",actor_id,tenant_id", ",last_error"])
async def test_the_admin_of_a_tenant_sees_keys_as_they_were_said_whatever_is_selected(
    site: Site, also: str
) -> None:
    run = await site.submit(idempotency_key="order-7", group_key="customer:7")

    select = f"?select=id,idempotency_key{also}"
    [listed] = data_of(await site.http.get(f"{RUNS}{select}", headers=TENANT_ADMIN))
    one = data_of(await site.http.get(f"{RUNS}/{run['id']}{select}", headers=TENANT_ADMIN))

    for shown in (listed, one):
        assert shown["idempotency_key"] == "order-7"
        assert set(shown) == {"id", "idempotency_key", *also.split(",")[1:]}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("filter=idempotency_key:eq:k-1", [1]),
        ("filter=idempotency_key:in:k-1,k-2", [1, 2]),
        ("filter=idempotency_key:starts_with:k-", [1, 2]),
        ("filter=idempotency_key:neq:k-1", [2, 3]),
        ("filter=idempotency_key:not_in:k-1,k-2", [3]),
        ("filter=idempotency_key:is_null", [4]),
        ("filter=idempotency_key:eq:by-code", [3]),
        ("filter=idempotency_key:eq:k-9", []),
        ("filter[0]=idempotency_key:eq:k-1&filter[0]=priority:eq:4", [1, 4]),
        ("filter=group_key:eq:g", [1]),
    ],
)
async def test_runs_are_found_by_the_key_as_it_was_said(query: str, found: list[int], site: Site) -> None:
    await site.submit(priority=1, idempotency_key="k-1", group_key="g")
    await site.submit(priority=2, idempotency_key="k-2")
    whose: Any = {"actor_id": "ada", "tenant_id": "acme"}
    await site.server.work.submit("default.echo", priority=3, idempotency_key="by-code", **whose)
    await site.submit(priority=4)
    await site.submit(BOB, priority=5, idempotency_key="k-1", group_key="g")

    listed = data_of(await site.http.get(f"{RUNS}?{query}&sort=priority", headers=ADA))

    assert [run["priority"] for run in listed] == found


async def test_events_are_found_by_the_key_of_their_run(site: Site) -> None:
    run = await site.submit(idempotency_key="order-7")
    await site.submit(BOB, idempotency_key="order-7")

    query = "filter=workflow.idempotency_key:eq:order-7"
    events = data_of(await site.http.get(f"{EVENTS}?{query}", headers=ADA))

    assert [event["workflow_id"] for event in events] == [run["id"]]


async def test_a_group_is_among_the_callers_own(site: Site) -> None:
    """What a client calls its group holds back neither another's runs nor those of the code."""
    for who in (BOB, ADA_ELSEWHERE, ADA, ADA):
        await site.submit(who, group_key="customer:7")
    await site.server.work.submit("default.echo", group_key="customer:7", tenant_id="acme", actor_id="ada")

    claimed = await site.server.work.worker().claim(10)

    assert len(claimed) == 4  # all but the caller's second


async def test_a_forced_group_is_taken_as_it_is(database_url: str) -> None:
    server = a_server()

    @server.pipeline.service.middleware(models=[WorkflowRun], operations="create")
    async def one_at_a_time(ctx: Context, next: Next) -> None:
        ctx.query.force("group_key", "one")
        await next()

    async with site_on(server, database_url) as site:
        run = await site.submit(group_key="many")

        assert (await server.work.get(run["id"])).group_key == "one"


@pytest.mark.parametrize("absent", [{"run_at": None, "delay": None}, {"run_at": None, "delay": 60}])
async def test_a_time_that_is_null_is_not_said(absent: dict[str, Any], site: Site) -> None:
    run = await site.submit(**absent)

    assert (run["run_at"] > run["created_at"]) == (absent["delay"] is not None)


async def test_a_key_of_a_run_of_another_type_is_a_conflict(site: Site) -> None:
    await site.submit(idempotency_key="order-7")
    body = {"type": "default.fail", "idempotency_key": "order-7"}
    answer = await site.http.post(RUNS, json=body, headers=ADA)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CONFLICT")
    assert "default.echo" in answer.json()["error"]["message"]
