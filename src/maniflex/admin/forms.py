"""Forms to create and to change records."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex.admin.form_fields import (
    form_fields,
    initial_values,
    is_never_shown,
    make_control,
    part_names,
)
from maniflex.admin.inlines import InlineView, inline_views, link_controls
from maniflex.admin.lists import ask_record
from maniflex.admin.search import label_controls, pickers_of
from maniflex.admin.site import ModelSite, title_of
from maniflex.admin.visit import Visit, show
from maniflex.admin.widgets import Control, FormInput, note_files
from maniflex.errors import Forbidden, NotFound
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSection:
    """Controls under a title."""

    title: str
    controls: Sequence[Control]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormView:
    """What `form.html` is given."""

    title: str
    singular: str
    action: str
    cancel_url: str
    sections: Sequence[FormSection]
    base_values: str  # the values the form was made of
    etag: str
    key: str  # a form that is sent twice acts once
    is_new: bool
    problems: Sequence[tuple[str, str]]  # controls and messages; without a control, of the form as a whole
    has_files: bool
    inlines: Sequence[InlineView]
    from_version: str


async def show_new(visit: Visit) -> Response:
    """An empty form."""
    site = visit.site()
    if not site.can_create:
        raise NotFound(visit.t("no_such_page"))
    if not await visit.api.may(site, Operation.CREATE):
        raise Forbidden()
    return await render_form(visit, site, None)


async def show_form(visit: Visit, site: ModelSite, record_id: str = "") -> Response:
    """The form of a record, or of the one record of a singleton."""
    if not site.can_edit and not site.is_singleton:
        raise NotFound(visit.t("no_such_page"))
    answer = await ask_record(visit, site, record_id)
    return await render_form(visit, site, answer.data, etag=answer.etag)


async def render_form(
    visit: Visit,
    site: ModelSite,
    record: Mapping[str, Any] | None,
    *,
    etag: str = "",
    form_input: FormInput | None = None,
    problems: Sequence[tuple[str, str]] = (),
    status: int = 200,
    version_values: Mapping[str, Any] | None = None,
) -> Response:
    """The form with what is stored, or with what was typed and is wrong with it."""
    is_new = record is None
    values: Mapping[str, Any] = initial_values(site) if record is None else record
    fields = form_fields(site, record) if record is not None else await _fields_to_fill(visit, site)
    kept_names = frozenset() if is_new else await visit.api.stamped_fields(site, Operation.UPDATE)
    prefill = {key[2:]: value for key, value in visit.query if key.startswith("f.")} if is_new else {}
    form_values = {**values, **(version_values or {})}
    await note_files(visit, fields, [form_values])
    pickers = await pickers_of(visit, site.parents.values())
    controls = [
        make_control(
            visit,
            site,
            field_meta,
            form_values,
            is_new=is_new,
            form_input=form_input,
            prefill=prefill,
            fixed=field_meta.name in kept_names,
            pickers=pickers,
        )
        for field_meta in fields
    ]
    controls = await label_controls(visit, controls)
    controls += await link_controls(visit, site, record, form_input)
    record_id = "" if record is None else str(record.get("id", ""))
    label = visit.t("new_record", name=site.title) if record is None else site.label_of(record)
    here = visit.url(site.table) if is_new or site.is_singleton else visit.url(site.table, record_id)
    base_text = (
        visit.form_text("_seen")
        if form_input is not None
        else json.dumps(_base_values([f for f in fields if f.name not in kept_names], values))
    )
    view = FormView(
        title=label,
        singular=site.title,
        action=visit.url(site.table) if is_new else visit.url(site.table, record_id or "-"),
        cancel_url=here,
        sections=_sections(visit, site, controls),
        base_values=base_text,
        etag=visit.form_text("_etag") if form_input is not None else etag,
        key=visit.form_text("_key") or secrets.token_urlsafe(16),
        is_new=is_new,
        problems=problems or _problems(form_input, fields),
        has_files=any("file" in field_meta.extra for field_meta in fields),
        inlines=await inline_views(visit, site, record, form_input),
        from_version=visit.param("version"),
    )
    crumbs = [] if site.is_singleton else [(site.plural, visit.url(site.table))]
    crumbs += [] if is_new or site.is_singleton else [(label, here)]
    return await visit.page("form.html", view, title=label, status=status, crumbs=crumbs)


async def _fields_to_fill(visit: Visit, site: ModelSite) -> list[FieldMeta]:
    """The fields of an empty form, without those that scope rules fill for this person."""
    names = await visit.api.stamped_fields(site)
    return [field_meta for field_meta in form_fields(site, None) if field_meta.name not in names]


def _base_values(fields: Sequence[FieldMeta], values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        field_meta.api: values.get(field_meta.api) for field_meta in fields if not is_never_shown(field_meta)
    }


def _problems(form_input: FormInput | None, fields: Sequence[FieldMeta]) -> list[tuple[str, str]]:
    if form_input is None:
        return []
    names = {field_meta.api for field_meta in fields} | set(form_input.links)
    names |= {name for field_meta in fields for name in part_names(field_meta)}
    return [
        (_anchor(name, names), f"{_spell(name)}: {message}" if name else message)
        for name, messages in form_input.errors.items()
        for message in messages
    ]


def _anchor(name: str, names: Collection[str]) -> str:
    """The control that an error is about; empty for one of the form as a whole."""
    return name if name in names or name.startswith("inline.") else ""


def _spell(name: str) -> str:
    """What an error calls its control: a row's by the path that the API would name."""
    if not name.startswith("inline."):
        return title_of(name)
    _, relation, index, *field = name.split(".", 3)
    return ".".join([f"{relation}[{index}]", *field])


def _sections(visit: Visit, site: ModelSite, controls: Sequence[Control]) -> list[FormSection]:
    if not site.admin.form:
        return [FormSection(title="", controls=controls)]
    by_name = {control.name: control for control in controls}
    sections = []
    for section in site.admin.form:
        names = [field_meta.api if (field_meta := site.meta.field(name)) else name for name in section.fields]
        own = [by_name.pop(name) for name in names if name in by_name]
        sections.append(FormSection(title=section.title, controls=own))
    links = [control for control in by_name.values() if control.kind == "links"]
    return [*sections, FormSection(title=visit.t("relations"), controls=links)] if links else sections


ROUTES = (show("/{model}/new", show_new),)
