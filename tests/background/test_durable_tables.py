"""The tables of durable work, as programs see them that write SQL of their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from maniflex import Run, Server
from maniflex.background.runs.model import WorkflowEvent
from maniflex.errors import ConstraintViolation, RequestError


def a_server(url: str) -> Server:
    server = Server(url, background=False)
    server.outbox.enable()

    @server.work.handler("default.echo")
    async def echo(run: Run) -> object:
        return run.payload

    return server


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


async def insert_run(server: Server, url: str, **columns: object) -> str:
    """A run by the columns of the design alone; what has a default there is left out."""
    id = str(uuid4())
    due = datetime.now(UTC) - timedelta(seconds=1)
    run_at = due.isoformat(timespec="microseconds")[:26] + "Z" if is_sqlite(url) else due
    given = {"id": id, "type": "default.echo", "payload": '{"n": 1}', "run_at": run_at, **columns}
    places = ", ".join("?" * len(given))
    await server.raw_exec(f"INSERT INTO workflow_run ({', '.join(given)}) VALUES ({places})", *given.values())
    return id


async def test_a_run_that_another_program_inserts_is_worked_on(database_url: str) -> None:
    server = a_server(database_url)
    async with server.lifespan():
        id = await insert_run(server, database_url, status="pending")
        stored = await server.work.get(id)
        assert await server.work.worker().drain() == 1
        done = await server.work.get(id)

    assert (stored.priority, stored.attempt, stored.max_attempts) == (0, 0, 3)
    assert abs(stored.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert stored.updated_at == stored.created_at
    assert (done.status, done.result, done.attempt) == ("succeeded", {"n": 1}, 1)


async def test_an_event_that_another_program_inserts_has_an_id_and_a_time(database_url: str) -> None:
    server = a_server(database_url)
    async with server.lifespan():
        id = await insert_run(server, database_url)
        for _ in range(2):
            await server.raw_exec(
                "INSERT INTO workflow_event (workflow_id, event_type, data) VALUES (?, ?, ?)",
                id,
                "noted",
                '{"by": "hand"}',
            )
        noted = await server.db(WorkflowEvent).list([("workflow_id", "eq", id)])
        later = (await server.work.submit("default.echo")).id

    assert len({event.id for event in noted}) == 2
    for event in noted:
        assert UUID(event.id).version == 7
        assert abs(event.created_at - datetime.now(UTC)) < timedelta(minutes=1)
        assert event.id[:8] <= later[:8]  # it sorts by time among ours
        assert event.data == {"by": "hand"}


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO workflow_run (id, type, status, payload, run_at, created_at, updated_at)"
        " SELECT 'x', type, 'paused', payload, run_at, created_at, updated_at FROM workflow_run",
        "UPDATE workflow_run SET status = 'done'",
        "UPDATE outbox_event SET status = 'done'",
    ],
)
async def test_a_status_there_is_not_is_refused_by_the_database(database_url: str, statement: str) -> None:
    server = a_server(database_url)
    async with server.lifespan():
        await insert_run(server, database_url)
        await server.outbox.enqueue("told", {}, outside_transaction=True)

        with pytest.raises(ConstraintViolation):
            await server.raw_exec(statement)

        [run] = await server.work.list()
        assert run.status == "pending"


async def test_a_table_that_was_made_without_defaults_gets_them(postgres_url: str) -> None:
    server = a_server(postgres_url)
    async with server.lifespan():
        for column in ("status", "priority", "attempt", "max_attempts", "created_at", "updated_at"):
            await server.raw_exec(f"ALTER TABLE workflow_run ALTER COLUMN {column} DROP DEFAULT")
        with pytest.raises(RequestError):
            await insert_run(server, postgres_url)

    again = a_server(postgres_url)
    async with again.lifespan():
        id = await insert_run(again, postgres_url)
        assert (await again.work.get(id)).max_attempts == 3
