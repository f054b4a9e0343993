"""Actions on one record: those of the API below its path, and those the application offers to the panel."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from maniflex.admin.audit import NothingStored
from maniflex.admin.call import Refusal
from maniflex.admin.declare import AdminAction, Message, Redirect
from maniflex.admin.names import title_of
from maniflex.admin.person import AdminContext
from maniflex.admin.reading import ask_record
from maniflex.admin.route import PanelRoute, act
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit
from maniflex.errors import NotFound
from maniflex.features.actions import Action
from maniflex.pipeline.response import Response

Errors = Mapping[str, Sequence[str]]  # messages by control; without one, of the form as a whole
AskAgain = Callable[[Visit, Errors, int], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionButton:
    """A button on the page of a record."""

    label: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionField:
    """A control of an action's form."""

    name: str
    label: str
    kind: str  # text, number, bool or choice
    text: str
    required: bool
    options: Sequence[str] = ()
    errors: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """What `action.html` is given."""

    label: str
    confirm: str
    action: str
    cancel_url: str
    fields: Sequence[ActionField]
    controls: Sequence[tuple[str, str]] = ()
    error: str = ""


async def record_actions(visit: Visit, site: ModelSite, record_id: str) -> list[ActionButton]:
    """What can be done with a record besides changing it."""
    if not site.can_write:
        return []
    own = [
        ActionButton(label=one.label, url=visit.url(site.table, record_id, "action", one.name))
        for one in site.actions
        if one.on == "record" and await visit.api.may(site, one.operation)
    ]
    if not site.admin.actions:
        return own
    return own + [
        ActionButton(label=title_of(name), url=visit.url(site.table, record_id, "action", name))
        for name in api_actions(visit, site)
    ]


def api_actions(visit: Visit, site: ModelSite) -> dict[str, Action]:
    """The actions of the API at `/{table}/{id}/name`, by that name."""
    start = f"/{site.table}/{{"
    actions = {}
    for action in visit.panel.api_actions:
        place = action.path.removeprefix(start).partition("}/")
        if (
            action.method == "POST"
            and action.path.startswith(start)
            and place[2]
            and "/" not in place[2] + place[0]
        ):
            actions[place[2]] = action
    return actions


async def _find(visit: Visit, site: ModelSite) -> AdminAction | Action:
    """The action of this name, for somebody who may do it; one of the API is asked for that itself."""
    name = visit.params["name"]
    own = next((one for one in site.actions if one.name == name and one.on == "record"), None)
    if own is not None and not await visit.api.may(site, own.operation):
        raise NotFound(visit.t("no_such_page"))
    action = own or (api_actions(visit, site).get(name) if site.admin.actions else None)
    if action is None or not site.can_write:
        raise NotFound(visit.t("no_such_page"))
    return action


async def show_action(visit: Visit, errors: Errors | None = None, status: int = 200) -> Response:
    """The form of an action, or the question whether it is meant."""
    site, record_id = visit.site(), visit.params["id"]
    action = await _find(visit, site)
    record = (await ask_record(visit, site, record_id)).data
    is_own = isinstance(action, AdminAction)
    label = action.label if isinstance(action, AdminAction) else title_of(visit.params["name"])
    confirm = action.confirm if isinstance(action, AdminAction) else action.summary
    view = ActionView(
        label=label,
        confirm=(confirm or visit.t("action_confirm", name=label)).replace("{count}", "1"),
        action=visit.url(site.table, record_id, "action", visit.params["name"]),
        cancel_url=visit.url(site.table, record_id),
        fields=action_fields(visit, action.form if is_own else action.request, errors or {}),  # type: ignore[union-attr]
        error="; ".join((errors or {}).get("", ())),
    )
    crumbs = [(site.plural, visit.url(site.table)), (site.label_of(record), visit.url(site.table, record_id))]
    return await visit.page("action.html", view, title=label, crumbs=crumbs, status=status)


def action_fields(visit: Visit, form: Any, errors: Errors) -> list[ActionField]:
    """The controls of the type that an action takes, as far as they are plain values."""
    if form is None:
        return []
    schema = TypeAdapter(form).json_schema()
    required_names = set(schema.get("required", ()))
    is_sent = visit.form is not None and any(name.startswith("f.") for name in visit.form)
    fields = []
    for name, part in schema.get("properties", {}).items():
        kinds = [part, *part.get("anyOf", ())]
        kind = next((str(one["type"]) for one in kinds if one.get("type") not in (None, "null")), "string")
        options = next((one["enum"] for one in kinds if "enum" in one), ())
        default = part.get("default")
        fields.append(
            ActionField(
                name=name,
                label=title_of(name),
                kind="choice"
                if options
                else {"boolean": "bool", "integer": "number", "number": "number"}.get(kind, "text"),
                text=visit.form_text(f"f.{name}") if is_sent else "" if default is None else str(default),
                required=name in required_names,
                options=[str(one) for one in options],
                errors=errors.get(name, ()),
            )
        )
    return fields


def read_action_form(visit: Visit, form: Any) -> Any:
    """What was typed, by the names of the type's fields; texts that are empty were not given."""
    if form is None:
        return None
    values: dict[str, Any] = {}
    for field in action_fields(visit, form, {}):
        text = visit.form_text(f"f.{field.name}")
        if field.kind == "bool":
            values[field.name] = bool(text)
        elif text:
            values[field.name] = text
    return values


async def run_action(visit: Visit) -> Response:
    """Do it, as this person."""
    site, record_id = visit.site(), visit.params["id"]
    action = await _find(visit, site)
    await ask_record(visit, site, record_id)
    if isinstance(action, AdminAction):
        then = visit.url(site.table, record_id).removeprefix(visit.root)
        return await run_own_action(visit, site, action, [record_id], then, show_action)
    path = action.path.replace(
        action.path[action.path.index("{") : action.path.index("}") + 1], quote(record_id, safe="")
    )
    values = read_action_form(visit, action.request)
    adapter = visit.panel.adapter_of(site.meta)
    async with visit.panel.trail.writing(
        visit, adapter, "action", model=site.meta.name, record_id=record_id
    ) as entry:
        entry.reason = visit.params["name"]
        answer = await visit.api.ask("POST", visit.panel.runtime.config.path_prefix + path, json=values or {})
        if not answer.ok:
            raise NothingStored(answer)
    if answer.status in (400, 422):
        errors: dict[str, list[str]] = {}
        for detail in answer.details:
            errors.setdefault(str(detail.get("field", "")), []).append(str(detail.get("message", "")))
        return await show_action(visit, errors or {"": [answer.message]}, answer.status)
    if not answer.ok:
        raise Refusal(answer.response)
    record_path = visit.url(site.table, record_id).removeprefix(visit.root)
    return visit.redirect(record_path, ok=visit.t("action_done", name=title_of(visit.params["name"])))


class InvalidForm(Exception):
    """What was typed is not of the type that an action takes; messages by control."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__(str(error))
        self.errors: dict[str, list[str]] = {}
        for one in error.errors():
            self.errors.setdefault(".".join(map(str, one["loc"])), []).append(str(one["msg"]))


def check_action_form(visit: Visit, action: AdminAction) -> Any:
    """What was typed, as the type that the action takes."""
    if action.form is None:
        return None
    try:
        return TypeAdapter(action.form).validate_python(read_action_form(visit, action.form))
    except ValidationError as error:
        raise InvalidForm(error) from None


async def call_action(action: AdminAction, context: AdminContext, ids: Sequence[str]) -> Any:
    """Call the function of the application."""
    outcome: Any = action.handler(context, list(ids))
    return await outcome if inspect.isawaitable(outcome) else outcome


async def run_own_action(
    visit: Visit, site: ModelSite, action: AdminAction, ids: Sequence[str], then: str, ask_again: AskAgain
) -> Response:
    """Call the application's function with a context that acts as this person."""
    try:
        form = check_action_form(visit, action)
    except InvalidForm as error:
        return await ask_again(visit, error.errors, 422)
    async with visit.panel.trail.writing(
        visit, visit.panel.adapter_of(site.meta), "action", model=site.meta.name
    ) as entry:
        entry.record_id = ids[0] if len(ids) == 1 else ""
        entry.reason = f"{action.name} ({len(ids)})"
        outcome = await call_action(action, visit.admin_context(form), ids)
    if isinstance(outcome, Redirect):
        return visit.redirect(visit.safe_next(outcome.path))
    text = (
        outcome.text
        if isinstance(outcome, Message)
        else str(outcome or visit.t("action_done", name=action.label))
    )
    if isinstance(outcome, Message) and outcome.level != "ok":
        return visit.redirect(then, warning=text)
    return visit.redirect(then, ok=text)


ROUTES = (
    PanelRoute("GET", "/{model}/{id}/action/{name}", show_action, writes=True),
    act("/{model}/{id}/action/{name}", run_action),
)
