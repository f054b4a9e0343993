"""`/job_statuses`: what a client sees of its jobs, whatever queue they are in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest

from maniflex import Server
from maniflex.background.jobs import InProcessQueue, Job, Result
from maniflex.background.jobs.status import StatusPruner, TableStatus
from maniflex.errors import Conflict, Unavailable
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.run_routes import ADA, ADA_ELSEWHERE, ADA_NOWHERE, BOB, ROOT, known
from tests.kit.statements import plans_of

PATH = "/api/job_statuses"
MINUTE = timedelta(minutes=1)


@dataclass
class Kit:
    server: Server
    http: httpx.AsyncClient
    clock: FakeClock
    begun: asyncio.Event
    may_end: asyncio.Event

    async def work(self) -> int:
        jobs = self.server.jobs
        return await (self.server.work.worker() if jobs.uses_runs else jobs.worker()).drain()

    async def status(self, id: str) -> Any:
        answer = await self.http.get(f"{PATH}/{id}", headers=ROOT)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]


@asynccontextmanager
async def a_kit(database: str, *, inproc: bool, queue: Any = None, **mounted: Any) -> AsyncIterator[Kit]:
    clock, begun, may_end = FakeClock(), asyncio.Event(), asyncio.Event()
    server = Server(clock=clock, background=False)
    server.pipeline.auth.register(known)
    if inproc:
        server.jobs.use(queue or InProcessQueue(clock=clock))
    server.jobs.mount_status(**mounted)

    @server.jobs.handler("report")
    async def report(job: Job) -> Result:
        begun.set()
        await may_end.wait()
        if job.payload.get("broken"):
            raise RuntimeError("no paper")
        return Result("https://files/1", {"pages": [1, 2]})

    @server.work.handler("maniflex.internal", internal=True)
    async def internal(run: Any) -> None: ...

    async with client(server, database=database) as http:
        yield Kit(server, http, clock, begun, may_end)


@pytest.fixture(params=["runs", "memory"])
async def kit(request: Any, database_url: str) -> AsyncIterator[Kit]:
    async with a_kit(database_url, inproc=request.param == "memory") as kit:
        yield kit


async def test_a_job_is_enqueued_running_succeeded(kit: Kit) -> None:
    id = await kit.server.jobs.enqueue(Job("report", {}, "ada", "acme", "t-1"))
    first = await kit.status(id)
    working = asyncio.create_task(kit.work())
    await asyncio.wait_for(kit.begun.wait(), 10)
    second = await kit.status(id)
    kit.clock.advance(timedelta(seconds=5))
    kit.may_end.set()
    await working
    third = await kit.status(id)

    assert [row["status"] for row in (first, second, third)] == ["enqueued", "running", "succeeded"]
    assert [row["attempt"] for row in (first, second, third)] == [0, 1, 1]
    assert [row["completed_at"] for row in (first, second)] == [None, None]
    assert third == {
        "id": id,
        "type": "report",
        "status": "succeeded",
        "attempt": 1,
        "max_retry": 3,
        "actor_id": "ada",
        "tenant_id": "acme",
        "trace_id": "t-1",
        "result_url": "https://files/1",
        "output": {"pages": [1, 2]},
        "error": None,
        "error_code": None,
        "created_at": "2026-01-01T00:00:00Z",
        "completed_at": "2026-01-01T00:00:05Z",
        "updated_at": "2026-01-01T00:00:05Z",
    }


async def test_a_failing_job_is_failed_between_attempts_and_dead_in_the_end(kit: Kit) -> None:
    kit.may_end.set()
    id = await kit.server.jobs.enqueue("report", {"broken": True}, max_retry=2)
    await kit.work()
    first = await kit.status(id)
    kit.clock.advance(MINUTE)
    await kit.work()
    second = await kit.status(id)

    assert (first["status"], first["attempt"], first["completed_at"]) == ("failed", 1, None)
    assert (second["status"], second["attempt"]) == ("dead", 2)
    assert "no paper" in second["error"]
    assert second["completed_at"] is not None


async def test_a_cancelled_job_is_cancelled(kit: Kit) -> None:
    id = await kit.server.jobs.enqueue("report", not_before=kit.clock.now() + MINUTE)

    await kit.server.jobs.cancel(id)

    row = await kit.status(id)
    assert (row["status"], row["completed_at"]) == ("cancelled", "2026-01-01T00:00:00Z")


async def test_the_job_of_a_dead_worker_is_seen_to_be_dead(kit: Kit) -> None:
    id = await kit.server.jobs.enqueue(Job("report", max_retry=1))
    jobs: Any = kit.server.jobs
    if jobs.uses_runs:
        await kit.server.work.worker().claim(1)
    else:
        await jobs.queue.claim(("report",), 1)
    kit.clock.advance(MINUTE * 10)

    await kit.work()

    row = await kit.status(id)
    assert (row["status"], row["error"]) == ("dead", "lease_expired")


# -- who sees what


async def test_strangers_are_refused(kit: Kit) -> None:
    id = await kit.server.jobs.enqueue(Job("report"))

    for path in (PATH, f"{PATH}/{id}", f"{PATH}?filter=status:eq:enqueued"):
        assert (await kit.http.get(path)).status_code == 401


async def test_everyone_sees_their_own_jobs_and_the_admin_role_all(kit: Kit) -> None:
    mine = await kit.server.jobs.enqueue(Job("report", {}, "ada", "acme"))
    other = await kit.server.jobs.enqueue(Job("report", {}, "ada"))
    await kit.server.jobs.enqueue(Job("report", {}, "bob", "acme"))

    async def seen(headers: dict[str, str]) -> tuple[list[str], int]:
        body = (await kit.http.get(PATH, headers=headers)).json()
        return [row["id"] for row in body["data"]], body["meta"]["total"]

    assert await seen(ADA) == ([mine], 1)
    assert await seen(ADA_NOWHERE) == ([other], 1)
    assert await seen(ADA_ELSEWHERE) == ([], 0)
    assert (await seen(ROOT))[1] == 3
    assert (await kit.http.get(f"{PATH}/{mine}", headers=ADA)).status_code == 200
    for headers in (BOB, ADA_ELSEWHERE, ADA_NOWHERE):
        assert (await kit.http.get(f"{PATH}/{mine}", headers=headers)).status_code == 404
    wide = f"{PATH}?filter[0]=actor_id:eq:ada&filter[0]=actor_id:eq:bob"
    assert (await kit.http.get(wide, headers=BOB)).json()["meta"]["total"] == 1


async def test_nobody_writes_a_status(kit: Kit) -> None:
    id = await kit.server.jobs.enqueue(Job("report", {}, "ada", "acme"))

    assert (await kit.http.post(PATH, json={"status": "succeeded"}, headers=ROOT)).status_code == 405
    for method in ("PATCH", "PUT", "DELETE"):
        answer = await kit.http.request(method, f"{PATH}/{id}", json={}, headers=ROOT)
        assert answer.status_code == 405


async def test_statuses_are_filtered_and_sorted_like_anything(kit: Kit) -> None:
    kit.may_end.set()
    for n in range(3):
        await kit.server.jobs.enqueue("report", {"broken": n == 1}, max_retry=1)
    await kit.work()

    query = "filter=status:in:succeeded,dead&sort=status:desc&limit=2"
    body = (await kit.http.get(f"{PATH}?{query}", headers=ROOT)).json()

    assert [row["status"] for row in body["data"]] == ["succeeded", "succeeded"]
    assert body["meta"]["total"] == 3


async def test_runs_that_are_no_jobs_have_no_status(kit: Kit) -> None:
    for type in ("maniflex.internal", "plain.run", "handled.elsewhere"):
        run = await kit.server.work.submit(type, actor_id="ada", tenant_id="acme")
        for headers in (ADA, ROOT):
            assert (await kit.http.get(f"{PATH}/{run.id}", headers=headers)).status_code == 404

    for headers in (ADA, ROOT):
        listed = (await kit.http.get(PATH, headers=headers)).json()
        assert (listed["data"], listed["meta"]["total"]) == ([], 0)


async def test_jobs_that_are_handled_elsewhere_are_shown_when_they_are_named(database_url: str) -> None:
    async with a_kit(database_url, inproc=False, types=["thumbnail"]) as kit:
        id = await kit.server.jobs.enqueue(Job("thumbnail", {}, "ada", "acme"))
        await kit.server.jobs.enqueue(Job("unheard.of", {}, "ada", "acme"))

        assert [row["id"] for row in (await kit.http.get(PATH, headers=ADA)).json()["data"]] == [id]


async def test_where_nothing_is_a_job_there_is_no_status(database_url: str) -> None:
    server = Server(background=False)
    server.jobs.mount_status(public=True)
    async with client(server, database=database_url) as http:
        await server.work.submit("plain.run")

        assert (await http.get(PATH)).json()["data"] == []


@pytest.mark.parametrize("inproc", [False, True])
async def test_public_statuses_ask_for_no_identity_but_keep_to_it(database_url: str, inproc: bool) -> None:
    async with a_kit(database_url, inproc=inproc, public=True, admin_role="boss") as kit:
        await kit.server.jobs.enqueue(Job("report", {}, "ada"))
        await kit.server.jobs.enqueue(Job("report", {}, "bob"))
        for type in ("maniflex.internal", "plain.run"):
            await kit.server.work.submit(type, {}, actor_id="ada")

        callers: tuple[dict[str, str], ...] = (
            {},
            {"x-user": "ada"},
            {"x-user": "x", "x-roles": "boss"},
            ROOT,
        )
        answers = [await kit.http.get(PATH, headers=headers) for headers in callers]

        counts = [answer.json()["meta"]["total"] for answer in answers]
        assert counts == [2, 1, 2, 0]


async def test_statuses_are_mounted_only_on_request(database_url: str) -> None:
    server = Server(background=False)
    server.jobs.handler("report")(lambda job: None)
    async with client(server, database=database_url) as http:
        assert (await http.get(PATH, headers=ROOT)).status_code == 404


@pytest.mark.parametrize("inproc", [False, True])
async def test_statuses_are_found_by_an_index(
    sqlite_url: str, inproc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "job_status" if inproc else "workflow_run"
    async with a_kit(sqlite_url, inproc=inproc) as kit:
        id = await kit.server.jobs.enqueue(Job("report", {}, "ada", "acme"))

        one = await plans_of(kit.server, kit.http, f"{PATH}/{id}", ADA, monkeypatch)
        own = await plans_of(kit.server, kit.http, PATH, ADA, monkeypatch)

    assert f"SEARCH {table} USING INDEX sqlite_autoindex_{table}_1 (id=?)" in one
    assert f"SEARCH {table} USING INDEX {table}_actor_idx (actor_id=?)" in own
    assert f"SCAN {table}" not in one + own


# -- rows of other queues


class Away(InProcessQueue):
    async def enqueue(self, job: Job) -> str:
        raise Unavailable()


async def test_a_job_that_could_not_be_enqueued_has_no_status(database_url: str) -> None:
    async with a_kit(database_url, inproc=True, queue=Away()) as kit:
        with pytest.raises(Unavailable):
            await kit.server.jobs.enqueue(Job("report"))

        assert (await kit.http.get(PATH, headers=ROOT)).json()["data"] == []


async def test_a_worker_given_up_for_dead_does_not_overwrite_the_status(database_url: str) -> None:
    async with a_kit(database_url, inproc=True) as kit:
        sink = kit.server.jobs._sink
        assert isinstance(sink, TableStatus)
        first, second = (Job("report", id="one", attempt=n) for n in (1, 2))
        await sink.put(first, "running")
        await sink.put(second, "running")
        await sink.put(first, "succeeded", result=Result(output="late"))
        assert (await kit.status("one"))["status"] == "running"

        await sink.put(second, "dead", error="no")
        await sink.put(second, "running")
        row = await kit.status("one")

        assert (row["status"], row["error"], row["output"]) == ("dead", "no", None)


async def test_a_job_that_has_the_id_of_an_earlier_one_begins_anew(database_url: str) -> None:
    async with a_kit(database_url, inproc=True) as kit:
        kit.may_end.set()
        await kit.server.jobs.enqueue(Job("report", {"broken": True}, "ada", max_retry=1, id="one"))
        await kit.work()
        assert (await kit.status("one"))["status"] == "dead"
        kit.clock.advance(MINUTE)

        await kit.server.jobs.enqueue(Job("report", {}, "bob", max_retry=2, id="one"))

        row = await kit.status("one")
        assert (row["status"], row["attempt"], row["error"]) == ("enqueued", 0, None)
        assert (row["actor_id"], row["max_retry"], row["completed_at"]) == ("bob", 2, None)
        assert row["created_at"] == "2026-01-01T00:01:00Z"
        with pytest.raises(Conflict):
            await kit.server.jobs.enqueue(Job("report", {}, "ada", id="one"))
        await kit.work()
        row = await kit.status("one")
        assert (row["status"], row["actor_id"], row["output"]) == ("succeeded", "bob", {"pages": [1, 2]})


async def test_statuses_of_long_ago_are_removed(database_url: str) -> None:
    async with a_kit(database_url, inproc=True) as kit:
        sink, environment = kit.server.jobs._sink, kit.server.jobs._environment
        assert sink is not None
        assert environment is not None
        old = await kit.server.jobs.enqueue("report", not_before=kit.clock.now() + MINUTE)
        await kit.server.jobs.cancel(old)
        waiting = await kit.server.jobs.enqueue("report")
        kit.clock.advance(kit.server.config.work_retention + MINUTE)

        pruner = StatusPruner(sink, environment)
        while await pruner.tick():
            pass

        body = (await kit.http.get(PATH, headers=ROOT)).json()
        assert [row["id"] for row in body["data"]] == [waiting]


async def test_a_job_for_later_has_a_status_from_the_beginning(kit: Kit) -> None:
    when = kit.clock.now() + MINUTE
    first = await kit.server.jobs.enqueue_at("report", when, {"of": 7}, actor_id="ada")
    second = await kit.server.jobs.enqueue_at(Job("report"), when)

    for id in (first, second):
        assert (await kit.status(id))["status"] == "enqueued"
    assert (await kit.status(first))["actor_id"] == "ada"
    assert await kit.work() == 0

    kit.may_end.set()
    kit.clock.advance(MINUTE)
    assert await kit.work() == 2
    assert (await kit.status(first))["status"] == "succeeded"
