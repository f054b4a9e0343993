"""The operations of durable work are named as those of any model."""

from __future__ import annotations

import asyncio

from tests.kit.described_app import durable_server

NAMES = {
    "/api/workflow_run": "list_workflow_runs submit_workflow_run head_workflow_runs options_workflow_runs",
    "/api/workflow_run/{id}": ("get_workflow_run delete_workflow_run head_workflow_run options_workflow_run"),
    "/api/workflow_run/{id}/cancel": "cancel_workflow_run",
    "/api/workflow_run/{id}/retry": "retry_workflow_run",
    "/api/workflow_run/{id}/steps": "list_workflow_run_steps options_steps_workflow_run",
    "/api/workflow_event": "list_workflow_events head_workflow_events options_workflow_events",
    "/api/workflow_event/{id}": "get_workflow_event head_workflow_event options_workflow_event",
    "/api/outbox_event": "list_outbox_events head_outbox_events options_outbox_events",
    "/api/outbox_event/{id}": "get_outbox_event head_outbox_event options_outbox_event",
    "/api/outbox_event/{id}/redrive": "redrive_outbox_event",
    "/api/schedules": "list_schedules create_schedule delete_schedules head_schedules options_schedules",
    "/api/schedules/{id}": (
        "get_schedule update_schedule put_schedule delete_schedule head_schedule options_schedule"
    ),
    "/api/schedules/{id}/status": "put_schedule_status options_status_schedule",
    "/api/schedules/due": "list_due_schedules head_due_schedules options_due_schedules",
    "/api/schedules/delete": "delete_many_schedules options_delete_schedules",
    "/api/schedules/{id}/activate": "activate_schedule",
    "/api/schedules/{id}/deactivate": "deactivate_schedule",
    "/api/schedules/{id}/run": "run_schedule",
    "/api/schedule_firing": "list_schedule_firings head_schedule_firings options_schedule_firings",
    "/api/schedule_firing/{id}": "get_schedule_firing head_schedule_firing options_schedule_firing",
    "/api/job_statuses": "list_job_statuses head_job_statuses options_job_statuses",
    "/api/job_statuses/{id}": "get_job_status head_job_status options_job_status",
    "/metrics": "get_metrics head_metrics",
}


def test_the_operations_of_durable_work_are_named_as_those_of_models() -> None:
    server = durable_server()

    paths = asyncio.run(server.openapi())["paths"]

    told = {path: {o["operationId"] for o in paths[path].values()} for path in NAMES}
    assert told == {path: set(names.split()) for path, names in NAMES.items()}
    mounted = {path for _, path, _ in server.routes}
    others = {"/api/openapi.json", "/health", "/live", "/ready"}
    assert set(paths) == NAMES.keys() | others
    assert mounted - set(paths) == {path for _, path, owner in server.routes if owner in ("docs", "welcome")}


def test_a_page_of_what_has_another_name_is_described_like_any_other() -> None:
    document = asyncio.run(durable_server().openapi())

    for path, schema in (("/api/job_statuses", "StatusModel"), ("/api/outbox_event", "OutboxMessage")):
        content = document["paths"][path]["get"]["responses"]["200"]["content"]
        data = content["application/json"]["schema"]["properties"]["data"]
        assert data["items"] == {"$ref": f"#/components/schemas/{schema}"}
        assert any(p.get("name") == "filter" for p in document["paths"][path]["get"]["parameters"])
