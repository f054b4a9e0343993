"""Read the query string of a list request into a `Query`.

The grammar lives here and nowhere else: the OpenAPI parameters and docs/query/ are made from
`OPERATORS`. Give `parse` the raw query string and a `ModelMeta`; get a value back, or `InvalidQuery`
naming the parameter that was wrong. A field that does not exist, is not opted in or is secret gets
one and the same answer. Parameters that are not part of the grammar are left to the application, unless
they look like a misspelt one of ours, name a field, or mean something in other frameworks: those would be
answered as if they had not been sent. `OwnParameters` says which names the application reads itself, and
whether all others are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from string import punctuation, whitespace
from urllib.parse import unquote_plus

from maniflex._locales import LocaleOptions, locale_code
from maniflex._names import did_you_mean
from maniflex.config import DEFAULT_LIMITS, Limits
from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta, ModelMeta, RelationKind
from maniflex.model.texts import companion_fields, stored_field
from maniflex.query import cursor
from maniflex.query.aggregate import entry_for, show_json
from maniflex.query.conditions import ConditionReader
from maniflex.query.operators import Takes, operator, works_on
from maniflex.query.query import NOTHING, AnyOf, Compare, Filter, Hiding, Include, Models, Query, Sort, shows

_GROUP = re.compile(r"filter\[([0-9]{1,4})\]")


@dataclass(frozen=True, slots=True)
class OwnParameters:
    """The parameters of a model's requests that are no part of the grammar."""

    names: frozenset[str] = frozenset()  # declared by `params=`
    strict: bool = False  # all others are refused
    unnamed: Collection[FieldMeta] = ()  # fields of which no message may tell, for some callers have none
    # What one route of the model alone reads, such as `format`, and that route; the others refuse it by
    # `refuse_misplaced`, because all of them share what was read of a query string.
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    locales: LocaleOptions | None = None  # of a model that shows texts in languages


def parse(
    query_string: bytes,
    model: ModelMeta,
    models: Models | None = None,
    limits: Limits = DEFAULT_LIMITS,
    hiding: Hiding = NOTHING,
    own: OwnParameters = OwnParameters(),
) -> Query:
    """The query a request asks for; to its caller, fields that are hidden or closed do not exist."""
    query = Query(model, {model.name: model} if models is None else models)
    return _QueryReader(query, limits, hiding, own).read(query_string) if query_string else query


def refuse_misplaced(query_string: bytes, model: ModelMeta, own: OwnParameters, taken: str = "") -> None:
    """`InvalidQuery` for a parameter that another route of the model reads; `taken` is what this one does."""
    reader = _QueryReader(Query(model, {model.name: model}), DEFAULT_LIMITS, NOTHING, own)
    for key, value in pairs(query_string):
        if key in own.elsewhere and key != taken and key not in own.names:
            reader.refuse_misplaced(key, value)


def locale_parameter(query_string: bytes) -> str | None:
    """The locale that a query string asks for, in its one form; `InvalidQuery` for what is none."""
    if b"locale" not in query_string and b"%" not in query_string:
        return None
    return _locale([value for key, value in pairs(query_string) if key == "locale"])


def _locale(texts: Sequence[str]) -> str | None:
    if not texts:
        return None
    code = locale_code(texts[0])
    if code is None or len(texts) > 1:
        raise InvalidQuery("locale: one code of a language such as de or pt-BR")
    return code


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

    def __init__(self, query: Query, limits: Limits, hiding: Hiding, own: OwnParameters) -> None:
        self._query = query
        self._own = own
        self._limits = limits
        self._hiding = hiding
        self._conditions = ConditionReader(query, limits, text=True, hiding=hiding)
        self._companions = companion_fields(query.model) if own.locales is not None else {}
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
        parameters = pairs(query_string)
        if self._own.locales is not None:
            code = _locale([value for key, value in parameters if key == "locale"])
            self._conditions.view = self._own.locales.view(code, None)
            parameters = [pair for pair in parameters if pair[0] != "locale"]
        for key, value in parameters:
            handle = PARAMETERS.get(key)
            if handle is not None:
                handle(self, value)
            elif key.startswith("filter["):
                self._group(key, value)
            elif key not in self._own.names and key not in self._own.elsewhere:
                self._refuse_stranger(key, value)
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
        most = self._limits.max_limit
        number = _whole_number(text, self._limits.max_page)
        if number is None:
            raise InvalidQuery(f"limit: a whole number; a page has at most {most} records")
        self._page_size = min(number, most)

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
            field = None if model is None else model.by_api.get(last.partition(".")[0])
            to_one = all(r.kind is RelationKind.BELONGS_TO for r in path)
            if field is None or not to_one or not _is_sortable(field) or self._hiding.closes(field):
                hint = f"; descending order is written {name[1:]}:desc" if name[:1] == "-" else ""
                if not hint and to_one:
                    hint = self._conditions.hint(model, last, _is_sortable, self._hiding.closes)
                raise InvalidQuery(f"sort: {name!r} is not a field that can be sorted by{hint}")
            field = self._conditions.as_text(field, last, "sort")
            self._sorts.append(Sort(field, direction == "desc", path))

    def _select(self, text: str) -> None:
        self._selected = self._selected or []
        for name in text.split(","):
            field = self._query.model.by_api.get(name) or self._companions.get(name)
            if field is None or not field.visible or self._hiding.hides(stored_field(field)):
                hint = self._conditions.hint(self._query.model, name, _is_visible, self._hiding.hides)
                hint = hint or self._hint_of_aggregate(name)
                raise InvalidQuery(f"select: {name!r} is not a field{hint}")
            self._selected.append(field)

    def _hint_of_aggregate(self, name: str) -> str:
        """Where `count` or `sum(total)` is computed, if it is."""
        path, entry = self._own.elsewhere.get("aggregate"), entry_for(name)
        if path is None or entry is None:
            return ""
        return f"; {path} computes it: aggregate={show_json({'select': [entry]})}"

    def _add_includes(self, text: str) -> None:
        for name in text.split(","):
            first, dot, rest = name.partition(".")
            self._check_depth(name)
            inner = self._includes.setdefault(first, {})
            if dot:
                inner[rest] = None

    def _check_depth(self, name: str) -> None:
        """Refuse what goes too deep by that alone, whether or not there is such a relation."""
        levels, most = name.count(".") + 1, self._limits.include_depth
        if levels > most:
            raise InvalidQuery(f"include: {name!r} goes {levels} levels deep, and {most} is the most")

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

    # -- names that are no parameters ----------------------------------------------------------

    def _refuse_stranger(self, key: str, value: str) -> None:
        """Refuse a name that was surely meant for us; with `strict`, any."""
        problem = self._problem_of_field(key, value)
        if problem is None:
            problem = self._problem_of_word(key, value)
        if problem is None and (meant := _misspelt(key)) is not None:
            problem = f"; did you mean {meant!r}?"
        if problem is None and self._own.strict and key:
            problem = did_you_mean(key, {*PARAMETERS, *self._own.names})
        if problem is not None:
            raise InvalidQuery(f"there is no parameter {key!r}{problem}")

    def refuse_misplaced(self, key: str, value: str) -> None:
        """Refuse a name that another route reads, with the line to write for a field of that name."""
        problem = self._problem_of_field(key, value) or ""
        raise InvalidQuery(
            f"there is no parameter {key!r} here{problem}; {self._own.elsewhere[key]} takes it"
        )

    def _problem_of_field(self, key: str, value: str) -> str | None:
        """The line to write for `title=x`, `title__contains=x`, `title[gt]=5` or `title_gte=5`."""
        match = _LOOKUP.fullmatch(key)
        field = self._told_field(key)
        word = "eq"
        if field is None and match is not None:
            field, word = self._told_field(match[1]), _LOOKUP_WORDS.get(match[2].lower(), match[2].lower())
        if field is None:
            return None
        if not field.is_matched or self._hiding.closes(field):
            return f", and {field.api!r} is not a field that can be filtered by"
        rule = operator(word)
        if rule is None or not works_on(rule, field):
            return f"; a filter is written filter={field.api}:operator:value"
        line = f"filter={field.api}:{word}"
        return f"; write {line}" if rule.takes is Takes.NOTHING else f"; write {line}:{_shorten(value)}"

    def _told_field(self, name: str) -> FieldMeta | None:
        """A field of that name that every caller may know of."""
        model = self._query.model
        field = model.by_api.get(name) or model.by_name.get(name)
        is_told = field is not None and (field.is_matched or not field.secret)
        if field is None or not is_told or field in self._own.unnamed or self._hiding.hides(field):
            return None
        return field

    def _problem_of_word(self, key: str, value: str) -> str | None:
        """The line to write for a word of other frameworks: `order=price`, `per_page=50`, `page[size]=50`."""
        bare = key.lower().strip(_AROUND)
        line = _ELSEWHERE.get(_bare_word(bare)) or _ELSEWHERE.get(_bare_word(bare.partition("[")[0]))
        return None if line is None else f"; write {line.format(value=_shorten(value))}"

    # -- parts -------------------------------------------------------------------------------

    def _condition(self, text: str) -> Compare:
        name, colon, rest = text.partition(":")
        word, second, value = rest.partition(":")
        rule = operator(word)
        if not colon or (rule is not None and not second and rule.takes is not Takes.NOTHING):
            raise InvalidQuery("filter: write it as field:operator:value")
        return self._conditions.condition(name, word, value, "filter")

    def _include(self, name: str, inner: tuple[str, ...]) -> Include:
        return self._build_include(name, inner, self._query.model)

    def _build_include(self, name: str, inner: tuple[str, ...], model: ModelMeta) -> Include:
        relation = model.relations.get(name)
        target = None if relation is None else self._query.models.get(relation.target)
        is_open = relation is not None and shows(
            model, relation, self._query.models, hides=self._hiding.hides
        )
        if relation is None or target is None or not is_open:
            raise InvalidQuery(f"include: {name!r} is not a relation that can be included")
        below: dict[str, dict[str, None]] = {}
        for item in inner:
            first, dot, rest = item.partition(".")
            more = below.setdefault(first, {})
            if dot:
                more[rest] = None
        return Include(relation, tuple(self._build_include(n, tuple(i), target) for n, i in below.items()))

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


PARAMETERS: dict[str, Callable[[_QueryReader, str], None]] = {
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


# What others call our parameters, without capitals and underscores, and the line to write here.
_ELSEWHERE = {
    **dict.fromkeys(("order", "orderby", "ordering", "sortby", "sorting"), "sort={value}"),
    **dict.fromkeys(("sortorder", "sortdir", "sortdirection", "orderdir"), "sort=field:desc"),
    **dict.fromkeys(("field", "fields", "columns", "attributes", "projection"), "select={value}"),
    **dict.fromkeys(("expand", "embed", "populate", "preload"), "include={value}"),
    **dict.fromkeys(("offset", "skip", "pageoffset"), "page=2&limit=20"),
    **dict.fromkeys(("pagesize", "perpage", "pagelimit", "maxresults", "resultsperpage"), "limit={value}"),
    **dict.fromkeys(("pagenumber", "pageno", "pagenum", "currentpage"), "page={value}"),
    **dict.fromkeys(("search", "searchterm", "fulltext"), "q={value}"),
    **dict.fromkeys(("where", "filterby"), "filter=field:operator:value"),
    **dict.fromkeys(
        ("pagetoken", "nexttoken", "nextcursor", "startingafter", "endingbefore", "pageafter", "pagecursor"),
        "cursor={value}",
    ),
}
# `title__icontains=x` of Django, `title[gt]=5` of qs and JSON:API, `title_gte=5` of json-server.
_LOOKUP = re.compile(r"([A-Za-z][A-Za-z0-9_]*?)(?:__|\[|_(?=(?:gte|lte|gt|lt|ne|like)\Z))([A-Za-z_]+)\]?")
_LOOKUP_WORDS = {
    "exact": "eq",
    "iexact": "eq",
    "icontains": "contains",
    "startswith": "starts_with",
    "istartswith": "starts_with",
    "endswith": "ends_with",
    "iendswith": "ends_with",
    "isnull": "is_null",
    "nin": "not_in",
    "range": "between",
}
_MOST_SHOWN = 40  # letters of a value, in a message


def _is_sortable(field: FieldMeta) -> bool:
    return field.sortable and not field.secret


def _is_visible(field: FieldMeta) -> bool:
    return field.visible


def _bare_word(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum())


def _shorten(value: str) -> str:
    return value if value and len(value) <= _MOST_SHOWN and value.isprintable() else "…"


def _slips(name: str) -> Iterator[str]:
    """A short name with two letters swapped or one doubled; with one left out it may be a word: sot, pae."""
    for i, letter in enumerate(name):
        yield name[:i] + name[i + 1 : i + 2] + letter + name[i + 2 :]
        yield name[:i] + letter + name[i:]


# Any other letter in a name of four makes another word: age, pace, port, short. So does this slip, in Dutch.
_SHORT_NAMES = {slip: name for name in ("page", "sort") for slip in _slips(name) if slip != "soort"}
_LONG_NAMES = [name for name in PARAMETERS if len(name) > 4]
_AROUND = punctuation + whitespace  # _page, $sort


def _misspelt(key: str) -> str | None:
    """The parameter that was surely meant; others, such as `age`, are left to the application."""
    name = key.lower().partition("[")[0].strip(_AROUND)
    for meant in (name, name.removesuffix("s"), _SHORT_NAMES.get(name)):
        if meant in PARAMETERS and (meant != "q" or key == "Q"):  # not _q, qs
            return meant
    near = [known for known in _LONG_NAMES if abs(len(known) - len(name)) < 2]
    return next(iter(get_close_matches(name, near, n=1, cutoff=0.8)), None)


def _number(key: str, text: str, most: int) -> int:
    number = _whole_number(text, most)
    if number is None:
        raise InvalidQuery(f"{key}: a whole number from 1 to {most}")
    return number


def _whole_number(text: str, most: int) -> int | None:
    """The number from 1 to `most` that the text is; None for anything else."""
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or not 1 <= int(text) <= most:
        return None
    return int(text)
