"""No model of an application refers to the tables of durable work: it would go around their guards."""

from __future__ import annotations

import pytest

from maniflex import Model, belongs_to, field, has_many
from maniflex.background.runs.model import WorkflowRun
from maniflex.errors import DeclarationError
from tests.kit.http import data_of, error_of
from tests.kit.run_routes import BOB, a_server, site_on


class ByName(Model):
    workflow_run_id: str | None = field(default=None)


class Explicit(Model):
    done_by: str | None = field(default=None, relation="WorkflowRun")


class Typed(Model):
    run_id: str | None = field(default=None)
    run: WorkflowRun | None = belongs_to()


class Many(Model):
    runs: list[WorkflowRun] = has_many(key="trace_id")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (ByName, "ByName.workflow_run_id: keep the id as a plain field: relation=None"),
        (Explicit, "Explicit.done_by: keep the id as a plain field: relation=None"),
        (Typed, "Typed.run_id: keep the id as a plain field: relation=None"),
        (Many, "Many.runs: leave it out"),
    ],
)
def test_no_model_refers_to_runs_around_their_guard(model: type[Model], said: str) -> None:
    server = a_server()
    server.register(model)

    with pytest.raises(DeclarationError) as refused:
        server.seal()

    [problem] = refused.value.problems
    assert problem.startswith(said)
    assert "WorkflowRun" in problem


class OfSchedule(Model):
    schedule_id: str | None = field(default=None)


class OfMessage(Model):
    outbox_message_id: str | None = field(default=None)


class OfJob(Model):
    job_id: str | None = field(default=None, relation="StatusModel")


def test_no_model_refers_to_any_table_of_durable_work() -> None:
    server = a_server()
    server.schedules.enable()
    server.outbox.enable()
    server.jobs.mount_status()
    server.register(OfSchedule, OfMessage, OfJob)

    with pytest.raises(DeclarationError) as refused:
        server.seal()

    named = [problem.split(":")[0] for problem in refused.value.problems]
    assert named == ["OfSchedule.schedule_id", "OfMessage.outbox_message_id", "OfJob.job_id"]


class Ticket(Model):
    workflow_run_id: str | None = field(default=None, relation=None, filterable=True)


async def test_an_id_of_a_run_is_kept_as_a_plain_field(database_url: str) -> None:
    server = a_server()
    server.register(Ticket)
    async with site_on(server, database_url) as site:
        run = await site.submit()
        made = await site.http.post("/api/tickets", json={"workflow_run_id": run["id"]}, headers=BOB)

        assert data_of(made, 201)["workflow_run_id"] == run["id"]
        for query in ("include=workflow_run", "filter=workflow_run.actor_id:eq:ada", "sort=workflow_run.id"):
            refused = await site.http.get(f"/api/tickets?{query}", headers=BOB)
            error_of(refused, 400, "INVALID_QUERY")
