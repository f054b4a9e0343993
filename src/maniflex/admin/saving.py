"""Saving forms: only what was changed, all of it or nothing, and never over a change of somebody else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from maniflex.admin.audit import NothingStored, SentTwice
from maniflex.admin.call import ApiAnswer, Refusal
from maniflex.admin.cells import as_text, cell
from maniflex.admin.conflict import conflicts_of, show_conflict
from maniflex.admin.controls import FormInput, words_beside
from maniflex.admin.form_fields import form_fields, is_settable, read_form
from maniflex.admin.forms import render_form
from maniflex.admin.inline_saving import InlineRefusal, has_rows, read_rows, save_rows
from maniflex.admin.json_text import read_json_text
from maniflex.admin.junctions import read_links, save_links
from maniflex.admin.layout import SECURITY_HEADERS
from maniflex.admin.nested import part_names
from maniflex.admin.reading import ask_record
from maniflex.admin.route import act
from maniflex.admin.site import ModelSite
from maniflex.admin.uploads import StoredFiles
from maniflex.admin.visit import Visit
from maniflex.db.port import Isolation
from maniflex.errors import Abort, NotFound
from maniflex.model.meta import FieldMeta, Kind
from maniflex.pipeline.response import Response

_MOST_TRIES = 3


async def create(visit: Visit) -> Response:
    """Make a record of what was typed."""
    site = visit.site()
    if not site.can_create:
        raise NotFound(visit.t("no_such_page"))
    fields = form_fields(site, None)
    base_values = _read_base_values(visit)
    form_input = read_form(visit, site, fields, base_values, is_new=True)
    read_links(visit, site, form_input)
    read_rows(visit, site, form_input)
    if form_input.errors:
        return await render_form(visit, site, None, form_input=form_input, status=422)
    try:
        answer, record_id = await _store_new(visit, site, form_input)
    except SentTwice as twice:
        return await _go_to_first(visit, site, twice)
    if answer is not None:
        return await _show_refusal(visit, site, None, form_input, answer)
    return _go_on(visit, site, record_id, visit.t("created", name=site.title))


async def _go_to_first(visit: Visit, site: ModelSite, twice: SentTwice) -> Response:
    """Lead to the record that a form made when it was sent before."""
    event = (
        None if twice.record_id else await visit.panel.trail.find_by_form_key(visit.form_text("_key")[:64])
    )
    record_id = twice.record_id or (event.record_id if event is not None else "")
    place = visit.url(site.table, *([record_id] if record_id else [])).removeprefix(visit.root)
    return visit.redirect(place, ok=visit.t("saved_once"))


async def _store_new(
    visit: Visit, site: ModelSite, form_input: FormInput
) -> tuple[ApiAnswer | InlineRefusal | None, str]:
    """Store a new record; the refusal if there is one, and its id."""
    files = StoredFiles(visit, site)
    refusal = await files.store(form_input)
    if refusal is not None:
        return refusal, ""
    files.name_in(form_input)
    try:
        outcome = await _write_new(visit, site, form_input)
    except BaseException:
        await files.give_up()
        raise
    if outcome[0] is not None:
        await files.give_up()
    return outcome


async def _write_new(
    visit: Visit, site: ModelSite, form_input: FormInput
) -> tuple[ApiAnswer | InlineRefusal | None, str]:
    async with visit.panel.trail.writing(
        visit,
        visit.panel.adapter_of(site.meta),
        "create",
        model=site.meta.name,
        form_key=visit.form_text("_key")[:64],
    ) as entry:
        answer = await visit.api.ask("POST", visit.api.path(site), json=form_input.values)
        if not answer.ok:
            raise NothingStored(answer)
        entry.record_id = str(answer.data.get("id", ""))
        entry.fields = _changed_names(form_input)
        refusal = await save_links(visit, site, entry.record_id, form_input)
        refused_rows = None if refusal else await save_rows(visit, entry.record_id, form_input)
        if refusal is not None or refused_rows is not None:
            raise NothingStored(refusal or refused_rows)
    return entry.refusal, entry.record_id


async def save(visit: Visit) -> Response:
    """Change a record by what was typed since its form was opened."""
    site = visit.site()
    if not site.can_edit:
        raise NotFound(visit.t("no_such_page"))
    record_id = "" if site.is_singleton else visit.params["id"]
    if visit.form_text("_then") == "copy":
        return await _save_as_new(visit, site, record_id)
    files = StoredFiles(visit, site)
    if _brings_files(visit):
        refusal = await _store_files(visit, site, record_id, files)
        if refusal is not None:
            return refusal
    try:
        for attempt in range(_MOST_TRIES):
            response = await _try_to_save(visit, site, record_id, files, is_last=attempt == _MOST_TRIES - 1)
            if response is not None:
                return response
        raise Abort(409, "CONFLICT", visit.t("try_again"))
    except SentTwice:
        return _go_on(visit, site, record_id, visit.t("saved_once"))
    finally:
        await files.give_up()  # which leaves those that a record names by now


async def _store_files(visit: Visit, site: ModelSite, record_id: str, files: StoredFiles) -> Response | None:
    """Store the files of a form before the transaction that names them; the form again if refused."""
    current = await ask_record(visit, site, record_id)
    form_input = _read_input(visit, site, current.data)
    if form_input.errors:
        return await render_form(visit, site, current.data, form_input=form_input, status=422)
    answer = await files.store(form_input, record_id)
    return None if answer is None else await _show_refusal(visit, site, current.data, form_input, answer)


def _read_input(visit: Visit, site: ModelSite, record: Mapping[str, Any]) -> FormInput:
    """What was typed into the form of a record."""
    base_values = _read_base_values(visit)
    fields = [f for f in form_fields(site, record) if _was_in_form(visit, f, base_values)]
    form_input = read_form(visit, site, fields, base_values, is_new=False)
    read_links(visit, site, form_input)
    read_rows(visit, site, form_input)
    return form_input


async def _save_as_new(visit: Visit, site: ModelSite, record_id: str) -> Response:
    """Make a new record of a form that was opened for another."""
    if not site.can_create:
        raise NotFound(visit.t("no_such_page"))
    stamped_names = await visit.api.stamped_fields(site)
    fields = [f for f in form_fields(site, None) if f.name not in stamped_names]
    form_input = read_form(visit, site, fields, None, is_new=True)
    read_links(visit, site, form_input)
    read_rows(visit, site, form_input, is_copy=True)
    if form_input.errors:
        current = await ask_record(visit, site, record_id)
        return await render_form(visit, site, current.data, form_input=form_input, status=422)
    try:
        answer, new_id = await _store_new(visit, site, form_input)
    except SentTwice as twice:
        return await _go_to_first(visit, site, twice)
    if answer is not None:
        current = await ask_record(visit, site, record_id)
        return await _show_refusal(visit, site, current.data, form_input, answer)
    return visit.redirect(f"/{site.table}/{new_id}", ok=visit.t("created", name=site.title))


async def _try_to_save(
    visit: Visit, site: ModelSite, record_id: str, files: StoredFiles, *, is_last: bool
) -> Response | None:
    """The answer to a save; None when somebody else wrote at the same time, and it is to be tried again."""
    async with visit.panel.trail.writing(
        visit,
        visit.panel.adapter_of(site.meta),
        "update",
        model=site.meta.name,
        record_id=record_id,
        form_key=visit.form_text("_key")[:64] if has_rows(visit) else "",  # new rows are made once
        isolation=Isolation.REPEATABLE_READ,
    ) as entry:
        current = await ask_record(visit, site, record_id)
        form_input = _read_input(visit, site, current.data)
        files.name_in(form_input)
        entry.record_id = str(current.data.get("id", record_id))
        entry.fields = _changed_names(form_input)
        answer = await _save_typed(visit, site, current, form_input)
        answer = await save_links(visit, site, entry.record_id, form_input) or answer
        refused_rows = await save_rows(visit, entry.record_id, form_input) if answer.ok else None
        if not answer.ok or refused_rows is not None:
            raise NothingStored(refused_rows or answer)
    refusal = entry.refusal
    if refusal is None:
        return _go_on(visit, site, record_id, visit.t("saved"))
    if isinstance(refusal, Response):
        return refusal
    if not is_last and _is_passing(refusal):
        return None
    return await _show_refusal(visit, site, current.data, form_input, refusal)


async def _save_typed(visit: Visit, site: ModelSite, current: ApiAnswer, form_input: FormInput) -> ApiAnswer:
    """Send what was changed; a page instead where there is nothing to send or something to choose."""
    record, base_values = current.data, _read_base_values(visit)
    if form_input.errors:
        raise NothingStored(await render_form(visit, site, record, form_input=form_input, status=422))
    has_etag = bool(site.meta.options.optimistic_lock)
    is_old = has_etag and visit.form_text("_etag") not in ("", current.etag)
    newest = _read_json(visit, "_newest") if visit.form_text("_newest") else base_values
    if is_old or conflicts_of(newest, record, form_input.values):
        page = await show_conflict(
            visit, site, record, base_values, form_input.values, current.etag, form_input.files
        )
        raise NothingStored(page)
    record_id = str(record.get("id", ""))
    if not form_input.values:
        if not form_input.links and not form_input.rows:
            raise NothingStored(_go_on(visit, site, record_id, visit.t("nothing_changed")))
        return current
    path = visit.api.path(site) if site.is_singleton else visit.api.path(site, record_id)
    headers = {"if-match": current.etag} if has_etag else {}
    answer = await visit.api.ask("PATCH", path, json=form_input.values, headers=headers)
    if not answer.ok:
        raise NothingStored(answer)
    return answer


async def _show_refusal(
    visit: Visit,
    site: ModelSite,
    record: Mapping[str, Any] | None,
    form_input: FormInput,
    answer: ApiAnswer | InlineRefusal,
) -> Response:
    """The form again, with the API's own words beside the fields."""
    if isinstance(answer, InlineRefusal):  # which stands at its rows already
        return await render_form(visit, site, record, form_input=form_input, status=answer.status)
    if answer.status in (401, 403, 404) or answer.status >= 500:
        raise Refusal(answer.response)
    field_meta = {field.api for field in form_fields(site, record)} | set(form_input.links)
    field_meta |= {name for field in form_fields(site, record) for name in part_names(field)}
    for detail in answer.details:
        name = str(detail.get("field", ""))
        place = name if name in field_meta else name.partition(".")[0].partition("[")[0]
        form_input.errors.setdefault(place if place in field_meta else "", []).append(
            words_beside(name, str(detail.get("message", "")))
            if place in field_meta
            else f"{name} {detail.get('message', '')}".strip()
        )
    if not answer.details:
        form_input.errors.setdefault("", []).append(answer.message or answer.code)
    return await render_form(visit, site, record, form_input=form_input, status=answer.status)


def _is_passing(refusal: ApiAnswer | InlineRefusal) -> bool:
    """Whether others wrote at the same time, so that it may go well the next time."""
    if isinstance(refusal, InlineRefusal):
        return refusal.is_passing
    return refusal.status == 412 or bool((refusal.response.error or {}).get("retryable"))


def _changed_names(form_input: FormInput) -> list[str]:
    """What a form changes, for the audit."""
    rows = dict.fromkeys(change.table.name for change in form_input.rows)
    return [*form_input.values, *form_input.links, *rows]


async def save_values(
    visit: Visit,
    site: ModelSite,
    record_id: str,
    values: Mapping[str, Any],
    *,
    etag: str = "",
    base_values: Mapping[str, Any] | None = None,
    text: str = "",
) -> Response:
    """Change a record by these values, which no form brought; not over others than `base_values`."""
    async with visit.panel.trail.writing(
        visit,
        visit.panel.adapter_of(site.meta),
        "update",
        model=site.meta.name,
        record_id=record_id,
        isolation=Isolation.REPEATABLE_READ,
    ) as entry:
        entry.fields = list(values)
        if base_values is not None:
            current = await ask_record(visit, site, record_id)
            etag = current.etag
            for name in conflicts_of(base_values, current.data, values):
                raise Abort(409, "CONFLICT", visit.t("row_conflict", value=as_text(current.data[name])))
        headers = {"if-match": etag} if etag and site.meta.options.optimistic_lock else {}
        answer = await visit.api.ask(
            "PATCH", visit.api.path(site, record_id), json=dict(values), headers=headers
        )
        if not answer.ok:
            raise NothingStored(answer)
    if entry.refusal is not None:
        raise Refusal(entry.refusal.response)
    return visit.redirect(visit.url(site.table, record_id).removeprefix(visit.root), ok=text)


async def save_cell(visit: Visit) -> Response:
    """Change one value of a record from its list; answers a script."""
    site, name = visit.site(), visit.params["field"]
    field_meta = site.meta.by_api.get(name)
    is_choice = field_meta is not None and (field_meta.enum or field_meta.kind is Kind.BOOL)
    if field_meta is None or not is_choice or not site.can_edit or not is_settable(site, field_meta):
        raise NotFound(visit.t("no_such_page"))
    text = visit.form_text("value")
    value = _choice_value(field_meta, text)
    try:
        base_values = (
            {name: _choice_value(field_meta, visit.form_text("base"))} if "base" in visit.form else None
        )
        await save_values(visit, site, visit.params["id"], {name: value}, base_values=base_values)
    except (Refusal, Abort) as refusal:
        return _script_answer({"error": str(refusal)})
    new_cell = cell(field_meta, value, visit.zone)
    return _script_answer({"value": text, "text": new_cell.text})


def _choice_value(field_meta: FieldMeta, text: str) -> Any:
    """The value of an enum or a bool that a script names by its text."""
    if field_meta.enum is not None:
        return next((one for one in field_meta.enum if str(one) == text), text)
    return {"true": True, "false": False}.get(text)


def _script_answer(content: Mapping[str, str]) -> Response:
    return Response(
        200, body=json.dumps(content).encode(), content_type="application/json", headers=SECURITY_HEADERS
    )


def _was_in_form(visit: Visit, field_meta: FieldMeta, base_values: Mapping[str, Any]) -> bool:
    """Whether the form had the field: one that was redacted when it was opened may be there now."""
    name = field_meta.api
    return name in base_values or f"f.{name}" in visit.form or f"null.{name}" in visit.form


def _brings_files(visit: Visit) -> bool:
    return any(not isinstance(value, str) and value.filename for _, value in visit.form.multi_items())


def _read_base_values(visit: Visit) -> dict[str, Any]:
    return _read_json(visit, "_seen")


def _read_json(visit: Visit, name: str) -> dict[str, Any]:
    try:
        base_values = read_json_text(visit.form_text(name) or "{}")
    except ValueError:
        base_values = None
    if not isinstance(base_values, dict):
        raise Abort(400, "MULTIPART_ERROR", visit.t("unreadable_form"))
    return base_values


def _go_on(visit: Visit, site: ModelSite, record_id: str, text: str) -> Response:
    """Lead to the record, back to its form, or to an empty one."""
    then = visit.form_text("_then")
    if site.is_singleton:
        return visit.redirect(f"/{site.table}", ok=text)
    if then == "another" and site.can_create:
        return visit.redirect(f"/{site.table}/new", ok=text)
    record = visit.url(site.table, record_id).removeprefix(visit.root)
    return visit.redirect(f"{record}/edit" if then == "stay" else record, ok=text)


ROUTES = (
    act("/{model}", create),
    act("/{model}/{id}", save),
    act("/{model}/{id}/cell/{field}", save_cell),
)
