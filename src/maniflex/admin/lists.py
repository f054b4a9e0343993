"""Lists: the page of the records of a model, and one record as the API shows it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode

from maniflex.admin.audit import find_events
from maniflex.admin.bulk import BulkChoice, bulk_choices, bulk_fields, may_export, model_actions
from maniflex.admin.form_fields import is_settable
from maniflex.admin.list_query import (
    PERIODS,
    FilterTerm,
    ListQuery,
    api_query,
    read_list_query,
    read_place,
    sort_field,
    write_place,
)
from maniflex.admin.site import ModelSite, title_of, title_of_part
from maniflex.admin.views import SavedView
from maniflex.admin.visit import MOST_COUNTED, ApiAnswer, Refusal, Visit
from maniflex.admin.widgets import (
    HIDDEN,
    NULL,
    Cell,
    cell,
    file_item,
    file_items,
    group_digits,
    is_number,
    note_files,
)
from maniflex.errors import InvalidQuery, NotFound
from maniflex.features.export import available_formats
from maniflex.model.meta import FieldMeta, Kind
from maniflex.model.texts import LocaleRules, locale_rules
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.browse import PageRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ListColumn:
    """A column of a list."""

    label: str
    sort_url: str  # empty where nothing can be sorted by it
    direction: str  # ascending, descending or empty
    is_number: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A record of a list."""

    id: str
    label: str
    url: str
    cells: Sequence[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A filter that is on, and the list without it."""

    label: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pager:
    """Where the walk goes on; an empty address: nowhere."""

    first: str
    previous: str
    next: str
    last: str
    total: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListView:
    """What `list.html` is given."""

    title: str
    singular: str
    url: str
    columns: Sequence[ListColumn]
    rows: Sequence[Row]
    filters: Sequence[FilterControl]
    chips: Sequence[Chip]
    q: str
    can_search: bool
    pager: Pager
    hidden: Sequence[tuple[str, str]]  # the parameters that a form of the list carries along
    new_url: str
    import_url: str
    exports: Sequence[tuple[str, str]]
    trash_url: str
    is_trash: bool
    bulk: Sequence[BulkChoice]
    bulk_fields: Sequence[tuple[str, str]]
    all_columns: Sequence[tuple[str, str, bool]]
    views: Sequence[SavedView]
    model_actions: Sequence[tuple[str, str]]
    query_string: str
    is_filtered: bool


async def show_list(visit: Visit) -> Response:
    """The records of a model."""
    site = visit.site()
    query = read_list_query(visit.query)
    if query.trash and site.meta.soft_delete is None:
        raise NotFound(visit.t("no_such_page"))
    if not query.sort and site.admin.sort:
        query = replace(query, sort=site.admin.sort)
    columns = await chosen_columns(visit, site, query)
    if query.trash:
        columns = [*columns, *_deletion_time(site, columns)]
    api_pairs = api_query(site, query, visit.zone, visit.panel.runtime.clock.now())
    page = page_request(site, query)
    answer = await read_page(visit, site, api_pairs, page, columns)
    records = answer.data
    await note_files(visit, columns, records)
    total = await visit.api.count(site, api_pairs, page)
    if not page.keyset and total is not None:
        page.more = page.limit * page.page < total
    view = await _list_view(visit, site, query, columns, page, records, total)
    if query.trash:
        view = _with_deleters(visit, view, await deleters_of(visit, site, records))
    crumbs = [(site.plural, visit.url(site.table))] if query.trash else []
    return await visit.page("list.html", view, title=view.title, crumbs=crumbs)


def _with_deleters(visit: Visit, view: ListView, names: Mapping[str, str]) -> ListView:
    """The list with one more column: who deleted each record."""
    label = visit.t("deleted_by")
    rows = [
        replace(row, cells=[*row.cells, Cell(kind="text", text=names.get(row.id) or "–", label=label)])
        for row in view.rows
    ]
    column = ListColumn(label=label, sort_url="", direction="", is_number=False)
    return replace(view, columns=[*view.columns, column], rows=rows)


def _deletion_time(site: ModelSite, columns: Sequence[FieldMeta]) -> list[FieldMeta]:
    """The column that says when a record was deleted, if the list has none yet."""
    marker = site.meta.soft_delete
    return [f for f in site.fields if marker and f.name == marker.field and f not in columns]


def page_request(site: ModelSite, query: ListQuery) -> PageRequest:
    """Which page is meant."""
    is_walk = site.is_walked and not (query.q and site.is_searchable and not query.sort) and query.page == 1
    page = PageRequest(site.admin.page_size, deleted=query.trash, keyset=is_walk, page=query.page)
    if not is_walk:
        return page
    page.oldest_first = query.sort in ("id", "id:asc")
    if query.after or query.before:
        page.after = read_place(query.after or query.before, sort_field(site, query))
    page.backwards = bool(query.before) or query.last
    return page


async def read_page(
    visit: Visit,
    site: ModelSite,
    api_pairs: Sequence[tuple[str, str]],
    page: PageRequest,
    columns: Sequence[FieldMeta],
) -> ApiAnswer:
    """The records, with those they belong to as far as these may be seen."""
    names = await relations_to_include(visit, site, columns)
    answer = await visit.api.page(site, [*api_pairs, *_include(names)], page)
    if not answer.ok and names and answer.status in (400, 401, 403):
        plain = await visit.api.page(site, api_pairs, page)
        return plain if plain.ok else answer
    return answer


def _include(names: Sequence[str]) -> list[tuple[str, str]]:
    return [("include", ",".join(names))] if names else []


async def relations_to_include(visit: Visit, site: ModelSite, columns: Sequence[FieldMeta]) -> list[str]:
    """The relations whose records name a key among the columns."""
    names = []
    for field in columns:
        relation = site.parents.get(field.name)
        target = None if relation is None else visit.panel.sites.by_name.get(relation.target)
        if relation is not None and target is not None and await visit.api.may(target, Operation.LIST):
            names.append(relation.name)
    return names


async def chosen_columns(visit: Visit, site: ModelSite, query: ListQuery) -> list[FieldMeta]:
    """The columns that the address names, that this person chose, or that the model has."""
    names: Sequence[str] = query.columns or await visit.panel.views.columns(visit.signed_in.id, site)
    if not names:
        return site.columns
    fields_by_name = {f.api: f for f in site.fields}
    wrong = [name for name in names if name not in fields_by_name]
    if wrong and query.columns:
        raise InvalidQuery(f"columns: {wrong[0]!r} is no field of {site.meta.name}")
    return [fields_by_name[name] for name in names if name in fields_by_name] or site.columns


async def _list_view(
    visit: Visit,
    site: ModelSite,
    query: ListQuery,
    columns: Sequence[FieldMeta],
    page: PageRequest,
    records: Sequence[Mapping[str, Any]],
    total: int | None,
) -> ListView:
    url = visit.url(site.table)
    may_create = site.can_create and await visit.api.may(site, Operation.CREATE)
    is_exportable = await may_export(visit, site)
    may_edit = site.can_edit and not query.trash and await visit.api.may(site, Operation.UPDATE)
    kept_names = await visit.api.stamped_fields(site, Operation.UPDATE) if may_edit else frozenset()
    plain = urlencode(query.pairs())
    export_base = visit.url(site.table, "export")
    export_pairs = query.pairs(columns=",".join(f.api for f in columns if f.exported))
    return ListView(
        title=f"{site.plural}: {visit.t('trash')}" if query.trash else site.plural,
        singular=site.title,
        url=url,
        columns=[_column(site, field, query, url) for field in columns],
        rows=[
            _with_list(row_of(visit, site, record, columns, may_edit=may_edit, kept_names=kept_names), plain)
            for record in records
        ],
        filters=filter_controls(visit, site, query),
        chips=[
            Chip(label=label_of_term(site, term), url=f"{url}?{urlencode(query.without(term))}")
            for term in query.terms
        ],
        q=query.q,
        can_search=site.is_searchable or bool(site.search_fields),
        pager=_pager(visit, url, query, page, total),
        hidden=[(name, value) for name, value in query.pairs(q="") if not name.startswith("f_")],
        new_url=visit.url(site.table, "new") if may_create and not query.trash else "",
        import_url=visit.url(site.table, "import")
        if may_create and site.admin.can_import and not query.trash
        else "",
        exports=[
            (name, f"{export_base}?{urlencode([*export_pairs, ('format', name)])}")
            for name in available_formats()
        ]
        if is_exportable and not query.trash
        else [],
        trash_url=f"{url}?trash=1" if site.meta.soft_delete is not None else "",
        is_trash=query.trash,
        bulk=await bulk_choices(visit, site, trash=query.trash),
        bulk_fields=await bulk_fields(visit, site),
        all_columns=[(f.api, title_of(f.api), f in columns) for f in site.fields],
        views=await visit.panel.views.views_of(visit.signed_in, site, visit.url(site.table)),
        model_actions=await model_actions(visit, site),
        query_string=plain,
        is_filtered=bool(query.terms or query.q),
    )


def _with_list(row: Row, query: str) -> Row:
    """The row, whose record then knows its neighbours in this list."""
    return replace(row, url=f"{row.url}?{urlencode({'list': query})}") if query and row.url else row


def _column(site: ModelSite, field: FieldMeta, query: ListQuery, url: str) -> ListColumn:
    name, _, direction = query.sort.partition(":")
    is_sorted = name == field.api
    sort_url = ""
    if field.sortable or field.name == "id":
        other_order = f"{field.api}:desc" if is_sorted and direction != "desc" else f"{field.api}:asc"
        sort_url = f"{url}?{urlencode(query.pairs(sort=other_order))}"
    return ListColumn(
        label=title_of(field.api),
        sort_url=sort_url,
        direction=("descending" if direction == "desc" else "ascending") if is_sorted else "",
        is_number=is_number(field),
    )


def row_of(
    visit: Visit,
    site: ModelSite,
    record: Mapping[str, Any],
    columns: Sequence[FieldMeta],
    *,
    may_edit: bool = False,
    kept_names: Collection[str] = (),
) -> Row:
    """One record with its cells."""
    record_id = str(record.get("id", ""))
    url = visit.url(site.table, record_id) if record_id and site.has_id else ""
    cells = [
        replace(shown_cell(visit, site, record, field), label=title_of(field.api), first=number == 0)
        for number, field in enumerate(columns)
    ]
    if may_edit and url:
        cells = [
            one if field.name in kept_names else _editable(one, site, field, record, url)
            for one, field in zip(cells, columns, strict=True)
        ]
    return Row(id=record_id, label=site.label_of(record), url=url, cells=cells)


def _editable(one: Cell, site: ModelSite, field: FieldMeta, record: Mapping[str, Any], url: str) -> Cell:
    """The cell, so that a double click opens it, where it holds one of a few values."""
    if field.api not in record or field.name in site.parents or not is_settable(site, field):
        return one
    if field.enum is None and field.kind is not Kind.BOOL:
        return one
    value = record[field.api]
    choices = site.choices(field, value, is_new=False) if field.enum else ("true", "false")
    options = [str(member) for member in choices]
    text = str(value).lower() if field.kind is Kind.BOOL else str(value)
    return replace(one, edit=f"{url}/cell/{field.api}", value=text, options=json.dumps(options))


def shown_cell(
    visit: Visit, site: ModelSite, record: Mapping[str, Any], field: FieldMeta, *, whole: bool = False
) -> Cell:
    """A value of a record: a link where it is the key of another one, or a file."""
    if field.api not in record:
        return HIDDEN
    value = record[field.api]
    relation = site.parents.get(field.name)
    if relation is not None:
        return _key_cell(visit, relation.target, value, record.get(relation.name))
    if "file" in field.extra:
        return _file_cell(visit, site, record, field, value, whole=whole)
    return cell(field, value, visit.zone, whole=whole)


def _key_cell(visit: Visit, target: str, value: Any, other: Any) -> Cell:
    if value is None:
        return NULL
    site = visit.panel.sites.by_name.get(target)
    if site is None or not site.has_id:
        return Cell(kind="text", text=str(value))
    label = site.label_of(other) if isinstance(other, Mapping) else str(value)
    return Cell(kind="link", text=label, title=str(value), url=visit.url(site.table, str(value)))


def _file_cell(
    visit: Visit, site: ModelSite, record: Mapping[str, Any], field: FieldMeta, value: Any, *, whole: bool
) -> Cell:
    if value is None or value == []:
        return NULL
    if isinstance(value, list):
        files = file_items(visit, site, record, field) if whole else ()
        return Cell(
            kind="files" if whole else "text", text=visit.t("files_count", count=len(value)), files=files
        )
    one = file_item(visit, site, str(record.get("id", "")), field, str(value), 0)
    return Cell(kind="file", text=one.name, url=one.url, image=one.image, size=one.size)


def _pager(visit: Visit, url: str, query: ListQuery, page: PageRequest, total: int | None) -> Pager:
    def at(**place: str) -> str:
        pairs = [*query.pairs(), *place.items()]
        return f"{url}?{urlencode(pairs)}" if pairs else url

    if not page.keyset:
        number = page.page
        return Pager(
            first=at() if number > 1 else "",
            previous=at(page=str(number - 1)) if number > 1 else "",
            next=at(page=str(number + 1)) if page.more else "",
            last="",
            total=total_text(visit, total),
        )
    has_before = (page.after is not None and not page.backwards) or (page.backwards and page.more)
    has_after = (page.more and not page.backwards) or (page.backwards and page.after is not None)
    return Pager(
        first=at() if has_before else "",
        previous=at(before=write_place(page.first)) if has_before and page.first else "",
        next=at(after=write_place(page.last)) if has_after and page.last else "",
        last=at(last="1") if has_after else "",
        total=total_text(visit, total),
    )


def total_text(visit: Visit, total: int | None, most: int = MOST_COUNTED) -> str:
    """How many there are, as far as they were counted."""
    if total is None:
        return ""
    number = f"{group_digits(str(most))}+" if total > most else group_digits(str(total))
    return visit.t("record_count" if total != 1 else "record_count_one", count=number)


# The controls above a list: one for each filterable field, by its kind.


_SIGNS = {
    "eq": "=", "neq": "≠", "gt": ">", "gte": "≥", "lt": "<", "lte": "≤", "since": "since",
    "is_null": "is null", "not_null": "is not null", "contains": "contains",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterControl:
    """A control of a filter: `kind` chooses the markup; `values` are those of the address, by parameter."""

    kind: str  # choice, bool, text, number, date, key or null
    name: str
    label: str
    values: dict[str, str]
    options: Sequence[tuple[str, str]] = ()
    pick_url: str = ""


def filter_controls(visit: Visit, site: ModelSite, query: ListQuery) -> list[FilterControl]:
    """One control for each field that can be filtered."""
    values = {term.key: term.values[-1] for term in query.terms}
    controls = []
    for field in site.filters:
        rules = locale_rules(field)
        if rules is not None and site.takes("is_null", "contains"):
            controls += _controls_of_texts(visit, field, rules, values)
        elif _can_ask(site, field):
            controls.append(_control(visit, site, field, values))
    return controls


def _controls_of_texts(
    visit: Visit, field: FieldMeta, rules: LocaleRules, values: dict[str, str]
) -> list[FilterControl]:
    """What is shown of a text in several languages contains something, and which translations are missing."""
    name, label = f"f_{field.api}", title_of(field.api)
    own = {key: value for key, value in values.items() if key == name or key.startswith(f"{name}~")}
    shown = (
        [] if rules.mode == "dynamic" else [FilterControl(kind="text", name=name, label=label, values=own)]
    )
    options = [(f"{name}.{code}~is_null", code) for code in rules.locales]
    label = f"{label}: {visit.t('missing_in')}"
    return [
        *shown,
        FilterControl(kind="missing", name=f"{name}.", label=label, values=values, options=options),
    ]


def _can_ask(site: ModelSite, field: FieldMeta) -> bool:
    """Whether the records can be asked by a control; a backend may take no operator of it."""
    kind = _KINDS[field.kind]
    return site.takes(*_OPERATORS.get(kind, ("eq",))) or (kind != "null" and site.takes("eq"))


def _control(visit: Visit, site: ModelSite, field: FieldMeta, values: dict[str, str]) -> FilterControl:
    name, label = f"f_{field.api}", title_of(field.api)
    own = {key: value for key, value in values.items() if key == name or key.startswith(f"{name}~")}
    relation = site.parents.get(field.name)
    if relation is not None:
        target = visit.panel.sites.by_name.get(relation.target)
        url = visit.url("-", "pick", target.table) if target is not None else ""
        return FilterControl(kind="key", name=name, label=label, values=own, pick_url=url)
    if field.enum is not None:
        options = [(str(value), str(value)) for value in field.enum]
        return FilterControl(kind="choice", name=name, label=label, values=own, options=options)
    options = [(key, visit.t(f"since_{key}")) for key in PERIODS] if field.kind in _DATES else []
    kind = _KINDS[field.kind]
    kind = kind if site.takes(*_OPERATORS.get(kind, ())) else "exact"
    return FilterControl(kind=kind, name=name, label=label, values=own, options=options)


_DATES = (Kind.DATE, Kind.DATETIME)
# What a control asks with; others ask for a value itself.
_OPERATORS = {
    "text": ("contains",),
    "number": ("gte", "lte"),
    "date": ("gte", "lte", "lt"),
    "null": ("not_null",),
}
_KINDS: dict[Kind, str] = {
    Kind.TEXT: "text",
    Kind.INT: "number",
    Kind.FLOAT: "number",
    Kind.DECIMAL: "number",
    Kind.BOOL: "bool",
    Kind.DATETIME: "date",
    Kind.DATE: "date",
    Kind.TIME: "exact",
    Kind.UUID: "exact",
    Kind.BYTES: "null",
    Kind.JSON: "null",
}


def label_of_term(site: ModelSite, term: FilterTerm) -> str:
    """A filter in words."""
    field = site.meta.by_api.get(term.name.partition(".")[0])
    is_text = field is not None and locale_rules(field) is not None
    name = title_of_part(term.name) if is_text else ".".join(map(title_of, term.name.split(".")))
    sign = _SIGNS.get(term.op, term.op.replace("_", " "))
    if term.op in ("is_null", "not_null"):
        return f"{name} {sign}"
    return f"{name} {sign} {' or '.join(term.values)}"


# The trash of a model: who deleted each record, as far as the audit tells a person.


_SAME_REQUEST = timedelta(minutes=1)


async def deleters_of(visit: Visit, site: ModelSite, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The names of those who deleted these records in the panel, by id."""
    times = {str(record["id"]): _time_of_deletion(site, record) for record in records if record.get("id")}
    if not times:
        return {}
    filters = [
        ("model", "eq", site.meta.name),
        ("action", "eq", "delete"),
        ("outcome", "eq", "ok"),
        ("record_id", "in", list(times)),
    ]
    names: dict[str, str] = {}
    for event in await find_events(visit, filters, 5 * len(times)):
        moment = times[event.record_id]
        # A record may have been deleted before, brought back, and deleted again outside the panel.
        is_this_one = moment is None or abs(event.created_at - moment) < _SAME_REQUEST
        if is_this_one:
            names.setdefault(event.record_id, event.actor_name)
    return names


def _time_of_deletion(site: ModelSite, record: Mapping[str, Any]) -> datetime | None:
    marker = site.meta.soft_delete
    field = None if marker is None else site.meta.by_name.get(marker.field)
    value = None if field is None else record.get(field.api)
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


# The records before and behind one in the list that it was opened from.


async def neighbours_of(visit: Visit, site: ModelSite, record: Mapping[str, Any]) -> tuple[str, str]:
    """The addresses of the record before and of the one behind; empty where there is none."""
    text = visit.param("list")
    if not site.is_walked:
        return "", ""
    try:
        query = read_list_query(parse_qsl(text))
        query = query if query.sort else replace(query, sort=site.admin.sort)
        field = sort_field(site, query)
        has_no_walk = query.trash or (query.q and site.is_searchable and not query.sort)
        if has_no_walk or field.api not in record:
            return "", ""
        value = record[field.api]
        token = write_place((str(value).lower() if isinstance(value, bool) else value, str(record["id"])))
        place = read_place(token, field)
        pairs = api_query(site, query, visit.zone, visit.panel.runtime.clock.now())
    except InvalidQuery:  # an address that was typed by hand
        return "", ""
    addresses = []
    for backwards in (True, False):
        oldest_first = query.sort in ("id", "id:asc")
        page = PageRequest(1, after=place, backwards=backwards, oldest_first=oldest_first)
        answer = await visit.api.page(site, pairs, page)
        records = answer.data if answer.ok else []
        more = {"list": text} if text else {}
        addresses.append(visit.url(site.table, str(records[0]["id"]), **more) if records else "")
    return addresses[0], addresses[1]


# One record as the API shows it to this person.


async def ask_record(visit: Visit, site: ModelSite, record_id: str) -> ApiAnswer:
    """A record, with those it belongs to as far as these may be seen; 404 outside the scope."""
    names = await relations_to_include(visit, site, site.fields)
    path = visit.api.path(site) if site.is_singleton else visit.api.path(site, record_id)
    answer = await visit.api.ask("GET", path, query={"include": ",".join(names)} if names else "")
    if not answer.ok and names and answer.status in (400, 401, 403):
        answer = await visit.api.ask("GET", path)
    if answer.status == 404:
        raise NotFound(visit.t("no_such_record"))
    if not answer.ok:
        raise Refusal(answer.response)
    if not isinstance(answer.data, Mapping):  # `export` or `history` is no id, but a path of the API
        raise NotFound(visit.t("no_such_record"))
    return answer


async def read_deleted(visit: Visit, site: ModelSite, record_id: str) -> Mapping[str, Any] | None:
    """A record in the trash, for somebody who may list it."""
    if site.meta.soft_delete is None:
        return None
    page = PageRequest(1, deleted=True, filters=(("id", "eq", record_id),))
    answer = await visit.api.page(site, (), page)
    records = answer.data if answer.ok else []
    return records[0] if records else None
