"""Acting on many records: a look at what would happen, a value to set, and how it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from pydantic import TypeAdapter

from maniflex.admin.actions import (
    ActionView,
    AskAgain,
    Errors,
    InvalidForm,
    action_controls,
    call_action,
    check_action_form,
    read_action_form,
    run_own_action,
)
from maniflex.admin.bulk import bulk_choices, settable_fields
from maniflex.admin.declare import AdminAction
from maniflex.admin.form_fields import make_control, read_form
from maniflex.admin.list_query import api_query, read_list_query
from maniflex.admin.people import AdminContext
from maniflex.admin.records import MOST_UNASKED, Consequence, consequences_of
from maniflex.admin.search import label_controls, pickers_of, read_labels
from maniflex.admin.site import ModelSite, title_of
from maniflex.admin.tables import AdminTransfer
from maniflex.admin.transfers.batches import BatchChange, change_one
from maniflex.admin.transfers.store import PastVisitor, Stopped, api_of, require_permission, start_phase
from maniflex.admin.visit import MOST_COUNTED, Api, ApiAnswer, Visit, act
from maniflex.admin.widgets import Control, FormInput, as_text, input_name, key_at
from maniflex.errors import Abort, NotFound
from maniflex.model.meta import FieldMeta, Kind
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest
from maniflex.transfer.batches import BATCH

if TYPE_CHECKING:
    from maniflex.admin.panel import PanelParts


_OPERATIONS = {"set": Operation.UPDATE, "restore": Operation.UPDATE, "delete": Operation.DELETE}
_EVENTS = {"set": "update"}  # others are called as they are


def operation_of(site: ModelSite, action: str) -> Operation | None:
    """What the API calls it; None for an action that there is not any more."""
    own = next((one for one in site.actions if f"action:{one.name}" == action), None)
    return own.operation if own is not None else _OPERATIONS.get(action)


@dataclass(kw_only=True)
class RecordChange(BatchChange):
    """A change of the records that a list shows."""

    api: Api
    site: ModelSite
    action: str
    changes: Mapping[str, Any]
    query: Sequence[tuple[str, str]] = ()
    trash: bool = False

    async def page(self, page: PageRequest) -> Sequence[Mapping[str, Any]]:
        page.deleted = self.trash
        records: Sequence[Mapping[str, Any]] = (await self.api.page(self.site, self.query, page)).data
        return records

    async def ask(self, record_id: str) -> ApiAnswer:
        path = self.api.path(self.site, record_id)
        if self.action == "delete":
            return await self.api.ask("DELETE", path)
        if self.action == "restore":
            return await self.api.ask("POST", f"{path}/restore")
        return await self.api.ask("PATCH", path, json=dict(self.changes))


def record_change(
    panel: PanelParts, api: Api, site: ModelSite, action: str, changes: Mapping[str, Any], **options: Any
) -> RecordChange:
    """The change of this name, as this person."""
    options_of_event = {"event": _EVENTS.get(action, action), "reason": "bulk", **options}
    return RecordChange(
        model=site.meta.name,
        adapter=panel.adapter_of(site.meta),
        fields=list(changes),
        api=api,
        site=site,
        action=action,
        changes=changes,
        **options_of_event,
    )


async def resume_record_change(
    panel: PanelParts, transfer: AdminTransfer, site: ModelSite, visitor: PastVisitor
) -> RecordChange:
    """The change of a transfer, as its person reaches the records now; `Stopped` when it may not any more."""
    settings, api = transfer.settings, api_of(panel, visitor)
    action: str = settings["action"]
    operation = operation_of(site, action)
    if operation is None:
        raise Stopped(f"{site.plural}: there is no {action} any more")
    await require_permission(api, site, operation)
    query = [(str(name), str(value)) for name, value in settings["query"] if name != "sort"]
    options: dict[str, Any] = {"query": query, "trash": settings["trash"]}
    own = next((one for one in site.actions if f"action:{one.name}" == action), None)
    if own is not None:
        form = settings.get("form")
        if own.form is not None:
            form = TypeAdapter(own.form).validate_python(form)
        context = AdminContext(visitor.person, api, visitor.ctx, form)
        options |= {"event": "action", "reason": own.name, "call": partial(call_action, own, context)}
    return record_change(panel, api, site, action, settings["changes"], **options)


# Setting a field of many records: the page that asks for the value, and the value that was typed.


PLACE = "set"  # the controls are `set.<field>`, here and on the page that asks whether it is meant
_MOST_RADIOS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkValue:
    """The field to set, and what was typed for it so far."""

    field: FieldMeta
    form_input: FormInput
    is_typed: bool

    @property
    def changes(self) -> Mapping[str, Any] | None:
        """What each record is sent; None while a value is missing or cannot be read."""
        return self.form_input.values if self.is_typed and not self.form_input.errors else None


async def read_value(visit: Visit, site: ModelSite) -> BulkValue:
    """The field that was chosen, and its value if that was typed; 404 for a field that cannot be set."""
    fields = {f.api: f for f in await settable_fields(visit, site)}
    typed_names = [name[len(PLACE) + 1 :] for name in visit.form if name.startswith(f"{PLACE}.")]
    name = typed_names[0] if typed_names else visit.form_text("field")
    if name not in fields or len(typed_names) > 1:
        raise NotFound(visit.t("no_such_page"))
    is_typed = bool(typed_names) or bool(visit.form_text(f"null.{key_at(PLACE, name)}"))
    form_input = FormInput()
    if is_typed:
        form_input = read_form(visit, site, [fields[name]], None, is_new=False, place=PLACE)
    elif visit.form_text("asked"):
        form_input.errors[key_at(PLACE, name)] = [visit.t("required")]
    return BulkValue(field=fields[name], form_input=form_input, is_typed=is_typed)


def hidden_value(visit: Visit, value: BulkValue) -> list[tuple[str, str]]:
    """What was typed, as controls that a page keeps without showing them."""
    key = key_at(PLACE, value.field.api)
    controls = [(input_name(PLACE, value.field.api), visit.form_text(input_name(PLACE, value.field.api)))]
    return controls + [
        (name, visit.form_text(name)) for name in (f"null.{key}", f"fold.{key}") if visit.form_text(name)
    ]


async def spell_value(visit: Visit, site: ModelSite, field: FieldMeta, value: Any) -> str:
    """The value as a person reads it: a record by its label."""
    relation = site.parents.get(field.name)
    if relation is not None and isinstance(value, str):
        labels = await read_labels(visit, {relation.target: [value]})
        return labels.get((relation.target, value), value)
    if field.kind is Kind.BOOL and value is not None:
        return visit.t("yes" if value else "no")
    return as_text(value) or '""'


async def ask_value(
    visit: Visit,
    site: ModelSite,
    value: BulkValue,
    records: Sequence[Mapping[str, Any]] | None,
    controls: Sequence[tuple[str, str]],
    cancel_url: str,
) -> Response:
    """The page that asks for the value; `records` are those that are meant, None where they are too many."""
    label = visit.t("bulk_set_title", field=title_of(value.field.api), name=site.plural)
    view = ActionView(
        label=label,
        confirm="" if records is None else visit.t("bulk_set_count", count=len(records)),
        submit=visit.t("go_on"),
        action=visit.url(site.table, "bulk"),
        cancel_url=cancel_url,
        fields=[await _control_of(visit, site, value, records)],
        controls=[*controls, ("field", value.field.api), ("asked", "1")],
    )
    status = 422 if value.form_input.errors else 200
    crumbs = [(site.plural, cancel_url)]
    return await visit.page("action.html", view, title=label, crumbs=crumbs, status=status)


async def _control_of(
    visit: Visit, site: ModelSite, value: BulkValue, records: Sequence[Mapping[str, Any]] | None
) -> Control:
    field, relation = value.field, site.parents.get(value.field.name)
    control = make_control(
        visit,
        site,
        field,
        {},
        is_new=False,
        form_input=value.form_input if value.is_typed or value.form_input.errors else None,
        place=PLACE,
        pickers=await pickers_of(visit, [relation] if relation is not None else []),
    )
    if field.enum is not None:
        members = _states_to_offer(site, field, records)
        if not any(member is not None for member in members) and not (field.nullable and None in members):
            raise Abort(422, "VALIDATION_FAILED", visit.t("no_state_follows", field=title_of(field.api)))
        options = [(str(member), str(member)) for member in members if member is not None]
        kind = "radio" if len(options) <= _MOST_RADIOS else "choice"
        control = replace(control, kind=kind, options=options, can_be_empty=None in members)
    elif field.kind is Kind.BOOL:  # a switch could not say that nothing was chosen yet
        options = [("true", visit.t("yes")), ("false", visit.t("no"))]
        text = control.text if value.is_typed else ""
        control = replace(control, kind="radio", options=options, text=text, can_be_empty=field.nullable)
    [control_with_label] = await label_controls(visit, [control])
    return control_with_label


def _states_to_offer(
    site: ModelSite, field: FieldMeta, records: Sequence[Mapping[str, Any]] | None
) -> list[Any]:
    """The members of an enum; of a state machine those that can follow for one of the records."""
    members = [*(field.enum or ()), *([None] if field.nullable else [])]
    rules = site.state_rules.get(field.name)
    if rules is None:
        return members
    sources = members if records is None else [one.get(field.api) for one in records]
    following = {state for source in dict.fromkeys(sources) for state in rules.following(source)}
    return [member for member in members if member in following]


# More records than a request changes while a browser waits: a durable run.
#
# A change begins with a dry run. An action of the application has none, because nobody knows what it does:
# it is asked for once and then called with one batch of ids after the other.


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


# Acting on many records: first a look at what would happen, then each record as a request of its
# own.


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
        text = await spell_value(visit, site, value.field, changes.get(value.field.api))
        question = visit.t("bulk_set_question", field=title_of(value.field.api), value=text)
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
    return consequences, str(len(ids)) if len(ids) + cascade_count > MOST_UNASKED else ""


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
