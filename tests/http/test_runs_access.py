"""What the application opens to clients of its runs, and what they learn of failures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from maniflex import Context, Fatal, Next, Run, Server
from maniflex.background.jobs import InProcessQueue, Job
from maniflex.background.runs.model import WorkflowRun
from maniflex.errors import DeclarationError
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.http import data_of, error_of, offenders
from tests.kit.run_routes import ADA, EVENTS, ROOT, RUNS, TENANT_ADMIN, Site, a_server, known, site_on

STATUSES = "/api/job_statuses"


# -- what is open


async def test_a_type_is_closed_until_its_handler_opens_it(database_url: str) -> None:
    async with site_on(a_server(), database_url) as site:
        refused = await site.http.post(RUNS, json={"type": "default.closed"}, headers=ADA)
        [detail] = error_of(refused, 422, "VALIDATION_FAILED")["details"]
        assert (detail["field"], detail["message"]) == ("type", "there is no such type of run")

        await site.submit(type="default.echo")


async def test_what_code_submits_in_a_request_its_caller_reads_and_no_more(database_url: str) -> None:
    server = a_server()

    @server.action("POST", "/close")
    async def close(ctx: Context) -> str:
        return (await server.work.submit("default.closed")).id

    async with site_on(server, database_url) as site:
        one = f"{RUNS}/{data_of(await site.http.post('/api/close', headers=ADA))}"

        assert data_of(await site.http.get(one, headers=ADA))["status"] == "pending"
        for method, path in (("POST", f"{one}/cancel"), ("POST", f"{one}/retry"), ("DELETE", one)):
            error_of(await site.http.request(method, path, headers=ADA), 403, "FORBIDDEN")
        assert data_of(await site.http.get(one, headers=ADA))["status"] == "pending"
        assert data_of(await site.http.post(f"{one}/cancel", headers=TENANT_ADMIN))["status"] == "cancelled"
        assert data_of(await site.http.post(f"{one}/retry", headers=ROOT))["status"] == "pending"


async def test_a_type_that_is_opened_by_name_is_changed_by_its_owner_too(database_url: str) -> None:
    server = a_server()
    server.work.enable(public_submit="far.")
    async with site_on(server, database_url) as site:
        one = f"{RUNS}/{(await site.submit(type='far.away'))['id']}"

        assert data_of(await site.http.post(f"{one}/cancel", headers=ADA))["status"] == "cancelled"


async def test_dead_letters_are_for_operators(database_url: str) -> None:
    server = a_server()

    @server.work.handler("default.mortal", public=True, max_attempts=1, dead_letter="default.letter")
    async def mortal(run: Run) -> None:
        raise ValueError("the password is hunter2")

    @server.work.handler("default.letter")
    async def letter(run: Run) -> None: ...

    async with site_on(server, database_url) as site:
        await site.submit(type="default.mortal")
        await site.drain()

        for who in (ADA, TENANT_ADMIN):
            assert [r["type"] for r in data_of(await site.http.get(RUNS, headers=who))] == ["default.mortal"]
        everything = data_of(await site.http.get(RUNS, headers=ROOT))
        assert {r["type"] for r in everything} == {"default.mortal", "default.letter"}


@pytest.mark.parametrize(
    ("declare", "problem"),
    [
        (lambda w: w.handler("a.v1", public=True, internal=True)(nothing), "public or internal, not both"),
        (lambda w: w.handler("a.v1", max_priority=5)(nothing), "so it is for public types"),
        (lambda w: w.handler("a.v1", public=True, max_priority=101)(nothing), "from 0 to 100"),
        (lambda w: w.handler("a.v1", public=True, max_priority=-1)(nothing), "from 0 to 100"),
        (lambda w: w.handler("a.v1", public=True, max_priority=True)(nothing), "from 0 to 100"),
        (
            lambda w: [
                w.handler("a.v1", dead_letter="b.v1")(nothing),
                w.handler("b.v1", public=True)(nothing),
            ],
            "dead letters are sent to it",
        ),
        (lambda w: w.enable(public_submit=True), "public=True"),
        (lambda w: w.enable(public_submit=[7]), "public=True"),
    ],
)
def test_an_opening_that_makes_no_sense_stops_the_start(
    declare: Callable[[Any], object], problem: str
) -> None:
    server = Server("sqlite://:memory:")

    def start() -> None:
        declare(server.work)
        server.seal()

    with pytest.raises(DeclarationError, match=problem):
        start()


async def nothing(run: Any) -> None:
    """Nothing to do."""


# -- how much of it


def with_limits() -> Server:
    server = a_server()
    server.work.enable(public_submit=["far.away"])

    @server.work.handler(
        "default.limited", public=True, max_priority=5, max_attempts=4, timeout=timedelta(seconds=30)
    )
    async def limited(run: Run) -> None: ...

    return server


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ({"priority": 6}, ["priority"]),
        ({"priority": -6}, ["priority"]),
        ({"max_attempts": 5}, ["max_attempts"]),
        ({"timeout": 30.5}, ["timeout"]),
        ({"priority": 100, "max_attempts": 1000, "timeout": 1e9}, ["max_attempts", "priority", "timeout"]),
        ({"type": "default.echo", "max_attempts": 4}, ["max_attempts"]),
        ({"type": "far.away", "priority": 1}, ["priority"]),
        ({"type": "far.away", "max_attempts": 4}, ["max_attempts"]),
        ({"type": "far.away", "timeout": 1}, ["timeout"]),
    ],
)
async def test_a_client_asks_for_no_more_than_the_handler_allows(
    database_url: str, asked: dict[str, Any], fields: list[str]
) -> None:
    async with site_on(with_limits(), database_url) as site:
        for who in (ADA, ROOT):
            refused = await site.http.post(RUNS, json={"type": "default.limited", **asked}, headers=who)
            assert sorted(offenders(refused)) == fields
        assert await site.server.work.list() == []


async def test_up_to_the_limits_a_client_has_its_way(database_url: str) -> None:
    async with site_on(with_limits(), database_url) as site:
        most = await site.submit(type="default.limited", priority=5, max_attempts=4, timeout=30)
        least = await site.submit(type="default.limited", priority=-5, max_attempts=1, timeout=0.5)
        silent = await site.submit(type="default.limited")
        far = await site.submit(type="far.away", max_attempts=3)

    assert (most["priority"], most["max_attempts"], most["timeout"]) == (5, 4, 30)
    assert (least["priority"], least["max_attempts"], least["timeout"]) == (-5, 1, 0.5)
    assert (silent["priority"], silent["max_attempts"], silent["timeout"]) == (0, 4, None)
    assert far["max_attempts"] == 3


# -- what is told of failures


def with_failures(clock: FakeClock) -> Server:
    server = a_server(clock=clock)

    @server.work.handler("default.fatal", public=True)
    async def fatal(run: Run) -> None:
        raise Fatal("there is no such address")

    @server.work.handler("default.later", public=True)
    async def later(run: Run) -> None:
        await run.retry_in(timedelta(hours=1), "the shop is closed")

    return server


async def owner_sees(site: Site, type: str) -> tuple[Any, Any, Any]:
    """The error, the last error and the error of the last event of a run, as its owner sees them."""
    run = await site.submit(type=type)
    await site.drain()
    shown = data_of(await site.http.get(f"{RUNS}/{run['id']}", headers=ADA))
    events = data_of(await site.http.get(f"{EVENTS}?sort=id:desc&limit=1", headers=ADA))
    return shown["error"], shown["last_error"], events[0]["data"]["error"]


async def test_an_owner_reads_what_the_handler_told_them(database_url: str) -> None:
    async with site_on(with_failures(FakeClock()), database_url) as site:
        told = "Fatal: there is no such address"
        assert await owner_sees(site, "default.fatal") == (
            {"code": "fatal", "message": told, "attempt": 1},
            told,
            told,
        )
        told = "the shop is closed"
        assert await owner_sees(site, "default.later") == (
            {"code": "retry", "message": told, "attempt": 1},
            told,
            told,
        )


async def test_of_any_other_exception_an_owner_reads_the_code(database_url: str) -> None:
    async with site_on(with_failures(FakeClock()), database_url) as site:
        shown = await owner_sees(site, "default.fail")

        assert shown == ({"code": "error", "attempt": 1}, "error", "error")
        [run] = data_of(await site.http.get(f"{RUNS}?filter=type:eq:default.fail", headers=ROOT))
        assert run["error"]["message"] == run["last_error"] == "ValueError: no luck"
        assert "Traceback" in run["error"]["trace"]


async def test_a_selection_shows_no_more_and_no_less_of_a_failure(database_url: str) -> None:
    async with site_on(with_failures(FakeClock()), database_url) as site:
        for type, text in (("default.fatal", "Fatal: there is no such address"), ("default.fail", "error")):
            await owner_sees(site, type)
            path = f"{RUNS}?select=last_error&filter=type:eq:{type}"

            [shown] = data_of(await site.http.get(path, headers=ADA))

            assert (shown["last_error"], "error" in shown) == (text, False)


@pytest.mark.parametrize("inproc", [False, True], ids=["runs", "memory"])
async def test_the_status_of_a_job_tells_its_owner_no_more(database_url: str, inproc: bool) -> None:
    clock = FakeClock()
    server = Server(background=False, clock=clock)
    server.pipeline.auth.register(known)
    if inproc:
        server.jobs.use(InProcessQueue(clock=clock))
    server.jobs.mount_status()

    @server.jobs.handler("job")
    async def job(job: Job) -> None:
        raise Fatal("no such address") if job.payload["final"] else ValueError("hunter2")

    async with client(server, database=database_url) as http:
        ids = [
            await server.jobs.enqueue(Job("job", {"final": final}, "ada", "acme", max_retry=1))
            for final in (True, False)
        ]
        await (server.jobs.worker() if inproc else server.work.worker()).drain()

        async def errors(who: dict[str, str], query: str = "") -> list[tuple[Any, Any]]:
            rows = [data_of(await http.get(f"{STATUSES}/{id}{query}", headers=who)) for id in ids]
            return [(row["error"], row.get("error_code")) for row in rows]

        for who in (ADA, TENANT_ADMIN):
            assert await errors(who) == [("Fatal: no such address", "fatal"), ("error", "error")]
            assert await errors(who, "?select=error") == [("Fatal: no such address", None), ("error", None)]
        assert await errors(ROOT) == [("Fatal: no such address", "fatal"), ("ValueError: hunter2", "error")]


# -- scopes of the application


async def test_a_scope_that_a_table_of_durable_work_does_not_have_is_403_there(database_url: str) -> None:
    server = a_server()
    server.schedules.enable()
    server.outbox.enable()
    server.jobs.mount_status()

    @server.pipeline.auth.middleware()
    async def of_the_tenant(ctx: Context, next: Next) -> None:
        if ctx.header("x-bound"):
            ctx.query.force("tenant_id", "acme")
        await next()

    bound = {**ROOT, "x-bound": "1"}
    async with site_on(server, database_url) as site:
        await site.submit()
        for method, where in (("GET", EVENTS), ("HEAD", EVENTS), ("GET", f"{EVENTS}/x")):
            assert (await site.http.request(method, where, headers=bound)).status_code == 403, where
        error_of(await site.http.get(EVENTS, headers=bound), 403, "FORBIDDEN")
        assert (await site.http.get(EVENTS, headers=ROOT)).status_code == 200
        for path, count in ((RUNS, 1), (STATUSES, 0), ("/api/outbox_event", 0), ("/api/schedules", 0)):
            assert (await site.http.get(path, headers=bound)).json()["meta"]["total"] == count
        assert (await site.http.get("/api/schedule_firing", headers=bound)).json()["meta"]["total"] == 0
        error_of(await site.http.post("/api/outbox_event/x/redrive", headers=bound), 404, "NOT_FOUND")


async def test_a_scope_within_the_request_is_403_too(database_url: str) -> None:
    server = a_server()

    @server.pipeline.service.middleware(models=[WorkflowRun])
    async def by_department(ctx: Context, next: Next) -> None:
        ctx.query.force("department", "sales")
        await next()

    async with site_on(server, database_url) as site:
        error_of(await site.http.get(RUNS, headers=ROOT), 403, "FORBIDDEN")
        error_of(await site.http.post(RUNS, json={"type": "default.echo"}, headers=ADA), 403, "FORBIDDEN")
        assert await server.work.list() == []
