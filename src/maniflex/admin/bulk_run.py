"""Acting on many records: first a look at what would happen, then each record as a request of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode

from maniflex.admin.action_forms import Errors, action_controls
from maniflex.admin.api_actions import ActionView, run_own_action
from maniflex.admin.batches import change_one
from maniflex.admin.bulk import bulk_choices
from maniflex.admin.bulk_batches import record_change
from maniflex.admin.bulk_large import answer_large_action, begin_large
from maniflex.admin.bulk_value import BulkValue, ask_value, hidden_value, read_value, spell_value
from maniflex.admin.declare import AdminAction
from maniflex.admin.deletes import MOST_COUNTED, Consequence, consequences_of
from maniflex.admin.list_query import api_query, read_list_query
from maniflex.admin.search import read_labels
from maniflex.admin.site import ModelSite, title_of
from maniflex.admin.visit import Visit, act
from maniflex.errors import Abort, NotFound
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

MOST_AT_ONCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRecord:
    """A record that cannot be changed, and why."""

    id: str
    message: str
    label: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkView:
    """What `bulk.html` is given."""

    title: str
    action: str
    cancel_url: str
    question: str
    ready: int
    refusals: Sequence[RefusedRecord]
    controls: Sequence[tuple[str, str]]
    is_done: bool
    is_delete: bool
    consequences: Sequence[Consequence]  # of a delete: what it does to other records
    must_type: str  # the number that has to be typed first, when much would go
    error: str


async def run_bulk(visit: Visit) -> Response:
    """Show what would happen; when that was confirmed, do it."""
    site = visit.site()
    trash = dict(parse_qsl(visit.form_text("query"))).get("trash") == "1"
    action_value = visit.form_text("action")
    label = await _require_choice(visit, site, action_value, trash=trash)
    if action_value == "export":
        return _export_chosen(visit, site)
    own = next((one for one in site.actions if f"action:{one.name}" == action_value), None)
    if own is not None:
        return await _run_own(visit, site, own, trash=trash)
    value = await read_value(visit, site) if action_value == "set" else None
    changes: Mapping[str, Any] | None = {} if value is None else value.changes
    if value is not None and changes is None:
        return await _ask_value(visit, site, value, trash=trash)
    assert changes is not None
    if _means_all(visit):
        answer = await begin_large(visit, site, action_value, changes, trash=trash)
        if answer is not None:
            return answer
    ids = await _read_ids(visit, site, trash=trash)
    consequences, must_type = await _weigh_delete(visit, site, ids) if action_value == "delete" else ((), "")
    is_typed = not must_type or visit.form_text("typed").strip() == must_type
    is_done = bool(visit.form_text("confirm")) and is_typed
    ready, refusals = await _apply(visit, site, action_value, ids, changes, is_done)
    if is_done and not refusals:
        key = "bulk_done_one" if ready == 1 else "bulk_done"
        return visit.redirect(_list_path(visit, site), ok=visit.t(key, count=ready))
    question = visit.t("bulk_question", name=label)
    if value is not None:
        shown = await spell_value(visit, site, value.field, changes.get(value.field.api))
        question = visit.t("bulk_set_question", field=title_of(value.field.api), value=shown)
    view = BulkView(
        title=f"{label}: {site.plural}",
        action=visit.url(site.table, "bulk"),
        cancel_url=visit.root + _list_path(visit, site),
        question=question,
        ready=ready,
        refusals=await _name_records(visit, site, refusals, trash=trash),
        controls=_controls(action_value, ids, visit) + (hidden_value(visit, value) if value else []),
        is_done=is_done,
        is_delete=action_value == "delete",
        consequences=consequences,
        must_type=must_type,
        error="" if is_typed or not visit.form_text("confirm") else visit.t("type_the_count"),
    )
    return await _show_look(visit, site, view)


def _list_path(visit: Visit, site: ModelSite) -> str:
    """The list that the records were chosen from, inside the panel."""
    query = urlencode(parse_qsl(visit.form_text("query")))
    return f"/{site.table}" + (f"?{query}" if query else "")


async def _ask_value(visit: Visit, site: ModelSite, value: BulkValue, *, trash: bool) -> Response:
    """Ask for the value to set, with the records in mind that were chosen."""
    if _means_all(visit):
        records, ids = await _read_all(visit, site, trash=trash), []
    else:
        ids = await _read_ids(visit, site, trash=trash)
        page = PageRequest(len(ids), deleted=trash, filters=(("id", "in", ids),))
        records = (await visit.api.page(site, (), page)).data
    controls = [("action", "set"), ("query", visit.form_text("query")), *(("ids", one) for one in ids)]
    controls += [] if ids else [("all", "1")]
    cancel_url = visit.root + _list_path(visit, site)
    return await ask_value(visit, site, value, records, controls, cancel_url)


async def _name_records(
    visit: Visit, site: ModelSite, refusals: Sequence[RefusedRecord], *, trash: bool
) -> list[RefusedRecord]:
    """The refused records with their labels and pages, as far as this person may list them."""
    ids = [one.id for one in refusals]
    labels = await read_labels(visit, {site.meta.name: ids}, deleted=trash) if ids else {}
    return [
        replace(one, label=label, url=visit.url(site.table, one.id))
        if (label := labels.get((site.meta.name, one.id), ""))
        else one
        for one in refusals
    ]


async def _show_look(visit: Visit, site: ModelSite, view: BulkView) -> Response:
    crumbs = [(site.plural, view.cancel_url)]
    status = 422 if view.error else 200
    return await visit.page("bulk.html", view, title=view.title, crumbs=crumbs, status=status)


async def _require_choice(visit: Visit, site: ModelSite, action_value: str, *, trash: bool) -> str:
    """The label of what is to be done; 404 for what this person is not offered."""
    choices = {choice.value: choice.label for choice in await bulk_choices(visit, site, trash=trash)}
    for action in site.actions:
        if action.on == "model" and site.can_write and await visit.api.may(site, action.operation):
            choices[f"action:{action.name}"] = action.label
    if action_value not in choices:
        raise NotFound(visit.t("no_such_page"))
    return choices[action_value]


async def _run_own(visit: Visit, site: ModelSite, own: AdminAction, *, trash: bool) -> Response:
    """Ask whether an action of the application is meant, with its form if it has one; then run it."""
    if own.on == "records" and _means_all(visit):
        answer = await answer_large_action(visit, site, own)
        if answer is not None:
            return answer
    ids = [] if own.on == "model" else await _read_ids(visit, site, trash=trash)
    if ids:
        await _require_all(visit, site, ids, trash=trash)
    if visit.form_text("confirm"):
        ask_again = partial(_show_own_form, site, own, ids)
        return await run_own_action(visit, site, own, ids, f"/{site.table}", ask_again)
    if own.form is not None:
        return await _show_own_form(site, own, ids, visit)
    question = own.confirm or visit.t("bulk_question", name=own.label)
    view = BulkView(
        title=f"{own.label}: {site.plural}",
        action=visit.url(site.table, "bulk"),
        cancel_url=visit.url(site.table),
        question=question.replace("{count}", str(len(ids))),
        ready=len(ids),
        refusals=(),
        controls=_controls(f"action:{own.name}", ids, visit),
        is_done=False,
        is_delete=False,
        consequences=(),
        must_type="",
        error="",
    )
    return await _show_look(visit, site, view)


def _export_chosen(visit: Visit, site: ModelSite) -> Response:
    """Lead to the file of the chosen records, or of all that match; it changes nothing."""
    pairs = [
        pair for pair in parse_qsl(visit.form_text("query")) if pair[0] not in ("page", "after", "before")
    ]
    if not _means_all(visit):
        ids = list(dict.fromkeys(visit.form_texts("ids")))
        if not ids:
            raise Abort(422, "VALIDATION_FAILED", visit.t("nothing_chosen"))
        if len(ids) > MOST_AT_ONCE:
            raise Abort(422, "VALIDATION_FAILED", visit.t("bulk_too_many", most=MOST_AT_ONCE))
        pairs = [("f_id~in", ",".join(ids)), *(pair for pair in pairs if pair[0] in ("columns", "sort"))]
    return visit.redirect(f"/{site.table}/export?{urlencode([*pairs, ('format', 'csv')])}")


async def _weigh_delete(
    visit: Visit, site: ModelSite, ids: Sequence[str]
) -> tuple[Sequence[Consequence], str]:
    """What goes with the chosen records, and what has to be typed when that is much."""
    consequences, cascade_count = await consequences_of(visit, site, ids)
    return consequences, str(len(ids)) if len(ids) + cascade_count > MOST_COUNTED else ""


async def _show_own_form(
    site: ModelSite,
    action: AdminAction,
    ids: Sequence[str],
    visit: Visit,
    errors: Errors | None = None,
    status: int = 200,
) -> Response:
    """The form of an action on many records, which it keeps."""
    view = ActionView(
        label=action.label,
        confirm=(action.confirm or visit.t("action_confirm", name=action.label)).replace(
            "{count}", str(len(ids))
        ),
        action=visit.url(site.table, "bulk"),
        cancel_url=visit.url(site.table),
        fields=await action_controls(visit, action.form, errors or {}),
        controls=_controls(f"action:{action.name}", ids, visit),
        error="; ".join((errors or {}).get("", ())),
    )
    crumbs = [(site.plural, view.cancel_url)]
    return await visit.page("action.html", view, title=action.label, crumbs=crumbs, status=status)


def _controls(action_value: str, ids: Sequence[str], visit: Visit) -> list[tuple[str, str]]:
    controls = [("action", action_value), ("query", visit.form_text("query")), ("confirm", "1")]
    return controls + [("ids", one) for one in ids]


def _means_all(visit: Visit) -> bool:
    """Whether all records are meant that match; what was confirmed names those it was shown for."""
    is_confirmed = visit.form_text("confirm") and visit.form_texts("ids")
    return bool(visit.form_text("all")) and not is_confirmed


async def _read_ids(visit: Visit, site: ModelSite, *, trash: bool) -> list[str]:
    """The ids that were chosen, or those of all records that match."""
    if not _means_all(visit):
        ids = list(dict.fromkeys(visit.form_texts("ids")))
    else:
        records = await _read_all(visit, site, trash=trash)
        if records is None:
            raise Abort(422, "VALIDATION_FAILED", visit.t("bulk_too_many", most=MOST_AT_ONCE))
        ids = [str(record["id"]) for record in records]
    if not ids:
        raise Abort(422, "VALIDATION_FAILED", visit.t("nothing_chosen"))
    if len(ids) > MOST_AT_ONCE:
        raise Abort(422, "VALIDATION_FAILED", visit.t("bulk_too_many", most=MOST_AT_ONCE))
    return ids


async def _read_all(visit: Visit, site: ModelSite, *, trash: bool) -> list[Mapping[str, Any]] | None:
    """All records that match; None when a request changes not so many."""
    query = read_list_query(parse_qsl(visit.form_text("query")))
    api_pairs = api_query(site, query, visit.zone, visit.panel.runtime.clock.now())
    page = PageRequest(MOST_AT_ONCE, deleted=trash, keyset=not (query.q and site.is_searchable))
    records = (await visit.api.page(site, api_pairs, page)).data
    return None if page.more else list(records)


async def _require_all(visit: Visit, site: ModelSite, ids: Sequence[str], *, trash: bool) -> None:
    """Refuse ids that this person cannot list: an action of the application is given no others."""
    page = PageRequest(len(ids), deleted=trash, filters=(("id", "in", list(ids)),))
    records = (await visit.api.page(site, (), page)).data
    if {str(record["id"]) for record in records} != set(ids):
        raise NotFound(visit.t("no_such_record"))


async def _apply(
    visit: Visit, site: ModelSite, action: str, ids: Sequence[str], changes: Mapping[str, Any], is_done: bool
) -> tuple[int, list[RefusedRecord]]:
    """Change each record, or only find out whether it can be: how many can, and those that cannot."""
    change = record_change(visit.panel, visit.api, site, action, changes)
    refusals = []
    for record_id in ids:
        answer = await change_one(visit, change, record_id, is_kept=is_done)
        if not answer.ok:
            texts = [str(detail.get("message", "")) for detail in answer.details] or [answer.message]
            message = visit.t("no_such_record") if answer.status == 404 else "; ".join(texts)
            refusals.append(RefusedRecord(id=record_id, message=message))
    return len(ids) - len(refusals), refusals


ROUTES = (act("/{model}/bulk", run_bulk),)
