"""Forms to create and to change records, with rows of records that belong to them.

A row's controls are called `inline.<relation>.<index>.<field>`. What the form shows of rows is made here;
what was typed into them is read and stored by `inline_saving`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from maniflex._json import read_back
from maniflex.admin.declare import Inline, ModelAdmin, name_of
from maniflex.admin.form_fields import (
    form_fields,
    initial_values,
    is_never_shown,
    make_control,
    part_names,
)
from maniflex.admin.lists import read_page
from maniflex.admin.search import Picker, label_controls, pickers_of
from maniflex.admin.site import ModelSite, title_of, title_of_part
from maniflex.admin.translations import (
    ask_whole_record,
    group_translations,
    initial_translations,
    with_translations,
)
from maniflex.admin.visit import ApiAnswer, Visit, show
from maniflex.admin.widgets import Control, FormInput, note_files
from maniflex.db.backed_store import why_apart
from maniflex.errors import Forbidden, NotFound
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind, RelationMeta
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest

# Forms to create and to change records.


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
    record, etag = await ask_whole_record(visit, site, record_id)
    return await render_form(visit, site, record, etag=etag)


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
    values = {**initial_values(site), **initial_translations(site)} if record is None else dict(record)
    fields = form_fields(site, record) if record is not None else await _fields_to_fill(visit, site)
    form_values = {**values, **(version_values or {})}
    fields = with_translations(site, fields, form_values, visit.form)
    kept_names = frozenset() if is_new else await visit.api.stamped_fields(site, Operation.UPDATE)
    await note_files(visit, fields, [form_values])
    controls = await _controls_of_form(
        visit, site, fields, form_values, kept_names, form_input, is_new=is_new
    )
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


async def _controls_of_form(
    visit: Visit,
    site: ModelSite,
    fields: Sequence[FieldMeta],
    values: Mapping[str, Any],
    kept_names: Collection[str],
    form_input: FormInput | None,
    *,
    is_new: bool,
) -> list[Control]:
    """The controls of the fields of a form, with what is stored, prefilled or typed."""
    prefill = {key[2:]: value for key, value in visit.query if key.startswith("f.")} if is_new else {}
    pickers = await pickers_of(visit, site.parents.values())
    controls = [
        make_control(
            visit,
            site,
            field_meta,
            values,
            is_new=is_new,
            form_input=form_input,
            prefill=prefill,
            fixed=field_meta.name in kept_names,
            pickers=pickers,
        )
        for field_meta in fields
    ]
    controls = group_translations(visit, site, fields, controls, form_input, is_new=is_new)
    return await label_controls(visit, controls)


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
        return title_of_part(name)
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


_MOST_FIELDS = 6
_MOST_ROWS = 200


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
    usual = [f for f in fields if f.kind is not Kind.JSON and not is_never_shown(f)][:_MOST_FIELDS]
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
    fields = [f for f in table.fields if is_new or f.api in record or is_never_shown(f)]
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
    base_values = {f.api: record.get(f.api) for f in fields if not is_never_shown(f)}
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
        values = read_back(visit.form_text(f"{place}._seen") or "{}")
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


# Rows of a form that are stored with its record, and what happens to each.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InlineTable:
    """Records of another model that the form of a record shows as rows."""

    name: str  # of the relation
    child: ModelSite
    key: FieldMeta  # holds the id of the record they belong to
    fields: Sequence[FieldMeta]
    max_rows: int
    pickers: Mapping[str, Picker] = field(default_factory=dict)  # of the records that rows refer to
    stamped: frozenset[str] = frozenset()  # fields that a new row gets from scope rules
    kept: frozenset[str] = frozenset()  # fields of rows that are there, which scope rules keep as they are

    def place(self, index: int) -> str:
        """What the names of a row's controls begin with."""
        return f"inline.{self.name}.{index}"


class InlineStep(IntEnum):
    """What happens to a row, in the order in which it does: a removed one makes room for unique values."""

    DELETE = 0
    UPDATE = 1
    CREATE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineChange:
    """A row that is stored, changed or removed."""

    step: InlineStep
    table: InlineTable
    place: str
    id: str
    values: Mapping[str, Any]
    base_values: Mapping[str, Any]

    @property
    def is_offered(self) -> bool:
        """Whether the panel of the row's model lets this be done; the API says what the person may."""
        child = self.table.child
        match self.step:
            case InlineStep.CREATE:
                return child.can_create
            case InlineStep.UPDATE:
                return child.can_edit
            case InlineStep.DELETE:
                return child.can_delete


# Many-to-many relations in forms: ids, kept as records of the junction by its own pipeline.


MOST_LINKS = 200


def _is_editable(visit: Visit, relation: RelationMeta) -> bool:
    sites = visit.panel.sites
    junction = sites.with_routes.get(relation.through or "")
    return bool(
        junction is not None
        and junction.can_create
        and junction.can_delete
        and relation.target in sites.by_name
        and relation.key
        and relation.far_key
        and not junction_fields(junction, relation)  # those are rows of the form
    )


async def _rows(visit: Visit, relation: RelationMeta, record_id: str) -> list[Mapping[str, Any]] | None:
    """The junction's records of one record; None when they may not be listed or are too many for a form."""
    junction = visit.panel.sites.with_routes[relation.through or ""]
    page = PageRequest(MOST_LINKS, filters=((relation.key or "", "eq", record_id),))
    answer = await visit.api.page(junction, (), page)
    return None if not answer.ok or page.more else list(answer.data)


async def link_controls(
    visit: Visit, site: ModelSite, record: Mapping[str, Any] | None, form_input: FormInput | None
) -> list[Control]:
    """A control for each relation through a junction that this person may change."""
    controls = []
    for relation in site.links:
        if not _is_editable(visit, relation):
            continue
        junction = visit.panel.sites.with_routes[relation.through or ""]
        if not await visit.api.may(junction, Operation.CREATE) or not await visit.api.may(
            junction, Operation.LIST
        ):
            continue
        ids: list[str] = []
        first_ids: Collection[str] = ids
        if form_input is not None:
            ids, first_ids = _typed_ids(visit, relation), _base_ids(visit, relation)
        elif record is not None:
            rows = await _rows(visit, relation, str(record.get("id", "")))
            if rows is None:
                continue
            far = junction.meta.by_name[relation.far_key or ""].api
            first_ids = ids = [str(row[far]) for row in rows if far in row]
        picker = (await pickers_of(visit, [relation]))[relation.target]
        controls.append(
            Control(
                kind="links",
                name=relation.name,
                label=title_of(relation.name),
                text="\n".join(ids),
                base_ids=" ".join(sorted(first_ids)),
                help=visit.t("one_id_per_line"),
                errors=() if form_input is None else tuple(form_input.errors.get(relation.name, ())),
                pick_url=picker.pick_url,
                new_url=picker.new_url,
                new_label=picker.new_label,
            )
        )
    return controls


def _typed_ids(visit: Visit, relation: RelationMeta) -> list[str]:
    """The ids of a control: one on each line, or one in each of several controls."""
    texts = visit.form_texts(f"f.{relation.name}")
    return list(dict.fromkeys(one for text in texts for one in text.split()))


def _base_ids(visit: Visit, relation: RelationMeta) -> set[str]:
    """The ids that the form was opened with; a copy begins with none."""
    return (
        set() if visit.form_text("_then") == "copy" else set(visit.form_text(f"seen.{relation.name}").split())
    )


def read_links(visit: Visit, site: ModelSite, form_input: FormInput) -> None:
    """The ids of each relation whose control was changed."""
    for relation in site.links:
        name = f"f.{relation.name}"
        if _is_editable(visit, relation) and name in visit.form:
            ids = _typed_ids(visit, relation)
            if set(ids) != _base_ids(visit, relation):
                form_input.links[relation.name] = ids


async def save_links(
    visit: Visit, site: ModelSite, record_id: str, form_input: FormInput
) -> ApiAnswer | None:
    """Add and remove records of the junctions; the refusal of the first that may not be."""
    for name, ids in form_input.links.items():
        relation = site.meta.relations[name]
        junction = visit.panel.sites.with_routes[relation.through or ""]
        own = junction.meta.by_name[relation.key or ""].api
        far = junction.meta.by_name[relation.far_key or ""].api
        rows = await _rows(visit, relation, record_id) or []
        ids_by_target = {str(row[far]): str(row["id"]) for row in rows}
        before = _base_ids(visit, relation)  # links that somebody else made or removed since then stay so
        for other in (one for one in ids if one not in ids_by_target and one not in before):
            answer = await visit.api.ask("POST", visit.api.path(junction), json={own: record_id, far: other})
            if not answer.ok:
                form_input.errors.setdefault(name, []).append(f"{other}: {answer.message}")
                return answer
        for other in (one for one in ids_by_target if one in before and one not in ids):
            answer = await visit.api.ask("DELETE", visit.api.path(junction, ids_by_target[other]))
            if not answer.ok:
                return answer
    return None
