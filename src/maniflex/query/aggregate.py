"""What an aggregate asks for: JSON or Python values → an `Aggregation`.

The grammar of aggregates lives here and nowhere else: operations, aliases, groups, `having`, order.
`read` takes what a client sent, `build` what code gives; both refuse with `InvalidQuery`, and a
client gets one and the same answer for a field that is unknown, secret or not opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from maniflex._locales import NO_LOCALE, LocaleView
from maniflex._names import did_you_mean
from maniflex.config import Limits
from maniflex.errors import InvalidQuery
from maniflex.model.meta import NUMBERS, FieldMeta, Kind
from maniflex.query.conditions import ConditionReader, Where, is_open
from maniflex.query.query import NOTHING, Compare, Filter, Hiding, Query

DEFAULT_GROUPS = 100
MOST_GROUPS = 1000
_PARTS = ("select", "group_by", "where", "having", "order_by", "limit")
ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
KEYS = frozenset(Kind) - {Kind.JSON, Kind.BYTES}


_CALL = re.compile(
    r"(\w{1,20})(?:\s*[(:]\s*(distinct\s+)?([\w.]{1,60}|\*)?\s*\)?)?", re.ASCII | re.IGNORECASE
)
_LONGEST_CALL = 120
_COUNT = {"op": "count"}
_SHAPE = 'select: an entry has op, field and as, like {"op":"sum","field":"<field>"}'


class Fn(StrEnum):
    """A function computed over the rows of a group."""

    COUNT = "count"
    COUNT_DISTINCT = "count_distinct"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"


FITTING: dict[Fn, frozenset[Kind]] = {
    Fn.COUNT: frozenset(Kind),
    Fn.COUNT_DISTINCT: KEYS,
    Fn.SUM: NUMBERS,
    Fn.AVG: NUMBERS,
    Fn.MIN: KEYS - {Kind.BOOL, Kind.UUID},
    Fn.MAX: KEYS - {Kind.BOOL, Kind.UUID},
}


@dataclass(frozen=True, slots=True)
class Measure:
    """One computed value; without a field, the rows themselves are counted."""

    fn: Fn
    field: FieldMeta | None
    alias: str

    @property
    def kind(self) -> Kind:
        """What the value is compared and ordered as."""
        if self.field is None or self.fn in (Fn.COUNT, Fn.COUNT_DISTINCT):
            return Kind.INT
        return Kind.DECIMAL if self.fn in (Fn.SUM, Fn.AVG) else self.field.kind


@dataclass(frozen=True, slots=True)
class Key:
    """A field rows are grouped by, under the name it was asked for by."""

    alias: str
    field: FieldMeta


@dataclass(frozen=True, slots=True)
class Having:
    """A condition on the value at `place` among the measures."""

    place: int
    test: Compare


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One aggregate, checked; columns are the keys and then the measures."""

    keys: tuple[Key, ...]
    measures: tuple[Measure, ...]
    filters: tuple[Filter, ...] = ()
    having: tuple[Having, ...] = ()
    order: tuple[tuple[int, bool], ...] = ()  # place among the columns, descending
    limit: int | None = None
    search: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (*(key.alias for key in self.keys), *(measure.alias for measure in self.measures))


def read(
    spec: Any, query: Query, limits: Limits, hiding: Hiding = NOTHING, view: LocaleView = NO_LOCALE
) -> Aggregation:
    """The aggregate a client asks for, without what its list query says besides."""
    if not isinstance(spec, dict):
        raise InvalidQuery("aggregate: a JSON object")
    unknown = [part for part in spec if part not in _PARTS]
    if unknown:
        raise InvalidQuery(f"aggregate: there is no part {unknown[0]!r}; use {', '.join(_PARTS)}")
    for part, most in (
        ("select", limits.aggregates),
        ("group_by", limits.group_keys),
        ("where", limits.filters),
        ("having", limits.filters),
        ("order_by", limits.sorts),
    ):
        entries = spec.get(part)
        if entries is not None and not isinstance(entries, list):
            raise InvalidQuery(f"{part}: a list{_hint_of_list(part, entries)}")
        if len(entries or ()) > most:
            raise InvalidQuery(f"{part}: at most {most}")
    limit = spec.get("limit")
    limit = DEFAULT_GROUPS if limit is None else limit
    if type(limit) is not int or not 1 <= limit <= MOST_GROUPS:
        raise InvalidQuery(f"limit: a whole number from 1 to {MOST_GROUPS}")
    parts = {part: spec.get(part) for part in _PARTS if part != "limit"}
    conditions = ConditionReader(query, limits, opens=is_open, hiding=hiding, view=view)
    return _AggregateReader(conditions).read(**parts, limit=limit)


def build(
    query: Query,
    *,
    select: Iterable[Any],
    group_by: str | Iterable[str] | None = None,
    where: Where | None = None,
    having: Iterable[Any] | None = None,
    order_by: str | Iterable[Any] | None = None,
    limit: int | None = None,
) -> Aggregation:
    """The aggregate code asks for; any field, any number of groups."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidQuery("limit: a whole number from 1")
    return _AggregateReader(ConditionReader(query)).read(
        select=[select] if isinstance(select, str | Mapping) else select,
        group_by=[group_by] if isinstance(group_by, str) else group_by,
        where=where,
        having=having,
        order_by=[order_by] if isinstance(order_by, str) else order_by,
        limit=limit,
    )


class _AggregateReader:
    """One request for an aggregate on its way to an `Aggregation`."""

    def __init__(self, conditions: ConditionReader) -> None:
        self._conditions = conditions
        self._places: dict[str, int] = {}  # of the columns, by name

    def read(
        self,
        *,
        select: Iterable[Any] | None,
        group_by: Iterable[Any] | None,
        where: Where | None,
        having: Iterable[Any] | None,
        order_by: Iterable[Any] | None,
        limit: int | None,
    ) -> Aggregation:
        try:
            keys = tuple(self._key(name) for name in group_by or ())
            measures = tuple(self._measure(item) for item in select or ())
            order = tuple(self._order(item) for item in order_by or ())
            if not measures:
                raise InvalidQuery(f"select: say what to compute, like {show_json(_COUNT)}")
        except InvalidQuery as error:  # names alone: no value of a client is in these parts
            raise self._conditions.blame(error) from None
        filters = self._conditions.conditions(where)
        conditions = tuple(self._having(item, measures) for item in having or ())
        return Aggregation(keys, measures, filters, conditions, order, limit)

    def _key(self, name: Any) -> Key:
        field = self._conditions.field(name, "group_by")
        if field.kind not in KEYS:
            raise InvalidQuery(f"group_by: {name!r} cannot be grouped by")
        self._name(name, "group_by")
        return Key(name, field)

    def _measure(self, item: Any) -> Measure:
        word, name, alias = _measure_parts(item)
        fn = _function(word)
        if name is None and fn is not Fn.COUNT:
            raise InvalidQuery(f"select: {fn} needs a field; write {show_json(_entry_of(fn))}")
        field = None if name is None else self._conditions.field(name, "select")
        if field is not None and field.kind not in FITTING[fn]:
            raise InvalidQuery(f"select: {fn} does not work on {name!r}")
        if alias is None:
            alias = fn.value if name is None else f"{fn}_{name}"
        elif not isinstance(alias, str) or not ALIAS.fullmatch(alias):
            raise InvalidQuery("select: as is a name of letters, digits and underscores")
        self._name(alias, "select")
        return Measure(fn, field, alias)

    def _name(self, alias: str, part: str) -> None:
        if alias in self._places:
            raise InvalidQuery(f"{part}: {alias!r} is named twice")
        self._places[alias] = len(self._places)

    def _having(self, item: Any, measures: Sequence[Measure]) -> Having:
        alias, word, value = self._conditions.parts(item, "having", "alias")
        place = next((i for i, m in enumerate(measures) if m.alias == alias), None)
        if place is None:
            hint = _hint(alias, [m.alias for m in measures])
            raise self._conditions.blame(InvalidQuery(f"having: {alias!r} is not computed here{hint}"))
        kind = measures[place].kind
        stand_in = FieldMeta(name=alias, api=alias, column=alias, kind=kind, type=None, nullable=True)
        return Having(place, self._conditions.compare(stand_in, word, value, "having"))

    def _order(self, item: Any) -> tuple[int, bool]:
        name, direction = _order_parts(item)
        if not isinstance(name, str) or name not in self._places:
            hint = _hint(name, self._places)
            raise InvalidQuery(f"order_by: {name!r} is neither computed nor grouped by here{hint}")
        if direction not in ("asc", "desc"):
            raise InvalidQuery(f"order_by: {direction!r} is neither asc nor desc")
        return self._places[name], direction == "desc"


def _measure_parts(item: Any) -> tuple[Any, Any, Any]:
    if isinstance(item, str):
        return item, None, None
    if isinstance(item, Mapping):
        if "op" not in item or [key for key in item if key not in ("op", "field", "as")]:
            raise InvalidQuery(_SHAPE)
        return item["op"], item.get("field"), item.get("as")
    if isinstance(item, Sequence) and 1 <= len(item) <= 3:
        op, field, alias = (*item, None, None)[:3]
        return op, field, alias
    raise InvalidQuery(_SHAPE)


def _function(word: Any) -> Fn:
    try:
        return Fn(word)
    except ValueError:
        entry = entry_for(word) if isinstance(word, str) else None
        hint = "" if entry is None else f"; write {show_json(entry)}"
        hint = hint or _hint(word, [fn.value for fn in Fn]) or f"; op is one of {', '.join(Fn)}"
        raise InvalidQuery(f"select: there is no op {word!r}{hint}") from None


def entry_for(text: str) -> dict[str, str] | None:
    """The entry of `select` that `count`, `count(*)`, `sum(total)` or `sum:total` means; None for others."""
    # The pattern takes quadratic time for many spaces, and a client may send megabytes of them.
    match = _CALL.fullmatch(text.strip()) if len(text) <= _LONGEST_CALL else None
    if match is None or match[1].lower() not in tuple(Fn):
        return None
    fn = Fn(match[1].lower())
    if fn is Fn.COUNT and match[2]:
        fn = Fn.COUNT_DISTINCT
    return _entry_of(fn, (match[3] or "").strip("*"))


def _entry_of(fn: Fn, name: str = "") -> dict[str, str]:
    """An entry of `select` for a hint; where a function needs a field, a place for its name is shown."""
    if not name and fn is Fn.COUNT:
        return _COUNT
    return {"op": fn.value, "field": name or "<field>"}


def show_json(value: Any) -> str:
    """The value as a client writes it."""
    return json.dumps(value, separators=(",", ":"))


def _hint_of_list(part: str, value: Any) -> str:
    entry = entry_for(value) if part == "select" and isinstance(value, str) else None
    return "" if part != "select" else f", like {show_json([entry or _COUNT])}"


def _hint(name: Any, known: Iterable[str]) -> str:
    return did_you_mean(name, known) if isinstance(name, str) else ""


def _order_parts(item: Any) -> tuple[Any, Any]:
    if isinstance(item, str):
        name, _, direction = item.partition(":")
        return name, direction or "asc"
    if isinstance(item, Mapping):
        if "field" not in item or [key for key in item if key not in ("field", "direction")]:
            raise InvalidQuery("order_by: an entry has field and direction")
        return item["field"], item.get("direction", "asc")
    if isinstance(item, Sequence) and len(item) == 2:
        return item[0], item[1]
    raise InvalidQuery("order_by: an entry has field and direction")
