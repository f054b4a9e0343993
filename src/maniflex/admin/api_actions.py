"""Actions on one record: those of the API below its path, and those the application offers to the panel."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from maniflex.admin.action_forms import (
    Errors,
    InvalidForm,
    action_controls,
    check_action_form,
    read_action_form,
)
from maniflex.admin.audit import NothingStored
from maniflex.admin.call import Refusal
from maniflex.admin.declare import AdminAction, Message, Redirect
from maniflex.admin.person import AdminContext
from maniflex.admin.reading import ask_record
from maniflex.admin.site import ModelSite, title_of
from maniflex.admin.visit import PanelRoute, Visit, act
from maniflex.admin.widgets import Control, words_beside
from maniflex.errors import NotFound
from maniflex.features.actions import Action
from maniflex.pipeline.response import Response

AskAgain = Callable[[Visit, Errors, int], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionButton:
    """A button on the page of a record."""

    label: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """What `action.html` is given."""

    label: str
    confirm: str
    action: str
    cancel_url: str
    fields: Sequence[Control]
    controls: Sequence[tuple[str, str]] = ()  # that are not shown
    error: str = ""
    submit: str = ""  # what the button says instead of the label


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
    label = action.label if isinstance(action, AdminAction) else title_of(visit.params["name"])
    confirm = action.confirm if isinstance(action, AdminAction) else action.summary
    view = ActionView(
        label=label,
        confirm=(confirm or visit.t("action_confirm", name=label)).replace("{count}", "1"),
        action=visit.url(site.table, record_id, "action", visit.params["name"]),
        cancel_url=visit.url(site.table, record_id),
        fields=await action_controls(
            visit, action.form if isinstance(action, AdminAction) else action.request, errors or {}
        ),
        error="; ".join((errors or {}).get("", ())),
    )
    crumbs = [(site.plural, visit.url(site.table)), (site.label_of(record), visit.url(site.table, record_id))]
    return await visit.page("action.html", view, title=label, crumbs=crumbs, status=status)


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
    try:
        values = read_action_form(visit, action.request)
    except InvalidForm as error:
        return await show_action(visit, error.errors, 422)
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
            name, message = str(detail.get("field", "")), str(detail.get("message", ""))
            place = name.partition(".")[0]  # the control of what is inside it
            errors.setdefault(place, []).append(words_beside(name, message))
        return await show_action(visit, errors or {"": [answer.message]}, answer.status)
    if not answer.ok:
        raise Refusal(answer.response)
    record_path = visit.url(site.table, record_id).removeprefix(visit.root)
    return visit.redirect(record_path, ok=visit.t("action_done", name=title_of(visit.params["name"])))


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
