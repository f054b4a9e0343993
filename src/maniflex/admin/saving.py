"""Saving forms: only what was changed, all of it or nothing, and never over a change of somebody else."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from maniflex._json import read_back
from maniflex.admin.audit import NothingStored, SentTwice
from maniflex.admin.form_fields import (
    form_fields,
    initial_values,
    is_never_shown,
    is_settable,
    part_names,
    read_form,
    setting_of,
    text_of,
)
from maniflex.admin.inlines import (
    InlineChange,
    InlineStep,
    InlineTable,
    inline_tables,
    read_links,
    read_row_values,
    render_form,
    row_indexes,
    save_links,
)
from maniflex.admin.lists import ask_record
from maniflex.admin.rendering import SECURITY_HEADERS
from maniflex.admin.site import ModelSite, title_of, title_of_part
from maniflex.admin.translations import (
    ask_whole_record,
    keep_siblings,
    note_missing,
    read_added,
    with_translations,
)
from maniflex.admin.visit import ApiAnswer, Refusal, Visit, act
from maniflex.admin.widgets import FormInput, as_text, cell, input_name, is_file_list, key_at, words_beside
from maniflex.db.port import Isolation
from maniflex.errors import Abort, NotFound
from maniflex.model.meta import FieldMeta, Kind
from maniflex.pipeline.response import Response

if TYPE_CHECKING:
    from starlette.datastructures import UploadFile


_MOST_TRIES = 3


async def create(visit: Visit) -> Response:
    """Make a record of what was typed."""
    site = visit.site()
    if not site.can_create:
        raise NotFound(visit.t("no_such_page"))
    fields = with_translations(site, form_fields(site, None), None, visit.form)
    base_values = _read_base_values(visit)
    form_input = read_form(visit, site, fields, base_values, is_new=True)
    read_added(visit, site, base_values, form_input)
    keep_siblings(visit, site, form_input)
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
    record, _ = await ask_whole_record(visit, site, record_id)
    form_input = _read_input(visit, site, record)
    if form_input.errors:
        return await render_form(visit, site, record, form_input=form_input, status=422)
    answer = await files.store(form_input, record_id)
    return None if answer is None else await _show_refusal(visit, site, record, form_input, answer)


def _read_input(visit: Visit, site: ModelSite, record: Mapping[str, Any]) -> FormInput:
    """What was typed into the form of a record."""
    base_values = _read_base_values(visit)
    fields = with_translations(site, form_fields(site, record), record, visit.form)
    fields = [f for f in fields if _was_in_form(visit, f, base_values)]
    form_input = read_form(visit, site, fields, base_values, is_new=False)
    read_added(visit, site, base_values, form_input)
    read_links(visit, site, form_input)
    read_rows(visit, site, form_input)
    return form_input


async def _save_as_new(visit: Visit, site: ModelSite, record_id: str) -> Response:
    """Make a new record of a form that was opened for another."""
    if not site.can_create:
        raise NotFound(visit.t("no_such_page"))
    stamped_names = await visit.api.stamped_fields(site)
    fields = [f for f in form_fields(site, None) if f.name not in stamped_names]
    fields = with_translations(site, fields, None, visit.form)
    form_input = read_form(visit, site, fields, None, is_new=True)
    read_added(visit, site, {}, form_input)
    read_links(visit, site, form_input)
    read_rows(visit, site, form_input, is_copy=True)
    if form_input.errors:
        record, _ = await ask_whole_record(visit, site, record_id)
        return await render_form(visit, site, record, form_input=form_input, status=422)
    try:
        answer, new_id = await _store_new(visit, site, form_input)
    except SentTwice as twice:
        return await _go_to_first(visit, site, twice)
    if answer is not None:
        record, _ = await ask_whole_record(visit, site, record_id)
        return await _show_refusal(visit, site, record, form_input, answer)
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
        record, etag = await ask_whole_record(visit, site, record_id)
        form_input = _read_input(visit, site, record)
        files.name_in(form_input)
        entry.record_id = str(record.get("id", record_id))
        entry.fields = _changed_names(form_input)
        answer = await _save_typed(visit, site, record, etag, form_input)
        answer = await save_links(visit, site, entry.record_id, form_input) or answer
        refused_rows = await save_rows(visit, entry.record_id, form_input) if _is_fine(answer) else None
        if refused_rows is not None or not _is_fine(answer):
            raise NothingStored(refused_rows or answer)
    refusal = entry.refusal
    if refusal is None:
        return _go_on(visit, site, record_id, visit.t("saved"))
    if isinstance(refusal, Response):
        return refusal
    if not is_last and _is_passing(refusal):
        return None
    return await _show_refusal(visit, site, record, form_input, refusal)


def _is_fine(answer: ApiAnswer | None) -> bool:
    """Whether nothing was refused; None: there was nothing to send."""
    return answer is None or answer.ok


async def _save_typed(
    visit: Visit, site: ModelSite, record: dict[str, Any], etag: str, form_input: FormInput
) -> ApiAnswer | None:
    """Send what was changed; a page instead where there is nothing to send or something to choose."""
    base_values = _read_base_values(visit)
    if form_input.errors:
        raise NothingStored(await render_form(visit, site, record, form_input=form_input, status=422))
    has_etag = bool(site.meta.options.optimistic_lock)
    is_old = has_etag and visit.form_text("_etag") not in ("", etag)
    newest = _read_json(visit, "_newest") if visit.form_text("_newest") else base_values
    note_missing(site, record, base_values, newest, dict(form_input.values))
    if is_old or conflicts_of(newest, record, form_input.values):
        page = await show_conflict(
            visit, site, record, base_values, form_input.values, etag, form_input.files
        )
        raise NothingStored(page)
    record_id = str(record.get("id", ""))
    if not form_input.values:
        if not form_input.links and not form_input.rows:
            raise NothingStored(_go_on(visit, site, record_id, visit.t("nothing_changed")))
        return None
    path = visit.api.path(site) if site.is_singleton else visit.api.path(site, record_id)
    headers = {"if-match": etag} if has_etag else {}
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
    fields = form_fields(site, record)
    field_meta = {field.api for field in [*fields, *with_translations(site, fields, record, visit.form)]}
    field_meta |= {*form_input.links, *(name for field in fields for name in part_names(field))}
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
        base_values = read_back(visit.form_text(name) or "{}")
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


# Two people change one record: who saves second sees both changes and chooses, field by field.


_OWN_CONTROLS = ("_csrf", "_newest", "_etag")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldConflict:
    """A field that one of the two changed."""

    name: str
    label: str
    base: str
    theirs: str
    yours: str
    take_yours: bool  # which of the two is chosen at first
    is_choice: bool  # both changed it


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictView:
    """What `conflict.html` is given."""

    label: str
    action: str
    cancel_url: str
    differences: Sequence[FieldConflict]
    controls: Sequence[tuple[str, str]]  # what was typed, to be sent again
    newest: str
    etag: str
    files: Sequence[tuple[str, str, bool]]  # files to choose again: field, label, whether it takes several


def conflicts_of(base: Mapping[str, Any], record: Mapping[str, Any], changes: Mapping[str, Any]) -> list[str]:
    """The fields that both changed, and not to the same."""
    return [
        name
        for name, value in changes.items()
        if name in base and name in record and record[name] != base[name] and record[name] != value
    ]


async def show_conflict(
    visit: Visit,
    site: ModelSite,
    record: Mapping[str, Any],
    base: Mapping[str, Any],
    changes: Mapping[str, Any],
    etag: str,
    file_names: Collection[str] = (),
) -> Response:
    """The page on which the second of two people chooses; what it sends is saved upon the newest version."""
    differences = []
    secrets = {field.api for field in site.meta.fields if field.secret}
    row_secrets = {
        field.api for table in inline_tables(visit, site) for field in table.fields if field.secret
    }
    for name in {**changes, **dict.fromkeys(base)}:
        is_theirs = name in record and name in base and record[name] != base[name]
        # What was typed into a secret field is shown on no page; it has to be typed again.
        if name in secrets or name in file_names or (name not in changes and not is_theirs):
            continue
        theirs = record.get(name)
        differences.append(
            FieldConflict(
                name=name,
                label=title_of_part(name),
                base=as_text(base.get(name)),
                theirs=as_text(theirs),
                yours=as_text(changes[name]) if name in changes else "",
                take_yours=not is_theirs,
                is_choice=name in changes,
            )
        )
    parts = () if site.is_singleton else (str(record.get("id", "")),)
    view = ConflictView(
        label=site.label_of(record),
        action=visit.url(site.table, *(parts or ("-",))),
        cancel_url=visit.url(site.table, *parts),
        differences=differences,
        controls=[
            (name, value)
            for name, value in visit.form.multi_items()
            if isinstance(value, str)
            and name not in _OWN_CONTROLS
            and not name.startswith("take.")
            and name[2:] not in secrets
            and not (name.startswith("inline.") and name.rpartition(".")[2] in row_secrets)
        ],
        newest=json.dumps({name: record.get(name) for name in base}),
        etag=etag,
        files=[(name, title_of(name), is_file_list(site.meta.by_api[name])) for name in file_names],
    )
    return await visit.page("conflict.html", view, title=visit.t("conflict"), status=409)


# Rows of a form → requests for removed, changed and new records, in the transaction of their parent.


@dataclass(frozen=True, slots=True)
class InlineRefusal:
    """Rows were refused; the form says which and why."""

    status: int
    is_passing: bool  # others wrote at the same time, so it may go well the next time


def has_rows(visit: Visit) -> bool:
    """Whether a form brought rows."""
    return any(name.startswith("inline.") for name in visit.form)


def read_rows(visit: Visit, site: ModelSite, form_input: FormInput, *, is_copy: bool = False) -> None:
    """What a form changes in its rows; a copy gets rows of its own."""
    for table in inline_tables(visit, site):
        for index in row_indexes(visit, table):
            change = _read_row(visit, table, index, form_input, is_copy=is_copy)
            if change is not None:
                form_input.rows.append(change)
    form_input.rows.sort(key=lambda change: change.step)


def _read_row(
    visit: Visit, table: InlineTable, index: int, form_input: FormInput, *, is_copy: bool
) -> InlineChange | None:
    place = table.place(index)
    record_id = visit.form_text(f"{place}._id")
    is_removed = bool(visit.form_text(f"{place}._delete"))
    if not record_id and (is_removed or _is_blank(visit, table, place)):
        return None
    if is_removed:
        if is_copy:
            return None
        return InlineChange(
            step=InlineStep.DELETE,
            table=table,
            place=place,
            id=record_id,
            values={},
            base_values=read_row_values(visit, place),
        )
    is_new = is_copy or not record_id
    base_values = (
        None if is_copy else read_row_values(visit, place) if record_id else initial_values(table.child)
    )
    fields = [f for f in table.fields if is_new or f.api in (base_values or {}) or is_never_shown(f)]
    row_input = read_form(visit, table.child, fields, base_values, is_new=is_new, place=place)
    form_input.errors |= row_input.errors
    form_input.folds |= row_input.folds
    if not row_input.values and not is_new:
        return None
    return InlineChange(
        step=InlineStep.CREATE if is_new else InlineStep.UPDATE,
        table=table,
        place=place,
        id=record_id,
        values=row_input.values,
        base_values=base_values or {},
    )


def _is_blank(visit: Visit, table: InlineTable, place: str) -> bool:
    """Whether an empty row of a form came back as it was shown."""
    values = initial_values(table.child)
    for field in table.fields:
        text = visit.form_text(input_name(place, field.api))
        first_text = text_of(field, values.get(field.api), setting_of(visit))
        if field.kind is Kind.BOOL and not field.nullable:
            text, first_text = str(bool(text)), str(first_text == "true")
        if text.strip() and text != first_text:
            return False
    return True


async def save_rows(visit: Visit, record_id: str, form_input: FormInput) -> InlineRefusal | None:
    """Send what changes; errors are noted at their rows, and None means that there were none."""
    refusal = None
    for change in form_input.rows:
        if not change.is_offered:
            text = visit.t("rows_stay", name=change.table.child.plural)
            form_input.errors.setdefault(change.place, []).append(text)
            refusal = InlineRefusal(403, False)
            continue
        answer = await _send(visit, record_id, change, form_input)
        if answer is None:
            continue
        if not isinstance(answer, ApiAnswer):
            refusal = InlineRefusal(409, False)
            continue
        _note_errors(change, answer, form_input)
        is_retryable = bool((answer.response.error or {}).get("retryable"))
        refusal = InlineRefusal(
            422 if answer.status < 500 else answer.status, answer.status == 412 or is_retryable
        )
        if answer.status != 422:  # the transaction may be beyond use
            break
    return refusal


async def _send(
    visit: Visit, record_id: str, change: InlineChange, form_input: FormInput
) -> ApiAnswer | bool | None:
    """Store one row: the refusal if there is one, False where others changed it, None when it is done."""
    child, key = change.table.child, change.table.key.api
    if change.step is InlineStep.CREATE:
        body = {**change.values, key: record_id}
        answer = await visit.api.ask("POST", visit.api.path(child), json=body)
        return None if answer.ok else answer
    path = visit.api.path(child, change.id)
    current = await visit.api.ask("GET", path)
    is_there = current.ok and str(current.data.get(key, record_id)) == record_id
    if change.step is InlineStep.DELETE:
        if is_there and _was_changed(change, current.data):
            form_input.newest_rows[change.place] = dict(current.data)
            text = visit.t("row_changed", value=child.label_of(current.data))
            form_input.errors.setdefault(change.place, []).append(text)
            return False
        answer = await visit.api.ask("DELETE", path) if is_there else current
        return None if answer.ok or answer.status == 404 else answer
    if not is_there:
        form_input.errors.setdefault(change.place, []).append(visit.t("no_such_record"))
        return False
    conflicts = conflicts_of(change.base_values, current.data, change.values)
    if conflicts:
        names = [f.api for f in change.table.fields]
        form_input.newest_rows[change.place] = {name: current.data.get(name) for name in names}
        for name in conflicts:
            text = visit.t("row_conflict", value=as_text(current.data.get(name)))
            form_input.errors.setdefault(key_at(change.place, name), []).append(text)
        return False
    headers = {"if-match": current.etag} if child.meta.options.optimistic_lock else {}
    answer = await visit.api.ask("PATCH", path, json=dict(change.values), headers=headers)
    return None if answer.ok else answer


def _was_changed(change: InlineChange, record: Mapping[str, Any]) -> bool:
    """Whether a row is another one by now than the person saw."""
    return any(name in record and record[name] != value for name, value in change.base_values.items())


def _note_errors(change: InlineChange, answer: ApiAnswer, form_input: FormInput) -> None:
    names = {field.api for field in change.table.fields}
    for detail in answer.details:
        name, message = str(detail.get("field", "")), str(detail.get("message", ""))
        top = name.partition(".")[0].partition("[")[0]
        place = key_at(change.place, top) if top in names else change.place
        text = words_beside(name, message) if top in names else f"{name} {message}".strip()
        form_input.errors.setdefault(place, []).append(text)
    if not answer.details:
        form_input.errors.setdefault(change.place, []).append(answer.message or answer.code)


# Files of a form: sent to the API to be checked and stored, and named by the save that follows.


_CHUNK = 64 * 1024


class StoredFiles:
    """The files that one save brings: stored before its transaction begins, given up unless it is committed.

    So a file and the record, links and rows of the same form are kept together or not at all. A process that
    ends in between leaves files that no record names, which expire.
    """

    def __init__(self, visit: Visit, site: ModelSite) -> None:
        self._visit = visit
        self._site = site
        self._values: dict[str, Any] = {}
        self._keys: Sequence[str] = ()

    async def store(self, form_input: FormInput, record_id: str = "") -> ApiAnswer | None:
        """Let the API check the form and store its files; the refusal if there is one."""
        if not form_input.files:
            return None
        edge = secrets.token_hex(16)
        answer = await self._visit.api.upload(self._site, record_id, _parts(form_input, edge), edge)
        if not answer.ok:
            return answer
        self._values = {name: answer.data["values"][name] for name in form_input.files}
        self._keys = answer.data["keys"]
        return None

    def name_in(self, form_input: FormInput) -> None:
        """Let the values of a form name what was stored."""
        for name in form_input.files:
            if name in self._values:
                form_input.values[name] = self._values[name]

    async def give_up(self) -> None:
        """Remove what was stored, because no record names it."""
        if self._keys:
            keys, self._keys = self._keys, ()
            await self._visit.panel.runtime.file_desk.condemn(keys)


async def _parts(form_input: FormInput, edge: str) -> AsyncIterator[bytes]:
    for name, value in form_input.values.items():
        head = f'--{edge}\r\nContent-Disposition: form-data; name="{_quote_name(name)}"\r\n'
        head += "Content-Type: application/json\r\n\r\n"
        yield head.encode() + json.dumps(value).encode() + b"\r\n"
    for name, uploads in form_input.files.items():
        for upload in uploads:
            yield _file_head(edge, name, upload)
            await upload.seek(0)
            while chunk := await upload.read(_CHUNK):
                yield chunk
            yield b"\r\n"
    yield f"--{edge}--\r\n".encode()


def _file_head(edge: str, name: str, upload: UploadFile) -> bytes:
    file_name = (upload.filename or "file").replace("\\", "/").rpartition("/")[2]
    kind = upload.content_type or "application/octet-stream"
    kind = kind if kind.isprintable() and kind.isascii() else "application/octet-stream"
    plain = _quote_name(file_name)
    disposition = f'form-data; name="{_quote_name(name)}"; filename="{plain}"'
    if not plain.isascii():
        disposition += f"; filename*=UTF-8''{quote(file_name)}"
    return f"--{edge}\r\nContent-Disposition: {disposition}\r\nContent-Type: {kind}\r\n\r\n".encode()


def _quote_name(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ").replace('"', "%22")
