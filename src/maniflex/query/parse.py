"""Read the query string of a list request into a `Query`.

The grammar lives here and nowhere else. Give `parse` the raw query string and a `ModelMeta`; get a
value back, or `InvalidQuery` naming the parameter that was wrong. Parameters that are not part of
the grammar are left to the application.
"""

from __future__ import annotations

from urllib.parse import unquote_plus

from maniflex.errors import InvalidQuery
from maniflex.model.meta import ModelMeta
from maniflex.query.limits import MAX_FILTERS, MAX_LIMIT, MAX_PAGE, MAX_SORTS
from maniflex.query.operators import OPERATORS, Op
from maniflex.query.tree import Compare, Query, Sort
from maniflex.query.values import comparable, parse_value

_MOST_REMEMBERED = 512
_LONGEST_REMEMBERED = 512
_RESERVED = frozenset({"include", "select", "q", "cursor"})


def parse(query_string: bytes, model: ModelMeta) -> Query:
    """The query a list request asks for."""
    query = Query(model)
    if not query_string:
        return query
    filters: list[Compare] = []
    sorts: list[Sort] = []
    for key, value in pairs(query_string):
        if key == "filter":
            filters.append(_filter(value, model))
        elif key == "sort":
            sorts.extend(_sort(term, model) for term in value.split(","))
        elif key == "page":
            query.page = _number(key, value, MAX_PAGE)
        elif key == "limit":
            # Asking for more than a page may hold gives a full page; `meta.limit` says so.
            query.limit = min(_number(key, value, MAX_PAGE), MAX_LIMIT)
        elif key in _RESERVED or key.startswith("filter["):
            raise InvalidQuery(f"{key}: not available on {model.table}")
    if len(filters) > MAX_FILTERS:
        raise InvalidQuery(f"filter: at most {MAX_FILTERS} filters")
    if len(sorts) > MAX_SORTS:
        raise InvalidQuery(f"sort: at most {MAX_SORTS} sort keys")
    query.filters, query.sorts = tuple(filters), tuple(sorts)
    return query


class Parser:
    """`parse` for one model that remembers what it was asked lately."""

    def __init__(self, model: ModelMeta) -> None:
        self._model = model
        self._known: dict[bytes, Query] = {}

    def __call__(self, query_string: bytes) -> Query:
        known = self._known.get(query_string)
        if known is None:
            known = parse(query_string, self._model)
            if len(query_string) <= _LONGEST_REMEMBERED:
                if len(self._known) >= _MOST_REMEMBERED:
                    self._known.pop(next(iter(self._known)), None)
                self._known[query_string] = known
        return known.copy()


def pairs(query_string: bytes) -> list[tuple[str, str]]:
    """The decoded parameters in order; text that is not UTF-8 or holds NUL is refused."""
    try:
        text = query_string.decode("ascii")
        found = []
        for part in text.split("&"):
            key, _, value = part.partition("=")
            if "%" in part or "+" in part:
                key, value = unquote_plus(key, errors="strict"), unquote_plus(value, errors="strict")
                if "\x00" in value or "\x00" in key:
                    raise InvalidQuery("a query parameter contains a NUL character")
            found.append((key, value))
    except UnicodeError:
        raise InvalidQuery("the query string is not UTF-8") from None
    return found


def _number(key: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or not 1 <= int(text) <= most:
        raise InvalidQuery(f"{key}: a whole number from 1 to {most}")
    return int(text)


def _filter(text: str, model: ModelMeta) -> Compare:
    name, colon, rest = text.partition(":")
    op, second, value = rest.partition(":")
    if not colon or not second:
        raise InvalidQuery("filter: write it as field:operator:value")
    found = model.by_api.get(name)
    if found is None or not found.filterable or found.secret or not comparable(found):
        raise InvalidQuery(f"filter: {name!r} is not a field that can be filtered")
    if op not in OPERATORS:
        raise InvalidQuery(f"filter: there is no operator {op!r}")
    return Compare(found, Op(op), parse_value(value, found, "filter"))


def _sort(term: str, model: ModelMeta) -> Sort:
    name, _, direction = term.partition(":")
    found = model.by_api.get(name)
    if found is None or not found.sortable or found.secret:
        raise InvalidQuery(f"sort: {name!r} is not a field that can be sorted by")
    if direction not in ("", "asc", "desc"):
        raise InvalidQuery(f"sort: {direction!r} is neither asc nor desc")
    return Sort(found, direction == "desc")
