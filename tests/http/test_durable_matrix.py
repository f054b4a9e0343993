"""Who gets how far on every route of durable work: a table that no route is missing from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest

from maniflex import Run, Server
from maniflex.background.jobs import Job
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.runs.model import WorkflowEvent
from maniflex.background.schedules.model import ScheduleFiring
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.run_routes import ADA, ADA_ELSEWHERE, BOB, ROOT, TENANT_ADMIN, known

CALLERS = {
    "nobody": {},
    "owner": ADA,
    "colleague": BOB,
    "other tenant": ADA_ELSEWHERE,
    "tenant admin": TENANT_ADMIN,
    "operator": ROOT,
}
OF_ADA: dict[str, Any] = {"actor_id": "ada", "tenant_id": "acme"}
A_SCHEDULE = {"cron": "@daily", "target": "open.v1"}


def everything(clock: FakeClock) -> Server:
    server = Server(background=False, clock=clock, outbox_max_attempts=1)
    server.pipeline.auth.register(known)
    server.schedules.enable()
    server.jobs.use(dlq_type="dead")
    server.jobs.mount_status()

    @server.work.handler("open.v1", public=True, max_attempts=1)
    async def opened(run: Run) -> None:
        raise ValueError("no luck")

    @server.work.handler("closed.v1", dead_letter="letter.v1", max_attempts=1)
    async def closed(run: Run) -> None:
        raise ValueError("no luck")

    @server.work.handler("letter.v1")
    async def letter(run: Run) -> None: ...

    @server.work.handler("internal.v1", internal=True)
    async def internal(run: Run) -> None: ...

    @server.jobs.handler("job")
    async def job(job: Job) -> None: ...

    @server.outbox.handler("told")
    async def told(message: Any) -> None:
        raise ValueError("no luck")

    return server


@dataclass
class World:
    server: Server
    http: httpx.AsyncClient
    clock: FakeClock
    made: int = 0

    async def run(self, type: str) -> str:
        return (await self.server.work.submit(type, **OF_ADA)).id

    async def cancelled(self, type: str) -> str:
        """A run that can be retried."""
        id = await self.run(type)
        await self.server.work.cancel(id)
        return id

    async def event(self, type: str) -> str:
        events = await self.server.db(WorkflowEvent).list(
            [("workflow_id", "eq", await self.run(type))], limit=1
        )
        return events[0].id

    async def job(self) -> str:
        return await self.server.jobs.enqueue(Job("job", {}, "ada", "acme"))

    async def dead_message(self) -> str:
        message = await self.server.outbox.enqueue("told", {}, outside_transaction=True)
        await self.server.outbox.drainer().drain()
        assert (await self.server.db(OutboxMessage).read(message.id)).status == "dead"
        return message.id

    async def schedule(self) -> str:
        self.made += 1
        made = await self.server.schedules.create(f"s{self.made}", cron="@daily", run="open.v1")
        return made.id

    async def schedule_of_acme(self) -> str:
        self.made += 1
        made = await self.server.schedules.create(
            f"s{self.made}", cron="@daily", run="open.v1", tenant_id="acme", actor_id="ada"
        )
        return made.id

    async def firing(self) -> str:
        return await self._fire(await self.schedule())

    async def firing_of_acme(self) -> str:
        return await self._fire(await self.schedule_of_acme())

    async def _fire(self, schedule: str) -> str:
        await self.server.schedules.run_now(schedule)
        return (await self.server.db(ScheduleFiring).list([("schedule_id", "eq", schedule)]))[0].id


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    clock = FakeClock()
    server = everything(clock)
    async with client(server, database=database_url) as http:
        yield World(server, http, clock)


async def nothing(world: World) -> str:
    return ""


Make = Callable[[World], Awaitable[str]]
OPERATORS = (401, 403, 403, 403, 403)  # and then what an operator gets
ROLE_ONLY = (401, 403, 403, 403)  # and then what an admin of a tenant and an operator get
NOT_THERE = (401, 404, 404, 404, 404)  # for everybody but an operator


@dataclass(frozen=True)
class Row:
    """One route, what it is asked about, and the answers in the order of `CALLERS`."""

    route: str
    make: Make
    answers: tuple[int, ...]
    body: Any = None
    query: str = ""


def of_run(type: str) -> Make:
    return lambda world: world.run(type)


def of_cancelled(type: str) -> Make:
    return lambda world: world.cancelled(type)


def of_event(type: str) -> Make:
    return lambda world: world.event(type)


RUN, EVENT, JOB = "/workflow_run", "/workflow_event", "/job_statuses"
OUTBOX, PLAN, FIRING = "/outbox_event", "/schedules", "/schedule_firing"
MATRIX = [
    Row(f"GET {RUN}", nothing, (401, 200, 200, 200, 200, 200)),
    Row(f"HEAD {RUN}", nothing, (401, 200, 200, 200, 200, 200)),
    Row(f"POST {RUN}", nothing, (401, 201, 201, 201, 201, 201), {"type": "open.v1"}),
    Row(f"POST {RUN}", nothing, (401, 422, 422, 422, 422, 422), {"type": "closed.v1"}),
    Row(f"POST {RUN}", nothing, (401, 422, 422, 422, 422, 422), {"type": "letter.v1"}),
    Row(f"POST {RUN}", nothing, (401, 422, 422, 422, 422, 422), {"type": "internal.v1"}),
    Row(f"POST {RUN}", nothing, (401, 422, 422, 422, 422, 422), {"type": "job"}),
    Row(f"POST {RUN}", nothing, (401, 422, 422, 422, 422, 422), {"type": "schedule.url.v1"}),
    *(
        Row(f"{method} {RUN}/{{id}}{below}", of_run(type), answers)
        for method, below in (("GET", ""), ("HEAD", ""), ("GET", "/steps"))
        for type, answers in (
            ("open.v1", (401, 200, 404, 404, 200, 200)),
            ("closed.v1", (401, 200, 404, 404, 200, 200)),
            ("letter.v1", (*NOT_THERE, 200)),
            ("internal.v1", (*NOT_THERE, 200)),
            ("job", (*NOT_THERE, 200)),
        )
    ),
    *(
        Row(f"{method} {RUN}/{{id}}{below}", make(type), answers(done))
        for method, below, make, done in (
            ("POST", "/cancel", of_run, 200),
            ("POST", "/retry", of_cancelled, 200),
            ("DELETE", "", of_run, 204),
        )
        for type, answers in (
            ("open.v1", lambda done: (401, done, 404, 404, done, done)),
            ("closed.v1", lambda done: (401, 403, 404, 404, done, done)),
            ("letter.v1", lambda done: (*NOT_THERE, done)),
            ("internal.v1", lambda done: (*NOT_THERE, done)),
            ("job", lambda done: (*NOT_THERE, done)),
        )
    ),
    *(
        Row(f"{method} {EVENT}{below}", make, answers)
        for method in ("GET", "HEAD")
        for below, make, answers in (
            ("", nothing, (401, 200, 200, 200, 200, 200)),
            ("/{id}", of_event("open.v1"), (401, 200, 404, 404, 200, 200)),
            ("/{id}", of_event("closed.v1"), (401, 200, 404, 404, 200, 200)),
            ("/{id}", of_event("letter.v1"), (*NOT_THERE, 200)),
            ("/{id}", of_event("internal.v1"), (*NOT_THERE, 200)),
        )
    ),
    *(
        Row(f"{method} {JOB}{below}", make, answers)
        for method in ("GET", "HEAD")
        for below, make, answers in (
            ("", nothing, (401, 200, 200, 200, 200, 200)),
            ("/{id}", World.job, (401, 200, 404, 404, 200, 200)),
        )
    ),
    *(
        Row(f"{method} {table}{below}", make, (*OPERATORS, 200))
        for method in ("GET", "HEAD")
        for table, below, make in (
            (OUTBOX, "", nothing),
            (OUTBOX, "/{id}", World.dead_message),
        )
    ),
    *(
        Row(f"{method} {table}{below}", make, (*ROLE_ONLY, of_tenant, 200))
        for method in ("GET", "HEAD")
        for table, below, make, of_tenant in (
            (PLAN, "", nothing, 200),
            (PLAN, "/{id}", World.schedule, 404),
            (PLAN, "/{id}", World.schedule_of_acme, 200),
            (PLAN, "/due", nothing, 200),
            (FIRING, "", nothing, 200),
            (FIRING, "/{id}", World.firing, 404),
            (FIRING, "/{id}", World.firing_of_acme, 200),
        )
    ),
    Row(f"POST {OUTBOX}/{{id}}/redrive", World.dead_message, (*OPERATORS, 200)),
    Row(f"POST {PLAN}", nothing, (*ROLE_ONLY, 201, 201), {"name": "new", **A_SCHEDULE}),
    Row(f"POST {PLAN}", nothing, (*ROLE_ONLY, 400, 201), {"name": "x", **A_SCHEDULE, "target": "closed.v1"}),
    *(
        Row(f"{method} {PLAN}/{{id}}{below}", make, (*ROLE_ONLY, of_tenant or done, done), body)
        for make, of_tenant in ((World.schedule, 404), (World.schedule_of_acme, 0))
        for method, below, done, body in (
            ("PATCH", "", 200, {"cron": "@hourly"}),
            ("PUT", "", 200, {"cron": "@hourly"}),
            ("PUT", "/status", 200, {"status": "inactive"}),
            ("DELETE", "", 204, None),
            ("POST", "/activate", 200, None),
            ("POST", "/deactivate", 200, None),
            ("POST", "/run", 202, None),
        )
    ),
    Row(f"POST {PLAN}/delete", nothing, (*ROLE_ONLY, 200, 200), {"ids": ["x"]}),
    Row(f"DELETE {PLAN}", nothing, (*ROLE_ONLY, 200, 200), query="?ids=x"),
]


async def test_every_caller_gets_as_far_as_the_table_says(world: World) -> None:
    wrong = []
    for row in MATRIX:
        method, path = row.route.split()
        for (name, headers), expected in zip(CALLERS.items(), row.answers, strict=True):
            where = f"/api{path.replace('{id}', await row.make(world))}{row.query}"
            body = None if row.body is None else {"json": row.body}
            answer = await world.http.request(method, where, headers=headers, **(body or {}))
            if answer.status_code != expected:
                wrong.append((row.route, row.body, name, answer.status_code, expected, answer.text))

    assert wrong == []


def test_no_route_of_durable_work_is_missing_from_the_table() -> None:
    server = everything(FakeClock())
    server.seal()
    tables = (RUN, EVENT, JOB, OUTBOX, PLAN, FIRING)

    mounted = {
        f"{method} {path.removeprefix('/api')}"
        for method, path, _ in server.routes
        if method != "OPTIONS" and path.removeprefix("/api").startswith(tables)
    }

    assert {row.route for row in MATRIX} == mounted


async def test_lists_and_counts_hold_what_the_caller_may_read(world: World) -> None:
    for type in ("open.v1", "closed.v1", "letter.v1", "internal.v1", "job"):
        await world.run(type)
    await world.server.work.submit("open.v1", actor_id="bob", tenant_id="acme")
    await world.server.work.submit("open.v1", actor_id="eve", tenant_id="other")
    await world.server.work.submit("open.v1")
    await world.server.jobs.enqueue(Job("job", {}, "bob", "acme"))

    async def totals(path: str) -> list[int]:
        callers = [headers for name, headers in CALLERS.items() if name != "nobody"]
        answers = [(await world.http.get(f"/api{path}", headers=headers)).json() for headers in callers]
        assert all(len(answer["data"]) == answer["meta"]["total"] for answer in answers)
        return [answer["meta"]["total"] for answer in answers]

    # owner, colleague, other tenant, tenant admin, operator
    assert await totals(RUN) == [2, 1, 0, 3, 9]
    assert await totals(f"{EVENT}?filter=event_type:eq:created") == [2, 1, 0, 3, 9]
    assert await totals(JOB) == [1, 1, 0, 2, 2]


async def test_nobody_but_an_operator_reads_the_text_of_an_exception_anywhere(world: World) -> None:
    for type in ("open.v1", "closed.v1"):
        await world.run(type)
    await world.server.jobs.enqueue(Job("job", {}, "ada", "acme"))
    await world.dead_message()
    await world.server.work.worker().drain()
    world.clock.advance(timedelta(minutes=1))

    async def told(headers: dict[str, str]) -> list[str]:
        paths = (
            RUN,
            f"{RUN}?select=last_error",
            f"{RUN}?select=error",
            EVENT,
            f"{EVENT}?include=workflow",
            JOB,
            OUTBOX,
        )
        texts = [(path, (await world.http.get(f"/api{path}", headers=headers)).text) for path in paths]
        return [path for path, text in texts if "no luck" in text or "Traceback" in text]

    assert len(await told(ROOT)) == 6  # no job has failed here
    for headers in (ADA, BOB, ADA_ELSEWHERE, TENANT_ADMIN, {}):
        assert await told(headers) == []
