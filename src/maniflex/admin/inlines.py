"""Rows of a form: records that belong to the one that is edited, and links that carry fields of their own.

A row's controls are called `inline.<relation>.<index>.<field>`. What the form shows of rows is made here;
what was typed into them is read and stored by `inline_saving`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from maniflex.admin.controls import Control, FormInput
from maniflex.admin.declare import Inline, ModelAdmin, name_of
from maniflex.admin.form_fields import form_fields, initial_values, make_control
from maniflex.admin.inline_changes import InlineTable
from maniflex.admin.json_text import read_json_text
from maniflex.admin.lists import read_page
from maniflex.admin.names import title_of
from maniflex.admin.pickers import label_controls, pickers_of
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import Visit
from maniflex.db.backed_store import why_apart
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind, RelationMeta
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.steps.browse import PageRequest

_MOST_FIELDS = 6
_MOST_ROWS = 200
_OWN_FIELDS = frozenset(("id", "created_at", "updated_at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineRow:
    """One row: a record, or an empty one to be filled in."""

    place: str
    id: str
    label: str
    base_values: str
    controls: Sequence[Control]
    errors: Sequence[str]
    can_delete: bool
    is_deleted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineView:
    """The rows of one relation."""

    name: str
    label: str
    singular: str
    columns: Sequence[str]
    rows: Sequence[InlineRow]
    can_add: bool
    rest_url: str  # the list of all of them, where there are more than the form shows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rights:
    create: bool
    update: bool
    delete: bool


def inline_relation(meta: ModelMeta, inline: Inline) -> RelationMeta | None:
    """The relation that holds the records of an `Inline`."""
    relations = (r for r in meta.relations.values() if r.kind is RelationKind.HAS_MANY and r.key)
    return next((r for r in relations if r.target == name_of(inline.model)), None)


def inline_problems(admin: ModelAdmin, meta: ModelMeta, models: Mapping[str, ModelMeta]) -> Iterator[str]:
    """The mistakes in the inlines of a `ModelAdmin`."""
    for inline in admin.inlines:
        name, where = name_of(inline.model), f"ModelAdmin({meta.name}): inlines"
        child, relation = models.get(name), inline_relation(meta, inline)
        if child is None or relation is None:
            yield f"{where}: {meta.name} has no has_many relation to {name!r}"
            continue
        if why := why_apart(meta, child):
            yield f"{where}: {why}, so one save could not store both"
        if not 1 <= inline.max_rows <= _MOST_ROWS:
            yield f"{where}: max_rows of {name} is a number from 1 to {_MOST_ROWS}"
        for column in inline.columns:
            field = child.field(column)
            if field is None:
                yield f"{where}: {name} has no field {column!r}"
            elif field.hidden or field.encrypted is not None or "file" in field.extra:
                yield f"{where}: {column!r} of {name} has no place in a row"


def junction_fields(junction: ModelSite, relation: RelationMeta) -> list[FieldMeta]:
    """What a link holds besides the two records it joins."""
    keys = (relation.key, relation.far_key)
    return [f for f in form_fields(junction, None) if f.name not in keys and "file" not in f.extra]


def inline_tables(visit: Visit, site: ModelSite) -> list[InlineTable]:
    """The rows that a form of this model has, in the order of their declaration."""
    sites, tables = visit.panel.sites.with_routes, []
    for inline in site.admin.inlines:
        relation = inline_relation(site.meta, inline)
        child = None if relation is None else sites.get(relation.target)
        if relation is None or child is None:
            continue
        key = child.meta.by_name[relation.key or ""]
        fields = _inline_fields(child, key, inline.columns)
        tables.append(
            InlineTable(name=relation.name, child=child, key=key, fields=fields, max_rows=inline.max_rows)
        )
    for relation in site.links:
        junction = sites.get(relation.through or "")
        if junction is None or not relation.far_key or not (own := junction_fields(junction, relation)):
            continue
        far, key = (junction.meta.by_name[name or ""] for name in (relation.far_key, relation.key))
        tables.append(
            InlineTable(name=relation.name, child=junction, key=key, fields=[far, *own], max_rows=_MOST_ROWS)
        )
    return tables


def _inline_fields(child: ModelSite, key: FieldMeta, columns: Sequence[str]) -> list[FieldMeta]:
    if columns:
        fields = [f for f in map(child.meta.field, columns) if f is not None]
        return [f for f in fields if f is not key]
    fields = [f for f in form_fields(child, None) if f is not key and "file" not in f.extra]
    usual = [f for f in fields if f.kind is not Kind.JSON and not f.writeonly][:_MOST_FIELDS]
    return [f for f in fields if f in usual or f.required]


async def inline_views(
    visit: Visit, site: ModelSite, record: Mapping[str, Any] | None, form_input: FormInput | None
) -> list[InlineView]:
    """The rows of a form: what is stored, or what was typed and is wrong with it."""
    views = []
    for table in inline_tables(visit, site):
        if not await visit.api.may(table.child, Operation.LIST):
            continue
        rights = await _rights(visit, table.child)
        table = replace(
            table,
            pickers=await pickers_of(visit, table.child.parents.values()),
            stamped=await visit.api.stamped_fields(table.child),
            kept=await visit.api.stamped_fields(table.child, Operation.UPDATE),
        )
        rest_url = ""
        if form_input is not None:
            rows = [
                _typed_row(visit, table, index, rights, form_input) for index in row_indexes(visit, table)
            ]
        else:
            rows, rest_url = await _stored_rows(visit, table, record, rights)
        last = max((int(row.place.rpartition(".")[2]) for row in rows), default=-1)
        if rights.create:
            rows.append(_row(visit, table, last + 1, initial_values(table.child), rights, is_new=True))
        rows = [replace(row, controls=await label_controls(visit, row.controls)) for row in rows]
        views.append(
            InlineView(
                name=table.name,
                label=title_of(table.name),
                singular=table.child.title,
                columns=[title_of(f.api) for f in table.fields],
                rows=rows,
                can_add=rights.create,
                rest_url=rest_url,
            )
        )
    return views


async def _rights(visit: Visit, child: ModelSite) -> _Rights:
    return _Rights(
        create=child.can_create and await visit.api.may(child, Operation.CREATE),
        update=child.can_edit and await visit.api.may(child, Operation.UPDATE),
        delete=child.can_delete and await visit.api.may(child, Operation.DELETE),
    )


async def _stored_rows(
    visit: Visit, table: InlineTable, record: Mapping[str, Any] | None, rights: _Rights
) -> tuple[list[InlineRow], str]:
    if record is None:
        return [], ""
    record_id = str(record.get("id", ""))
    page = PageRequest(table.max_rows, filters=((table.key.name, "eq", record_id),), oldest_first=True)
    answer = await read_page(visit, table.child, (), page, table.fields)
    records = answer.data if answer.ok else []
    rows = [_row(visit, table, index, one, rights, is_new=False) for index, one in enumerate(records)]
    rest_url = ""
    if page.more and table.child.meta.name in visit.panel.sites.by_name and table.key.filterable:
        rest_url = visit.url(table.child.table, **{f"f_{table.key.api}": record_id})
    return rows, rest_url


def _row(
    visit: Visit,
    table: InlineTable,
    index: int,
    record: Mapping[str, Any],
    rights: _Rights,
    *,
    is_new: bool,
    form_input: FormInput | None = None,
) -> InlineRow:
    place = table.place(index)
    fields = [f for f in table.fields if is_new or f.api in record or f.writeonly]
    controls = [
        make_control(
            visit,
            table.child,
            f,
            record,
            is_new=is_new,
            form_input=form_input,
            place=place,
            fixed=f.name in table.stamped if is_new else f.name in table.kept or not rights.update,
            pickers=table.pickers,
        )
        for f in fields
    ]
    base_values = {f.api: record.get(f.api) for f in fields if not f.writeonly}
    return InlineRow(
        place=place,
        id="" if is_new else str(record.get("id", "")),
        label=visit.t("new_record", name=table.child.title) if is_new else table.child.label_of(record),
        base_values=json.dumps(base_values),
        controls=controls,
        errors=() if form_input is None else tuple(form_input.errors.get(place, ())),
        can_delete=rights.delete and not is_new,
        is_deleted=bool(form_input is not None and visit.form_text(f"{place}._delete")),
    )


def _typed_row(
    visit: Visit, table: InlineTable, index: int, rights: _Rights, form_input: FormInput
) -> InlineRow:
    """A row as it was sent; of a record that others changed, it goes on from what they left."""
    place = table.place(index)
    record_id = visit.form_text(f"{place}._id")
    base_values = form_input.newest_rows.get(place) or read_row_values(visit, place)
    record = {**base_values, "id": record_id}
    return _row(visit, table, index, record, rights, is_new=not record_id, form_input=form_input)


def row_indexes(visit: Visit, table: InlineTable) -> list[int]:
    """The rows that a form brought, in their order."""
    prefix = f"inline.{table.name}."
    parts = {name[len(prefix) :].partition(".")[0] for name in visit.form if name.startswith(prefix)}
    return sorted(int(part) for part in parts if part.isdecimal() and part.isascii() and len(part) < 5)


def read_row_values(visit: Visit, place: str) -> dict[str, Any]:
    """The values that a row was made of."""
    try:
        values = read_json_text(visit.form_text(f"{place}._seen") or "{}")
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
