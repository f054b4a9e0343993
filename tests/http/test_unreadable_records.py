"""One stored value that cannot be read breaks neither its own record nor the lists it is in."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from maniflex import Run, Server
from maniflex.background.outbox.model import OutboxMessage
from maniflex.errors import InvalidSchedule, RunFailed
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.http import data_of
from tests.kit.run_routes import ADA, EVENTS, ROOT, RUNS, a_server

DEEP = "[" * 4000 + "]" * 4000
SQLITE = {
    "bytes": "x'ff00fe'",
    "no utf-8": "CAST(x'22ff22' AS TEXT)",
    "no json": "'{bad'",
    "no number": "'[NaN]'",
    "deep": f"'{DEEP}'",
}
POSTGRES = {"surrogate": r"""'"\ud800"'::json""", "deep": f"'{DEEP}'::json"}
CASES = [*(("sqlite", *case) for case in SQLITE.items()), *(("postgres", *case) for case in POSTGRES.items())]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def spoilt(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A database, and an expression of something in it that nobody can read."""
    dialect, _, expression = request.param
    return request.getfixturevalue(f"{dialect}_url"), expression


async def spoil(server: Server, table: str, column: str, value: str, where: str = "true") -> None:
    await server.raw_exec(f"UPDATE {table} SET {column} = {value} WHERE {where}")


def told(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"$unreadable"}


async def test_a_run_with_an_unreadable_payload_is_shown_and_changed_like_any_other(
    spoilt: tuple[str, str],
) -> None:
    url, value = spoilt
    server = a_server()
    async with client(server, database=url) as http:
        ids: list[str] = []
        for _ in range(3):
            sent = await http.post(
                RUNS, json={"type": "default.echo", "idempotency_key": f"k{len(ids)}"}, headers=ADA
            )
            ids.append(data_of(sent, 201)["id"])
        bad, one = ids[1], f"{RUNS}/{ids[1]}"
        await spoil(server, "workflow_run", "payload", value, f"id = '{bad}'")

        assert [run["id"] for run in data_of(await http.get(f"{RUNS}?sort=id:asc", headers=ADA))] == ids
        for path in (one, f"{one}?select=payload", f"{EVENTS}?include=workflow"):
            answer = await http.get(path, headers=ADA)
            assert answer.status_code == 200
            json.loads(answer.content.decode())
        assert told(data_of(await http.get(one, headers=ADA))["payload"])
        assert told((await server.work.get(bad)).payload)
        assert sorted(run.id for run in await server.work.list()) == ids

        again = await http.post(RUNS, json={"type": "default.echo", "idempotency_key": "k1"}, headers=ADA)
        assert (again.status_code, data_of(again, 200)["id"]) == (200, bad)
        assert data_of(await http.post(f"{one}/cancel", headers=ADA))["status"] == "cancelled"
        assert data_of(await http.post(f"{one}/retry", headers=ADA))["status"] == "pending"
        await server.work.worker().drain()
        done = data_of(await http.get(one, headers=ROOT))
        assert (done["status"], done["error"]["code"]) == ("failed", "payload_does_not_fit")
        assert told(done["payload"])
        assert (await http.delete(one, headers=ADA)).status_code == 204
        runs = data_of(await http.get(RUNS, headers=ADA))
        assert [run["status"] for run in runs] == ["succeeded"] * 2


async def test_unreadable_results_errors_and_events_are_shown_as_that(spoilt: tuple[str, str]) -> None:
    url, value = spoilt
    server = a_server()
    async with client(server, database=url) as http:
        runs = [await server.work.submit("default.echo", n) for n in range(2)]
        await server.work.worker().drain()
        for column in ("result", "error"):
            await spoil(server, "workflow_run", column, value, f"id = '{runs[0].id}'")
        await spoil(server, "workflow_event", "data", value, f"workflow_id = '{runs[0].id}'")

        shown = {run["id"]: run for run in data_of(await http.get(RUNS, headers=ROOT))}
        assert (told(shown[runs[0].id]["result"]), shown[runs[1].id]["result"]) == (True, 1)
        assert told((await server.work.wait(runs[0].id)).error)
        assert all(told(event.data) for event in await server.work.events(runs[0].id))
        assert len(data_of(await http.get(EVENTS, headers=ROOT))) > 3
        assert all(
            told(event["data"])
            for event in data_of(await http.get(f"{EVENTS}?filter=workflow_id:eq:{runs[0].id}", headers=ROOT))
        )


@pytest.mark.parametrize("shape", ["[1]", '"text"', "5"])
async def test_a_value_of_another_shape_is_unreadable_too(database_url: str, shape: str) -> None:
    server = a_server()
    async with client(server, database=database_url) as http:
        run = await server.work.submit("default.echo")
        await spoil(server, "workflow_run", "error", f"'{shape}'")
        await spoil(server, "workflow_event", "data", f"'{shape}'")
        assert (await server.work.get(run.id)).error == {"$unreadable": shape}
        assert data_of(await http.get(f"{RUNS}/{run.id}", headers=ROOT))["error"] == {"$unreadable": shape}
        assert [event.data for event in await server.work.events(run.id)] == [{"$unreadable": shape}]


async def test_a_typed_payload_of_another_shape_fails_its_run_and_stays_readable(database_url: str) -> None:
    server = a_server()
    async with client(server, database=database_url) as http:
        run = await server.work.submit("email.receipt.v1", {"order_id": 1})
        await spoil(server, "workflow_run", "payload", """'{"number": 1}'""")
        await server.work.worker(("email.",)).drain()
        done = data_of(await http.get(f"{RUNS}/{run.id}", headers=ROOT))
        assert (done["status"], done["payload"]) == ("failed", {"number": 1})
        assert "order_id: Field required" in done["last_error"]


async def test_a_step_or_a_signal_that_cannot_be_read_fails_its_run_and_is_not_repeated(
    spoilt: tuple[str, str],
) -> None:
    url, value = spoilt
    server = Server(background=False)
    calls: list[str] = []

    @server.work.handler("default.steps")
    async def steps(run: Run) -> None:
        await run.step("first", lambda: calls.append(run.id))
        await run.wait_for("go")

    async with client(server, database=url):
        stepped, signalled = [await server.work.submit("default.steps") for _ in range(2)]
        await server.work.worker().drain()
        for run in (stepped, signalled):
            await server.work.signal(run.id, "go", 1)
        await spoil(server, "workflow_step", "result", value, f"workflow_id = '{stepped.id}'")
        await spoil(server, "workflow_signal", "payload", value, f"workflow_id = '{signalled.id}'")
        await server.work.worker().drain()
        errors = [(await server.work.get(run.id)).last_error or "" for run in (stepped, signalled)]
        assert "what step 'first' returned cannot be read" in errors[0]
        assert "the signal 'go' cannot be read" in errors[1]
        assert len(calls) == 2


async def test_a_parent_is_not_given_a_result_that_cannot_be_read(spoilt: tuple[str, str]) -> None:
    url, value = spoilt
    clock = FakeClock()
    server = Server(background=False, clock=clock)

    @server.work.handler("default.parent", max_attempts=1)
    async def parent(run: Run) -> Any:
        try:
            return await run.call("other.child", name="child")
        except RunFailed as error:
            return str(error)

    async with client(server, database=url):
        made = await server.work.submit("default.parent")
        await server.work.worker().drain()
        [waiting] = await server.work.list(type="other.child")
        await spoil(server, "workflow_run", "result", value, f"id = '{waiting.id}'")
        await spoil(server, "workflow_run", "status", "'succeeded'", f"id = '{waiting.id}'")
        clock.advance(timedelta(hours=2))
        await server.work.worker().drain()
        assert "unreadable: its result cannot be read" in str((await server.work.get(made.id)).result)


async def test_a_schedule_with_an_unreadable_payload_rests_and_the_others_go_on(
    spoilt: tuple[str, str],
) -> None:
    url, value = spoilt
    clock = FakeClock()
    server = a_server(clock=clock)
    server.schedules.enable()
    async with client(server, database=url) as http:
        for name in ("bad", "good"):
            await server.schedules.create(name, cron="* * * * *", run="default.echo", payload={"n": 1})
        await spoil(server, "schedules", "payload", value, "name = 'bad'")
        assert told((await server.schedules.get("bad")).payload)
        assert len(data_of(await http.get("/api/schedules", headers=ROOT))) == 2
        with pytest.raises(InvalidSchedule, match=r"payload.*cannot be read"):
            await server.schedules.run_now("bad")
        clock.advance(timedelta(minutes=1))
        assert await server.schedules.scheduler().tick() == 1
        resting = await server.schedules.get("bad")
        assert (resting.status, (await server.schedules.get("good")).status) == ("inactive", "active")
        assert "payload: what is stored cannot be read" in (resting.last_error or "")
        assert (await server.schedules.update("bad", payload={"n": 2}, active=True)).payload == {"n": 2}
        assert await server.schedules.delete("bad") == 1


async def test_a_message_with_an_unreadable_payload_is_shown_and_dies_alone(
    spoilt: tuple[str, str],
) -> None:
    url, value = spoilt
    server = a_server()
    seen: list[Any] = []

    @server.outbox.handler("note")
    async def note(message: Any) -> None:
        seen.append(message.payload)

    path = "/api/outbox_event"
    async with client(server, database=url) as http:
        sent = [await server.outbox.enqueue("note", n, outside_transaction=True) for n in range(3)]
        await spoil(server, "outbox_event", "payload", value, f"id = '{sent[1].id}'")
        assert len(data_of(await http.get(path, headers=ROOT))) == 3
        assert told(data_of(await http.get(f"{path}/{sent[1].id}", headers=ROOT))["payload"])
        assert told((await server.db(OutboxMessage).read(sent[1].id)).payload)
        await server.outbox.drainer().drain()
        dead = data_of(await http.get(f"{path}/{sent[1].id}", headers=ROOT))
        assert (dead["status"], dead["payload"], bool(dead["raw"])) == ("dead", None, True)
        assert "the payload is not JSON" in dead["last_error"]
        assert seen == [0, 2]
        assert (await http.post(f"{path}/{sent[1].id}/redrive", headers=ROOT)).status_code == 200


async def test_a_job_with_unreadable_values_is_listed_with_the_others(spoilt: tuple[str, str]) -> None:
    url, value = spoilt
    server = a_server()
    server.jobs.mount_status()

    @server.jobs.handler("tidy")
    async def tidy(job: Any) -> Any:
        return {"output": job.payload}

    async with client(server, database=url) as http:
        ids = [await server.jobs.enqueue("tidy", n) for n in range(2)]
        await server.work.worker("tidy").drain()
        for column in ("result", "error", "payload"):
            await spoil(server, "workflow_run", column, value, f"id = '{ids[0]}'")
        shown = data_of(await http.get("/api/job_statuses", headers=ROOT))
        assert sorted(job["id"] for job in shown) == sorted(ids)
        assert (await http.get(f"/api/job_statuses/{ids[0]}", headers=ROOT)).status_code == 200
