"""Submitting a run: a new one of a type, or one as another was, with an edited payload."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from maniflex.admin.list_query import read_number
from maniflex.admin.operations.commands import write
from maniflex.admin.operations.desk import (
    ROOT,
    SECRET_NAMES,
    WorkDesk,
    acting,
    is_secret,
    read_json,
    show_page,
)
from maniflex.admin.operations.run_page import find_run
from maniflex.admin.site import title_of
from maniflex.admin.visit import PanelRoute, Refusal, Visit, act
from maniflex.background.commands import RUN
from maniflex.background.runs.handlers import RunHandler
from maniflex.encryption.sealed_json import is_left_shut, leaving_shut
from maniflex.errors import Abort, Conflict
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
    with leaving_shut():
        run = await find_run(desk, source)
    return await _form(desk, run["type"], payload=desk.mask(run.get("payload")), source=source)


async def submit_run(visit: Visit, desk: WorkDesk) -> Response:
    """Store a new run."""
    return await _store(desk, visit.form_text("type").strip(), source="")


async def resubmit_run(visit: Visit, desk: WorkDesk) -> Response:
    """Store a run as another one was, with what was changed in the form."""
    run = await find_run(desk, visit.params["id"])
    handler = desk.handlers.get(run["type"])
    if (handler is None or handler.encrypted is None) and await _is_sealed(desk, run["id"]):
        raise Conflict("the run is encrypted, which its handler, here, does not say; submit it where it does")
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
    reason = f"{type} {source}".strip()
    answer = await write(desk, RUN, "run.submit", event=action, reason=reason, json=body)
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


async def _is_sealed(desk: WorkDesk, run_id: str) -> bool:
    """Whether the payload of a run is stored encrypted, and so no form shows it."""
    with leaving_shut():
        return is_left_shut((await find_run(desk, run_id)).get("payload"))


async def _again(desk: WorkDesk, type: str, source: str, payload: Any, details: Any) -> Response:
    errors: dict[str, list[str]] = {}
    for one in details or ():
        errors.setdefault(str(one.get("field", "")), []).append(str(one.get("message", "")))
    return await _form(desk, type, payload=payload, source=source, errors=errors)


async def _form(
    desk: WorkDesk, type: str, *, payload: Any, source: str, errors: Errors | None = None
) -> Response:
    visit, problems = desk.visit, errors or {}
    hides = bool(source) and (not desk.rules.show_payloads or await _is_sealed(desk, source))
    if hides:
        payload = None
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
        shows_payload=not hides,
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


# The payload of a run as a form, from the type its handler declares; parts that are no plain value are
# JSON.
#
# `payload_fields` makes the controls, `read_payload` reads them back. A handler without a type, or with
# one that is no object, has one control: the whole payload as JSON.


_KINDS = {"boolean": "bool", "integer": "number", "number": "number", "string": "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadField:
    """One control."""

    name: str
    label: str
    kind: str  # text, number, bool, choice or json
    text: str
    required: bool
    options: Sequence[str] = ()
    help: str = ""
    errors: Sequence[str] = ()


def payload_schema(handler: RunHandler | None) -> Mapping[str, Any] | None:
    """The properties that a handler takes; None when its payload is not an object with names."""
    if handler is None or handler.payload is None:
        return None
    try:
        schema = handler.payload.adapter.json_schema()
    except Exception:  # a type that pydantic can read and cannot describe
        return None
    if "$ref" in schema:
        schema = {
            **schema.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}),
            "$defs": schema["$defs"],
        }
    return schema if schema.get("type") == "object" and schema.get("properties") else None


def payload_fields(
    schema: Mapping[str, Any], values: Mapping[str, Any], errors: Mapping[str, Sequence[str]]
) -> list[PayloadField]:
    """The controls, filled with what is there."""
    fields = []
    for name, part in schema["properties"].items():
        kind, options = _kind_of(part, schema)
        default = None if is_secret(name, SECRET_NAMES) else part.get("default")
        value = values.get(name, default)
        messages = [m for place, texts in errors.items() if _is_below(place, name) for m in texts]
        fields.append(
            PayloadField(
                name=name,
                label=title_of(name),
                kind=kind,
                text=_text_of(kind, value),
                required=name in schema.get("required", ()),
                options=options,
                help=str(part.get("description", "")),
                errors=messages,
            )
        )
    return fields


def _is_below(place: str, name: str) -> bool:
    return place == f"payload.{name}" or place.startswith((f"payload.{name}.", f"payload.{name}["))


def _kind_of(part: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[str, list[str]]:
    variants = [_resolve(one, schema) for one in (part, *part.get("anyOf", ()), *part.get("allOf", ()))]
    for one in variants:
        if "enum" in one and all(isinstance(value, str) for value in one["enum"]):
            return "choice", list(one["enum"])
    types = {one["type"] for one in variants if isinstance(one.get("type"), str)} - {"null"}
    return _KINDS.get(types.pop(), "json") if len(types) == 1 else "json", []


def _resolve(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in part:
        return part
    target: Mapping[str, Any] = schema.get("$defs", {}).get(part["$ref"].rpartition("/")[2], {})
    return target


def _text_of(kind: str, value: Any) -> str:
    if value is None:
        return ""
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_payload(visit: Visit, schema: Mapping[str, Any] | None) -> Any:
    """What was sent: the whole as JSON, or by the names of the fields."""
    if schema is None or visit.form_text("payload").strip():
        value = read_json(visit, visit.form_text("payload"))
        return {} if value is None else value
    values: dict[str, Any] = {}
    for field in payload_fields(schema, {}, {}):
        text = visit.form_text(f"f.{field.name}")
        if field.kind == "bool":
            values[field.name] = bool(text)
        elif text:
            values[field.name] = _value_of(visit, field.kind, text)
    return values


def _value_of(visit: Visit, kind: str, text: str) -> Any:
    if kind == "json":
        return read_json(visit, text)
    if kind != "number":
        return text
    try:
        number = json.loads(text)
    except ValueError:
        return text
    return number if isinstance(number, int | float) else text
