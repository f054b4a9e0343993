"""The address of a list in the panel → the query of the API: `?f_status=draft&sort=title:desc&q=…`."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from maniflex._json import read_back
from maniflex.admin.site import ModelSite
from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, Kind
from maniflex.model.texts import control_field
from maniflex.query.operators import Takes, operator
from maniflex.query.values import parse_value

MOST_PAGES = 500
PERIODS = {"today": 0, "7d": 7, "30d": 30, "365d": 365}  # "since" values → days back


@dataclass(frozen=True, slots=True)
class FilterTerm:
    """One filter of the address: a field, an operator and any of some values."""

    name: str
    op: str
    values: tuple[str, ...]

    @property
    def key(self) -> str:
        """Its parameter."""
        return f"f_{self.name}" if self.op == "eq" else f"f_{self.name}~{self.op}"


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What the address of a list asks for."""

    terms: tuple[FilterTerm, ...] = ()
    sort: str = ""
    q: str = ""
    page: int = 1
    after: str = ""
    before: str = ""
    last: bool = False
    trash: bool = False
    columns: tuple[str, ...] = field(default=())

    def pairs(self, **changes: Any) -> list[tuple[str, str]]:
        """The parameters of this list, without its place, with some of them changed."""
        pairs = [(term.key, value) for term in self.terms for value in term.values]
        values = {"q": self.q, "sort": self.sort, "trash": "1" if self.trash else ""} | {
            "columns": ",".join(self.columns),
            **changes,
        }
        return [*pairs, *((name, str(value)) for name, value in values.items() if value)]

    def without(self, term: FilterTerm) -> list[tuple[str, str]]:
        """The parameters without one filter."""
        return [pair for pair in self.pairs() if pair[0] != term.key]


def read_list_query(pairs: Sequence[tuple[str, str]]) -> ListQuery:
    """The list that an address names; `InvalidQuery` naming what cannot be read."""
    values: dict[str, list[str]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    terms = []
    for key, texts in values.items():
        if not key.startswith("f_"):
            continue
        name, _, op = key[2:].partition("~")
        rule = operator(op or "eq")
        if rule is None and op != "since":
            raise InvalidQuery(f"{key}: there is no operator {op!r}")
        own_values = tuple(text for text in texts if text)
        if own_values:
            terms.append(FilterTerm(name, op or "eq", own_values))

    def last_of(name: str) -> str:
        return values.get(name, [""])[-1].strip()

    page = last_of("page") or "1"
    number = read_number(page)
    if not number or number > MOST_PAGES:
        raise InvalidQuery(f"page: a whole number from 1 to {MOST_PAGES}")
    return ListQuery(
        terms=tuple(terms),
        sort=last_of("sort"),
        q=last_of("q"),
        page=number,
        after=last_of("after"),
        before=last_of("before"),
        last=last_of("last") == "1",
        trash=last_of("trash") == "1",
        columns=tuple(name for name in last_of("columns").split(",") if name),
    )


def api_query(site: ModelSite, query: ListQuery, zone: ZoneInfo, now: datetime) -> list[tuple[str, str]]:
    """The query string that asks the API for the same rows."""
    api_pairs: list[tuple[str, str]] = []
    group = 0
    for term in query.terms:
        conditions = [_condition(site, term, value, zone, now) for value in term.values]
        if len(conditions) == 1:
            api_pairs.append(("filter", conditions[0]))
        else:
            api_pairs += [(f"filter[{group}]", condition) for condition in conditions]
            group += 1
    if query.q:
        if site.is_searchable:
            api_pairs.append(("q", query.q))
        elif site.search_fields:
            api_pairs += any_contains(site, query.q, group)
        else:
            raise InvalidQuery("q: these records cannot be searched")
    if query.sort:
        name = query.sort.partition(":")[0]
        if "." in name:
            raise InvalidQuery(f"sort: {name!r} is no field of {site.meta.name}")
        if name != "id":
            api_pairs.append(("sort", query.sort))
    return api_pairs


def any_contains(site: ModelSite, text: str, group: int = 0) -> list[tuple[str, str]]:
    """The filters for records that have the text in one of the fields to search."""
    fields = site.search_fields
    name = "filter" if len(fields) == 1 else f"filter[{group}]"
    return [(name, f"{field.api}:contains:{text}") for field in fields]


def _condition(site: ModelSite, term: FilterTerm, value: str, zone: ZoneInfo, now: datetime) -> str:
    rule = operator(term.op)
    if rule is not None and rule.takes is Takes.NOTHING:
        return f"{term.name}:{term.op}"
    field_meta = site.meta.by_api.get(term.name)
    kind = None if field_meta is None else field_meta.kind
    if term.op == "since":
        return f"{term.name}:gte:{_since(value, kind, zone, now)}"
    if kind is Kind.DATETIME and len(value) <= 16 and term.op in ("gt", "gte", "lt", "lte"):
        return _local_condition(term, value, zone)
    return f"{term.name}:{term.op}:{value}"


def _since(value: str, kind: Kind | None, zone: ZoneInfo, now: datetime) -> str:
    if value not in PERIODS:
        raise InvalidQuery(f"since: {value!r} is none of {', '.join(PERIODS)}")
    day = now.astimezone(zone).date() - timedelta(days=PERIODS[value])
    return day.isoformat() if kind is Kind.DATE else _midnight(day.isoformat(), zone).isoformat()


def _local_condition(term: FilterTerm, value: str, zone: ZoneInfo) -> str:
    """A day or minute as the person means it, in its zone; the end of a range includes its day."""
    try:
        moment = _midnight(value, zone)
        op = term.op
        if len(value) == 10 and op in ("lte", "gt"):
            next_day = (moment + timedelta(days=1, hours=2)).date()
            moment, op = _midnight(next_day.isoformat(), zone), {"lte": "lt", "gt": "gte"}[op]
    except (ValueError, OverflowError):  # the last day there is has no next one
        raise InvalidQuery(f"{term.key}: {value!r} is no date") from None
    return f"{term.name}:{op}:{moment.isoformat()}"


def _midnight(text: str, zone: ZoneInfo) -> datetime:
    moment = datetime.fromisoformat(text)
    if len(text) == 10:
        moment = datetime.combine(moment.date(), time())
    return moment.replace(tzinfo=zone)


def read_number(text: str, most_digits: int = 9) -> int | None:
    """The whole number of an address; None for anything else. Python refuses to read thousands of digits."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= most_digits
    return int(text) if is_number else None


# -- places in a walk


def sort_field(site: ModelSite, query: ListQuery) -> FieldMeta:
    """The field that a list is ordered by; the newest record comes first unless told."""
    name = query.sort.partition(":")[0] or "id"
    field_meta = site.meta.by_api.get(name)
    return control_field(field_meta) if field_meta is not None else site.meta.by_name["id"]


def write_place(place: tuple[Any, str] | None) -> str:
    """The token of a row: its sort value and its id."""
    if place is None:
        return ""
    value, record_id = place
    text = None if value is None else value.isoformat() if hasattr(value, "isoformat") else str(value)
    return urlsafe_b64encode(json.dumps([text, record_id]).encode()).decode().rstrip("=")


def read_place(token: str, field_meta: FieldMeta) -> tuple[Any, str]:
    """The row of a token; `InvalidQuery` for anything else."""
    try:
        text, record_id = read_back(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        if not isinstance(record_id, str) or "\x00" in record_id + (text or ""):
            raise ValueError
        value = None if text is None else parse_value(str(text), field_meta, "after", member=False)
    except (ValueError, TypeError, Error, InvalidQuery):
        raise InvalidQuery("after: the place cannot be read; begin again with the first page") from None
    return value, record_id
