"""More records than a request changes while a browser waits: a durable run.

A change begins with a dry run. An action of the application has none, because nobody knows what it does: it
is asked for once and then called with one batch of ids after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from maniflex.admin.action_forms import (
    Errors,
    InvalidForm,
    action_controls,
    check_action_form,
    read_action_form,
)
from maniflex.admin.api_actions import ActionView, AskAgain
from maniflex.admin.call import MOST_COUNTED
from maniflex.admin.declare import AdminAction
from maniflex.admin.list_query import api_query, read_list_query
from maniflex.admin.site import ModelSite
from maniflex.admin.transfers import start_phase
from maniflex.admin.visit import Visit
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest
from maniflex.transfer.batches import BATCH

Pairs = Sequence[tuple[str, str]]


async def begin_large(
    visit: Visit, site: ModelSite, action: str, changes: Mapping[str, Any], *, trash: bool
) -> Response | None:
    """Begin to change all records that match; None when they are few."""
    pairs = await _large_query(visit, site, trash=trash)
    if pairs is None:
        return None
    # A delete of so many is always looked at first: its number has to be typed.
    is_confirmed = bool(visit.form_text("confirm")) and action != "delete"
    phase = "apply" if is_confirmed else "check"
    return await _begin(visit, site, pairs, phase, action=action, changes=dict(changes), trash=trash)


async def answer_large_action(visit: Visit, site: ModelSite, action: AdminAction) -> Response | None:
    """Ask whether an action on all records that match is meant, then begin it; None when they are few."""
    pairs = await _large_query(visit, site, trash=False)
    if pairs is None:
        return None
    ask: AskAgain = partial(_ask, site, action, pairs)
    if not visit.form_text("confirm"):
        return await ask(visit, {}, 200)
    try:
        check_action_form(visit, action)
    except InvalidForm as error:
        return await ask(visit, error.errors, 422)
    values = read_action_form(visit, action.form)
    settings = {"action": f"action:{action.name}", "changes": {}, "trash": False, "form": values}
    return await _begin(visit, site, pairs, "apply", **settings)


async def _large_query(visit: Visit, site: ModelSite, *, trash: bool) -> list[tuple[str, str]] | None:
    """The list that the form names, as the API is asked for it; None when a request changes all of it.

    Records that are not walked by their place are not changed in batches: some would be met twice.
    """
    if not site.is_walked:
        return None
    query = read_list_query(parse_qsl(visit.form_text("query")))
    api_pairs = api_query(site, query, visit.zone, visit.panel.runtime.clock.now())
    pairs = [pair for pair in api_pairs if pair[0] != "sort"]
    page = PageRequest(BATCH, deleted=trash, oldest_first=True)
    records = (await visit.api.page(site, pairs, page)).data
    return pairs if page.more and records else None


async def _begin(visit: Visit, site: ModelSite, pairs: Pairs, phase: str, **settings: Any) -> Response:
    transfer = await visit.panel.transfers.add(
        visit.signed_in,
        "bulk",
        site.meta.name,
        address=visit.ctx.client_ip,
        request_id=visit.ctx.request_id,
        settings={**settings, "query": [list(pair) for pair in pairs]},
    )
    await start_phase(visit, transfer, phase)
    return visit.redirect(f"/-/transfers/{transfer.id}")


async def _ask(
    site: ModelSite, action: AdminAction, pairs: Pairs, visit: Visit, errors: Errors, status: int
) -> Response:
    """The form of an action on all records that match, or the question whether it is meant."""
    count = await visit.api.count(site, pairs)
    text = visit.t("all_matching") if count is None else f"{min(count, MOST_COUNTED):,}"
    text += "+" if count is not None and count > MOST_COUNTED else ""
    view = ActionView(
        label=action.label,
        confirm=(action.confirm or visit.t("action_confirm", name=action.label)).replace("{count}", text),
        action=visit.url(site.table, "bulk"),
        cancel_url=visit.url(site.table),
        fields=await action_controls(visit, action.form, errors),
        controls=[
            ("action", f"action:{action.name}"),
            ("query", visit.form_text("query")),
            ("all", "1"),
            ("confirm", "1"),
        ],
        error="; ".join(errors.get("", ())),
    )
    crumbs = [(site.plural, view.cancel_url)]
    return await visit.page("action.html", view, title=action.label, crumbs=crumbs, status=status)
