"""Submitting a run: a new one of a type, or one as another was, with an edited payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from maniflex.admin.audit import NothingStored
from maniflex.admin.call import Refusal
from maniflex.admin.list_query import read_number
from maniflex.admin.operations.desk import WorkDesk, acting
from maniflex.admin.operations.payload_form import PayloadField, payload_fields, payload_schema, read_payload
from maniflex.admin.operations.run_page import find_run
from maniflex.admin.operations.tabs import ROOT, show_page
from maniflex.admin.route import PanelRoute, act
from maniflex.admin.visit import Visit
from maniflex.background.runs.model import WorkflowRun
from maniflex.errors import Abort
from maniflex.pipeline.response import Response

Errors = Mapping[str, Sequence[str]]  # messages by the place they are about


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFormView:
    """What `operations/run_form.html` is given."""

    title: str
    action: str
    choose_url: str
    cancel_url: str
    type: str
    types: Sequence[str]
    is_resubmit: bool
    fields: Sequence[PayloadField]
    payload: str  # as JSON, where there are no fields
    payload_errors: Sequence[str]
    shows_payload: bool
    priority: str
    run_at: str
    key: str
    errors: Mapping[str, Sequence[str]]  # of the other controls; without a name, of the form as a whole
    zone: str


async def show_submission(visit: Visit, desk: WorkDesk) -> Response:
    """The form, empty or filled with what another run was given."""
    source = visit.param("from")
    if not source:
        return await _form(desk, visit.param("type"), payload={}, source="")
    run = await find_run(desk, source)
    return await _form(desk, run["type"], payload=desk.mask(run.get("payload")), source=source)


async def submit_run(visit: Visit, desk: WorkDesk) -> Response:
    """Store a new run."""
    return await _store(desk, visit.form_text("type").strip(), source="")


async def resubmit_run(visit: Visit, desk: WorkDesk) -> Response:
    """Store a run as another one was, with what was changed in the form."""
    run = await find_run(desk, visit.params["id"])
    return await _store(
        desk, run["type"], source=run["id"], stored=run.get("payload"), about=run.get("about")
    )


async def _store(
    desk: WorkDesk, type: str, *, source: str, stored: Any = None, about: str | None = None
) -> Response:
    visit = desk.visit
    body: dict[str, Any] = {"type": type}
    try:
        payload = read_payload(visit, payload_schema(desk.handlers.get(type)))
        if source and (not desk.rules.show_payloads or not _has_payload(visit)):
            payload = stored  # the form had none to change
        body["payload"] = desk.restore_secrets(payload, stored) if source else payload
        body |= _options(visit)
    except Abort as error:
        return await _again(desk, type, source, {}, error.details)
    if about:
        body["about"] = about
    action = "run.resubmit" if source else "run.submit"
    adapter = desk.parts.work.engine.store.adapter
    async with visit.panel.trail.writing(visit, adapter, action, model=WorkflowRun.__name__) as entry:
        entry.reason = f"{type} {source}".strip()
        answer = await desk.ask("run.submit", json=body)
        if not answer.ok:
            raise NothingStored(answer)
        entry.record_id = answer.data["id"]
    if answer.status in (400, 409, 422):
        details = answer.details or [{"field": "", "message": answer.message}]
        return await _again(desk, type, source, desk.mask(body.get("payload")), details)
    if not answer.ok:
        raise Refusal(answer.response)
    return visit.redirect(f"{ROOT}/runs/{answer.data['id']}", ok=visit.t("ops_done_submit"))


def _has_payload(visit: Visit) -> bool:
    return visit.form is not None and any(name == "payload" or name.startswith("f.") for name in visit.form)


def _options(visit: Visit) -> dict[str, Any]:
    """Priority, time and key, as far as they were given."""
    options: dict[str, Any] = {}
    if text := visit.form_text("priority").strip():
        amount = read_number(text.removeprefix("-"))
        if amount is None:
            raise _refuse("priority", visit.t("ops_whole_number"))
        options["priority"] = -amount if text.startswith("-") else amount
    if text := visit.form_text("run_at").strip():
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise _refuse("run_at", visit.t("ops_no_time")) from None
        instant = moment if moment.tzinfo is not None else moment.replace(tzinfo=visit.zone)
        options["run_at"] = instant.isoformat()
    if key := visit.form_text("idempotency_key").strip():
        options["idempotency_key"] = key
    return options


def _refuse(field: str, message: str) -> Abort:
    return Abort(422, "VALIDATION_FAILED", message, [{"field": field, "message": message, "code": "invalid"}])


async def _again(desk: WorkDesk, type: str, source: str, payload: Any, details: Any) -> Response:
    errors: dict[str, list[str]] = {}
    for one in details or ():
        errors.setdefault(str(one.get("field", "")), []).append(str(one.get("message", "")))
    return await _form(desk, type, payload=payload, source=source, errors=errors)


async def _form(
    desk: WorkDesk, type: str, *, payload: Any, source: str, errors: Errors | None = None
) -> Response:
    visit, problems = desk.visit, errors or {}
    schema = payload_schema(desk.handlers.get(type))
    is_form = schema is not None and isinstance(payload, dict) and not visit.form_text("payload").strip()
    fields = payload_fields(schema, payload, problems) if schema is not None and is_form else []
    shown_places = {m for field in fields for m in field.errors}
    root = visit.url("-", "operations", "runs")
    form_payload = visit.form_text("payload")
    view = RunFormView(
        title=visit.t("ops_resubmit") if source else visit.t("ops_submit"),
        action=f"{root}/{source}/resubmit" if source else root,
        choose_url=f"{root}/new",
        cancel_url=f"{root}/{source}" if source else root,
        type=type,
        types=desk.types_to_submit,
        is_resubmit=bool(source),
        fields=fields,
        payload=form_payload or desk.whole_json_of(payload),
        payload_errors=[
            f"{place.removeprefix('payload.')}: {message}" if "." in place else message
            for place, messages in problems.items()
            for message in messages
            if place.startswith("payload") and message not in shown_places
        ],
        shows_payload=desk.rules.show_payloads or not source,
        priority=visit.form_text("priority"),
        run_at=visit.form_text("run_at"),
        key=visit.form_text("idempotency_key"),
        errors={place: m for place, m in problems.items() if not place.startswith("payload")},
        zone=visit.zone.key,
    )
    status = 422 if problems else 200
    return await show_page(desk, "run_form.html", view, tab="ops_runs", title=view.title, status=status)


ROUTES = (
    PanelRoute("GET", f"{ROOT}/runs/new", acting(show_submission), writes=True),
    act(f"{ROOT}/runs", acting(submit_run)),
    act(f"{ROOT}/runs/{{id}}/resubmit", acting(resubmit_run)),
)
