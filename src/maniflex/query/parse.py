"""Read the query string of a list request into a `Query`.

The grammar lives here and nowhere else: the OpenAPI parameters and docs/query/ are made from
`OPERATORS`. Give `parse` the raw query string and a `ModelMeta`; get a value back, or `InvalidQuery`
naming the parameter that was wrong. A field that does not exist, is not opted in or is secret gets
one and the same answer. Parameters that are not part of the grammar are left to the application, unless
they look like a misspelt one of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from string import punctuation, whitespace
from urllib.parse import unquote_plus

from maniflex._limits import DEFAULT_LIMITS, Limits
from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, ModelMeta, RelationKind
from maniflex.query import cursor
from maniflex.query.conditions import ConditionReader
from maniflex.query.hiding import NOTHING, Hiding
from maniflex.query.operators import Takes, operator
from maniflex.query.query import AnyOf, Compare, Filter, Include, Models, Query, Sort, shows

_GROUP = re.compile(r"filter\[([0-9]{1,4})\]")


def parse(
    query_string: bytes,
    model: ModelMeta,
    models: Models | None = None,
    limits: Limits = DEFAULT_LIMITS,
    hiding: Hiding = NOTHING,
) -> Query:
    """The query a request asks for; to its caller, fields that are hidden or closed do not exist."""
    query = Query(model, {model.name: model} if models is None else models)
    return _QueryReader(query, limits, hiding).read(query_string) if query_string else query


def pairs(query_string: bytes) -> list[tuple[str, str]]:
    """The decoded parameters in order; text that is not UTF-8 or holds NUL is refused."""
    try:
        text = query_string.decode("ascii")
        parameters = []
        for part in text.split("&"):
            key, _, value = part.partition("=")
            if "%" in part or "+" in part:
                key, value = unquote_plus(key, errors="strict"), unquote_plus(value, errors="strict")
            if "\x00" in value or "\x00" in key:
                raise InvalidQuery("a query parameter contains a NUL character")
            parameters.append((key, value))
    except UnicodeError:
        raise InvalidQuery("the query string is not UTF-8") from None
    return parameters


class _QueryReader:
    """One query string on its way to a `Query`."""

    def __init__(self, query: Query, limits: Limits, hiding: Hiding) -> None:
        self._query = query
        self._limits = limits
        self._hiding = hiding
        self._conditions = ConditionReader(query, limits, text=True, hiding=hiding)
        self._filters: list[Filter] = []
        self._groups: dict[str, list[Compare]] = {}
        self._sorts: list[Sort] = []
        self._selected: list[FieldMeta] | None = None
        self._includes: dict[str, dict[str, None]] = {}
        self._token: str | None = None
        self._page_number: int | None = None
        self._page_size = query.limit
        self._text: str | None = None

    def read(self, query_string: bytes) -> Query:
        for key, value in pairs(query_string):
            handle = _PARAMETERS.get(key)
            if handle is not None:
                handle(self, value)
            elif key.startswith("filter["):
                self._group(key, value)
            elif (meant := _misspelt(key)) is not None:
                raise InvalidQuery(f"there is no parameter {key!r}; did you mean {meant!r}?")
        self._check_sizes()
        groups = (AnyOf(tuple(group)) for group in self._groups.values())
        query = self._query.with_(
            page=self._page_number or 1,
            limit=self._page_size,
            filters=(*self._filters, *groups),
            sorts=tuple(self._sorts),
            includes=tuple(self._include(name, tuple(inner)) for name, inner in self._includes.items()),
            select=None if self._selected is None else tuple(dict.fromkeys(self._selected)),
            search=self._text,
        )
        if self._token is None:
            return query
        place = cursor.read(self._token, query, paged=self._page_number is not None, hiding=self._hiding)
        return query.with_(cursor=place, sorts=())

    # -- parameters --------------------------------------------------------------------------

    def _page(self, text: str) -> None:
        self._page_number = _number("page", text, self._limits.max_page)

    def _limit(self, text: str) -> None:
        # Asking for more than a page may hold gives a full page; `meta.limit` says so.
        self._page_size = min(_number("limit", text, self._limits.max_page), self._limits.max_limit)

    def _filter(self, text: str) -> None:
        self._filters.append(self._condition(text))

    def _group(self, key: str, text: str) -> None:
        match = _GROUP.fullmatch(key)
        if match is None:
            raise InvalidQuery("filter: a group is written filter[0]=field:operator:value")
        self._groups.setdefault(match[1], []).append(self._condition(text))

    def _sort(self, text: str) -> None:
        for term in text.split(","):
            name, _, direction = term.partition(":")
            if direction not in ("", "asc", "desc"):
                raise InvalidQuery(f"sort: {direction!r} is neither asc nor desc")
            path, model, last = self._conditions.locate(name)
            field = None if model is None else model.by_api.get(last)
            to_one = all(r.kind is RelationKind.BELONGS_TO for r in path)
            is_open = field is not None and field.sortable and not field.secret and to_one
            if field is None or not is_open or self._hiding.closes(field):
                hint = f"; descending order is written {name[1:]}:desc" if name[:1] == "-" else ""
                raise InvalidQuery(f"sort: {name!r} is not a field that can be sorted by{hint}")
            self._sorts.append(Sort(field, direction == "desc", path))

    def _select(self, text: str) -> None:
        self._selected = self._selected or []
        for name in text.split(","):
            field = self._query.model.by_api.get(name)
            if field is None or not field.visible or self._hiding.hides(field):
                raise InvalidQuery(f"select: {name!r} is not a field")
            self._selected.append(field)

    def _add_includes(self, text: str) -> None:
        for name in text.split(","):
            first, dot, rest = name.partition(".")
            inner = self._includes.setdefault(first, {})
            if dot:
                inner[rest] = None

    def _search(self, text: str) -> None:
        fields = [f for f in self._query.model.fields if f.searchable and not f.secret]
        if len(fields) == len([f for f in fields if self._hiding.closes(f)]):
            raise InvalidQuery("q: these records cannot be searched")
        if len(text) > self._limits.search_length:
            raise InvalidQuery(f"q: at most {self._limits.search_length} characters")
        self._text = text.strip() or None

    def _cursor(self, text: str) -> None:
        self._token = text

    def _refuse_as_of(self, text: str) -> None:
        """Reads of the past take it out of the query string before the rest is read."""
        raise InvalidQuery("as_of: only records and lists of versioned models can be read as they were")

    # -- parts -------------------------------------------------------------------------------

    def _condition(self, text: str) -> Compare:
        name, colon, rest = text.partition(":")
        word, second, value = rest.partition(":")
        rule = operator(word)
        if not colon or (rule is not None and not second and rule.takes is not Takes.NOTHING):
            raise InvalidQuery("filter: write it as field:operator:value")
        return self._conditions.condition(name, word, value, "filter")

    def _include(self, name: str, inner: tuple[str, ...]) -> Include:
        return self._build_include(name, inner, self._query.model, self._limits.include_depth)

    def _build_include(self, name: str, inner: tuple[str, ...], model: ModelMeta, depth: int) -> Include:
        relation = model.relations.get(name)
        target = None if relation is None else self._query.models.get(relation.target)
        is_open = relation is not None and shows(
            model, relation, self._query.models, hides=self._hiding.hides
        )
        if relation is None or target is None or depth < 1 or not is_open:
            raise InvalidQuery(f"include: {name!r} is not a relation that can be included")
        below: dict[str, dict[str, None]] = {}
        for item in inner:
            first, dot, rest = item.partition(".")
            more = below.setdefault(first, {})
            if dot:
                more[rest] = None
        return Include(
            relation, tuple(self._build_include(n, tuple(i), target, depth - 1) for n, i in below.items())
        )

    def _check_sizes(self) -> None:
        in_groups = sum(len(group) for group in self._groups.values())
        for parameter, size, most in (
            ("filter", len(self._filters) + in_groups, self._limits.filters),
            ("filter groups", len(self._groups), self._limits.groups),
            ("sort", len(self._sorts), self._limits.sorts),
            ("select", len(self._selected or ()), self._limits.selects),
            ("include", sum(1 + len(i) for i in self._includes.values()), self._limits.includes),
        ):
            if size > most:
                raise InvalidQuery(f"{parameter}: at most {most}")


_PARAMETERS: dict[str, Callable[[_QueryReader, str], None]] = {
    "page": _QueryReader._page,
    "limit": _QueryReader._limit,
    "filter": _QueryReader._filter,
    "sort": _QueryReader._sort,
    "select": _QueryReader._select,
    "include": _QueryReader._add_includes,
    "q": _QueryReader._search,
    "cursor": _QueryReader._cursor,
    "as_of": _QueryReader._refuse_as_of,
}


def _slips(name: str) -> Iterator[str]:
    """A short name with two letters swapped or one doubled; with one left out it may be a word: sot, pae."""
    for i, letter in enumerate(name):
        yield name[:i] + name[i + 1 : i + 2] + letter + name[i + 2 :]
        yield name[:i] + letter + name[i:]


# Any other letter in a name of four makes another word: age, pace, port, short. So does this slip, in Dutch.
_SHORT_NAMES = {slip: name for name in ("page", "sort") for slip in _slips(name) if slip != "soort"}
_LONG_NAMES = [name for name in _PARAMETERS if len(name) > 4]
_AROUND = punctuation + whitespace  # _page, $sort


def _misspelt(key: str) -> str | None:
    """The parameter that was surely meant; others, such as `age`, are left to the application."""
    name = key.lower().partition("[")[0].strip(_AROUND)
    for meant in (name, name.removesuffix("s"), _SHORT_NAMES.get(name)):
        if meant in _PARAMETERS and (meant != "q" or key == "Q"):  # not _q, qs
            return meant
    near = [known for known in _LONG_NAMES if abs(len(known) - len(name)) < 2]
    return next(iter(get_close_matches(name, near, n=1, cutoff=0.8)), None)


def _number(key: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or not 1 <= int(text) <= most:
        raise InvalidQuery(f"{key}: a whole number from 1 to {most}")
    return int(text)
