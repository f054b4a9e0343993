"""The controls above a list: one for each filterable field, by its kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniflex.admin.list_query import PERIODS, FilterTerm, ListQuery
from maniflex.admin.names import title_of
from maniflex.admin.site import ModelSite
from maniflex.model.meta import FieldMeta, Kind

if TYPE_CHECKING:
    from maniflex.admin.visit import Visit

_SIGNS = {
    "eq": "=", "neq": "≠", "gt": ">", "gte": "≥", "lt": "<", "lte": "≤", "since": "since",
    "is_null": "is null", "not_null": "is not null", "contains": "contains",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterControl:
    """A control: `kind` chooses the markup; `values` has what is set, by parameter."""

    kind: str  # choice, bool, text, number, date, key or null
    name: str
    label: str
    values: dict[str, str]
    options: Sequence[tuple[str, str]] = ()
    pick_url: str = ""


def filter_controls(visit: Visit, site: ModelSite, query: ListQuery) -> list[FilterControl]:
    """One control for each field that can be filtered."""
    values = {term.key: term.values[-1] for term in query.terms}
    return [_control(visit, site, field, values) for field in site.filters if _can_ask(site, field)]


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
    name = ".".join(title_of(part) for part in term.name.split("."))
    sign = _SIGNS.get(term.op, term.op.replace("_", " "))
    if term.op in ("is_null", "not_null"):
        return f"{name} {sign}"
    return f"{name} {sign} {' or '.join(term.values)}"
