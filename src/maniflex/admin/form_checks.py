"""What the API refuses of a form: noted beside its controls, also while others of them cannot be read.

A form that cannot be read is not sent. So that all its mistakes are shown at once, the API checks what could
be read, by its own steps up to the one that writes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from maniflex.admin.call import ApiAnswer, Refusal
from maniflex.admin.controls import FormInput, words_beside
from maniflex.admin.form_fields import form_fields
from maniflex.admin.inline_saving import check_rows
from maniflex.admin.nested import part_names
from maniflex.admin.site import ModelSite
from maniflex.admin.uploads import StoredFiles
from maniflex.admin.visit import Visit


async def check_rest(
    visit: Visit, site: ModelSite, record: Mapping[str, Any] | None, form_input: FormInput
) -> None:
    """Note what the API refuses of the controls that could be read; nothing is written."""
    record_id = "" if record is None else str(record.get("id", ""))
    names = control_names(site, record, form_input)
    skipped_names = {name.partition(".")[0] for name in form_input.errors}
    async for answer in _refusals(visit, site, record_id, form_input):
        require_form(answer)
        for detail in answer.details:
            # What is wrong with the record as a whole may be so for want of what could not be read.
            place = _place_of(str(detail.get("field", "")), names)
            if place and place.partition(".")[0] not in skipped_names:
                _note(form_input, place, detail)
        skipped_names |= form_input.files.keys()  # the values are checked without them
    await check_rows(visit, form_input)


async def _refusals(
    visit: Visit, site: ModelSite, record_id: str, form_input: FormInput
) -> AsyncIterator[ApiAnswer]:
    """What the API refuses of the files, and where it did not get as far as the values, of these."""
    if form_input.files:
        files = StoredFiles(visit, site)
        try:
            refusal = await files.store(form_input, record_id)
        finally:
            await files.give_up()
        if refusal is not None:
            yield refusal
        if refusal is None or refusal.status == 422:
            return
    if form_input.values or not record_id:
        answer = await visit.api.check(site, record_id, form_input.values)
        if not answer.ok:
            yield answer


def require_form(answer: ApiAnswer) -> None:
    """`Refusal` for an answer that no form can mend."""
    if answer.status in (401, 403, 404) or answer.status >= 500:
        raise Refusal(answer.response)


def note_refusal(
    site: ModelSite, record: Mapping[str, Any] | None, form_input: FormInput, answer: ApiAnswer
) -> None:
    """Note the API's own words beside the controls, or above them all."""
    names = control_names(site, record, form_input)
    for detail in answer.details:
        _note(form_input, _place_of(str(detail.get("field", "")), names), detail)
    if not answer.details:
        form_input.errors.setdefault("", []).append(answer.message or answer.code)


def control_names(
    site: ModelSite, record: Mapping[str, Any] | None, form_input: FormInput
) -> Collection[str]:
    """What errors can stand beside: fields, their parts and links."""
    fields = form_fields(site, record)
    parts = {name for field in fields for name in part_names(field)}
    return {field.api for field in fields} | set(form_input.links) | parts


def _place_of(name: str, names: Collection[str]) -> str:
    """The control that a detail is about; empty for the form as a whole."""
    place = name if name in names else name.partition(".")[0].partition("[")[0]
    return place if place in names else ""


def _note(form_input: FormInput, place: str, detail: Mapping[str, Any]) -> None:
    name, message = str(detail.get("field", "")), str(detail.get("message", ""))
    text = words_beside(name, message) if place else f"{name} {message}".strip()
    form_input.errors.setdefault(place, []).append(text)
