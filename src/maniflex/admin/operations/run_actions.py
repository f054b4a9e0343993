"""Retry, run now, cancel, delete and signal: one run, and a row in the audit trail for each."""

from __future__ import annotations

import json
from typing import Any

from maniflex.admin.audit import NothingStored
from maniflex.admin.call import ApiAnswer, Refusal
from maniflex.admin.operations.desk import ROOT, WorkDesk, acting
from maniflex.admin.visit import Handler, Visit, act
from maniflex.background.runs.model import WorkflowRun
from maniflex.errors import Abort
from maniflex.pipeline.response import Response

# Commands: the name in the path → the endpoint and the action of the audit trail.
COMMANDS = {
    "retry": ("run.retry", "run.retry"),
    "now": ("run.now", "run.retry"),
    "cancel": ("run.cancel", "run.cancel"),
    "delete": ("run.delete", "run.delete"),
}


async def change_run(desk: WorkDesk, run_id: str, command: str, reason: str = "") -> ApiAnswer:
    """Do it and note it, in one transaction; the answer says when it was refused."""
    endpoint, action = COMMANDS[command]
    trail, adapter = desk.visit.panel.trail, desk.parts.work.engine.store.adapter
    query = [("reason", reason)] if command == "delete" and reason else []
    async with trail.writing(
        desk.visit, adapter, action, model=WorkflowRun.__name__, record_id=run_id
    ) as entry:
        entry.reason = reason or ("now" if command == "now" else "")
        answer = await desk.ask(endpoint, run_id, query=query)
        if not answer.ok:
            raise NothingStored(answer)
    return answer


def _command(name: str) -> Handler:
    async def run_command(visit: Visit, desk: WorkDesk) -> Response:
        run_id = visit.params["id"]
        answer = await change_run(desk, run_id, name, visit.form_text("reason").strip())
        if not answer.ok:
            raise Refusal(answer.response)
        return visit.redirect(f"{ROOT}/runs/{run_id}", ok=visit.t(f"ops_done_{name}"))

    return acting(run_command)


async def signal_run(visit: Visit, desk: WorkDesk) -> Response:
    """Tell the run something."""
    run_id, name = visit.params["id"], visit.form_text("name").strip()
    body = {"name": name, "payload": read_json(visit, visit.form_text("payload"))}
    trail, adapter = visit.panel.trail, desk.parts.work.engine.store.adapter
    async with trail.writing(
        visit, adapter, "run.signal", model=WorkflowRun.__name__, record_id=run_id
    ) as entry:
        entry.reason = name
        answer = await desk.ask("run.signal", run_id, json=body)
        if not answer.ok:
            raise NothingStored(answer)
    if not answer.ok:
        raise Refusal(answer.response)
    return visit.redirect(f"{ROOT}/runs/{run_id}", ok=visit.t("ops_done_signal", name=name))


def read_json(visit: Visit, text: str) -> Any:
    """JSON that somebody typed; empty for null."""
    if not text.strip():
        return None
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        place = (
            f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        )
        message = visit.t("ops_bad_json", place=place)
        details = [{"field": "payload", "message": message, "code": "invalid"}]
        raise Abort(422, "VALIDATION_FAILED", message, details) from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


ROUTES = (
    *(act(f"{ROOT}/runs/{{id}}/{name}", _command(name)) for name in COMMANDS),
    act(f"{ROOT}/runs/{{id}}/signal", acting(signal_run)),
)
