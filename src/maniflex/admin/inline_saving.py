"""Rows of a form → requests for removed, changed and new records, in the transaction of their parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from maniflex.admin.call import ApiAnswer
from maniflex.admin.cells import as_text
from maniflex.admin.conflict import conflicts_of
from maniflex.admin.controls import FormInput, input_name, key_at, words_beside
from maniflex.admin.form_fields import initial_values, read_form, setting_of, text_of
from maniflex.admin.inline_changes import InlineChange, InlineStep, InlineTable
from maniflex.admin.inlines import inline_tables, read_row_values, row_indexes
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit
from maniflex.model.meta import Kind


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
    fields = [f for f in table.fields if is_new or f.api in (base_values or {}) or f.writeonly]
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
    """Whether nobody touched an empty row."""
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
