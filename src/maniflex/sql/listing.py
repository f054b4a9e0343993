"""A query and the statements of its pages, written once and carried along.

Every page is one statement, with its total in the last column of each row; a keyset page counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from maniflex._locales import LocaleView
from maniflex.config import DEFAULT_LIMIT, DEFAULT_LIMITS, Limits
from maniflex.errors import InvalidQuery, UriTooLong
from maniflex.model.meta import FieldMeta, RelationKind
from maniflex.model.texts import TEXT, TextOf, stored_field, text_field
from maniflex.query.parse import OwnParameters, parse, refuse_misplaced
from maniflex.query.query import (
    NOTHING,
    AnyOf,
    AskedFields,
    ClientQuery,
    Cursor,
    Filter,
    Forced,
    Hiding,
    Models,
    Query,
    leaves,
    left_out,
    models_reached,
    search_shape,
)
from maniflex.sql import search
from maniflex.sql.model import ModelSql
from maniflex.sql.select import asks_for_deleted, every_field, sort_key
from maniflex.sql.statement import Compiled, Sql, compile_statement
from maniflex.sql.where import shape, values, where

_MOST_REMEMBERED = 512
_LONGEST_REMEMBERED = 512


BoundKey = tuple["Listing", Forced | LocaleView]
Bound = dict[BoundKey, "Listing"]


class Listing:
    """A query, the fields its rows have, and the statements that were written for it so far.

    Requests with the same query string share one, for as long as no code changes the query.
    """

    __slots__ = (
        "_bound",
        "_model",
        "_parts",
        "_reached",
        "_rows",
        "_versioned_rows",
        "asked",
        "decode_rows",
        "fields",
        "is_refused",
        "query",
    )

    def __init__(
        self,
        model: ModelSql,
        query: Query,
        bound: Bound | None = None,
    ) -> None:
        self._model = model
        self._bound = {} if bound is None else bound  # listings made of others by a condition
        self.query = query
        self.fields: tuple[FieldMeta, ...] = model.meta.fields
        # What turns the stored rows of a page into values; None where they already are.
        self.decode_rows: Callable[[Sequence[Any]], Sequence[Any]] | None = model.decode_rows
        if query.select is not None:
            self.fields = _page_fields(model, query, query.select)
            self.decode_rows = model.rows_decoder(self.fields)
        self._parts: _Parts | None = None
        self._rows: Sql | None = None
        self._versioned_rows: Sql | None = None
        self._reached: tuple[str, ...] | None = None
        self.asked: tuple[FieldMeta, ...] = ()  # of those that may be hidden from its caller
        self.is_refused = False  # it stands for a query string that cannot be read

    def with_query(self, query: Query) -> Listing:
        """The listing of a query that code has made of this one; what the two have in common is kept."""
        own = self.query
        if (
            query.filters is not own.filters
            or query.sorts is not own.sorts
            or query.page != own.page
            or query.limit != own.limit
            or query.select is not own.select
            or query.search is not own.search
            or query.cursor is not own.cursor
            or query.includes is not own.includes
        ):
            return Listing(self._model, query, self._bound)
        if self._parts is None:
            self._parts = _Parts(self._model, own, self.fields)
        listing = Listing.__new__(Listing)
        listing._model, listing.query, listing._parts = self._model, query, self._parts
        listing.fields, listing.decode_rows = self.fields, self.decode_rows
        listing._bound = self._bound
        listing._rows = listing._versioned_rows = listing._reached = None
        listing.asked, listing.is_refused = self.asked, self.is_refused
        return listing

    def with_all_fields(self) -> Listing:
        """The same rows with every field, for code that looks at more of them than is shown."""
        listing = Listing(self._model, self.query, self._bound)
        listing.fields, listing.decode_rows = self._model.meta.fields, self._model.decode_rows
        return listing

    def within(self, condition: Forced) -> Listing:
        """The listing inside one condition more; requests that are bound alike share it too."""
        key: BoundKey = (self, condition)
        listing = self._bound.get(key)
        if listing is None:
            query = self.query.with_(forced=(*self.query.forced, condition))
            listing = self.with_query(query)
            if len(self._bound) >= _MOST_REMEMBERED:
                self._bound.pop(next(iter(self._bound)), None)
            self._bound[key] = listing
        return listing

    def in_view(self, view: LocaleView) -> Listing:
        """The listing as a request sees it that asks for a language in its header, and not in this text."""
        query = self.query
        if view.by_parameter or not view.locale or not any(_depends_on_view(query)):
            return self
        key: BoundKey = (self, view)
        listing = self._bound.get(key)
        if listing is None:
            filters = tuple(_filter_in_view(item, view) for item in query.filters)
            sorts = tuple(replace(sort, field=_field_in_view(sort.field, view)) for sort in query.sorts)
            listing = self.with_query(query.with_(filters=filters, sorts=sorts))
            listing.asked, listing.is_refused = self.asked, self.is_refused
            if len(self._bound) >= _MOST_REMEMBERED:
                self._bound.pop(next(iter(self._bound)), None)
            self._bound[key] = listing
        return listing

    def rows(self) -> Sql:
        """One page; without a cursor, the last column of every row is the total over all pages."""
        if self._rows is None:
            self._rows = self._write()
        return self._rows

    def versioned_rows(self) -> Sql:
        """As `rows`, with the version of the row in the column behind the fields."""
        if self._versioned_rows is None:
            self._versioned_rows = self._write(versioned=True)
        return self._versioned_rows

    def uncounted_rows(self, *, versioned: bool = False) -> Sql:
        """As `rows` or `versioned_rows`, without the total."""
        return self._write(counted=False, versioned=versioned)

    def _write(self, *, counted: bool = True, versioned: bool = False) -> Sql:
        model, query, parts = self._model, self.query, self._parts
        if parts is None:
            self._parts = parts = _Parts(model, query, self.fields)
        scope = query.forced
        key = (parts.shape, shape((), scope) if scope else (), counted, versioned)
        statement = model.shapes.get(key, _page, model, query, self.fields, parts, counted, versioned)
        if not scope:
            return statement.bind(parts.values)
        return statement.bind({**values(model, (), scope, statement.order), **parts.values})

    @property
    def reached(self) -> tuple[str, ...]:
        """The names of the models that the query touches besides its own."""
        if self._reached is None:
            self._reached = models_reached(self.query, self.query.includes)
        return self._reached


def _depends_on_view(query: Query) -> Iterator[bool]:
    """Of each field that is compared or sorted by, whether the language of the request decides what it is."""
    fields = [*(item.field for item in leaves(query.filters)), *(sort.field for sort in query.sorts)]
    for field in fields:
        text: TextOf | None = field.extra.get(TEXT)
        yield text is not None and text.is_shown


def _field_in_view(field: FieldMeta, view: LocaleView) -> FieldMeta:
    text: TextOf | None = field.extra.get(TEXT)
    return field if text is None or not text.is_shown else text_field(text.field, view.locale)


def _filter_in_view(item: Filter, view: LocaleView) -> Filter:
    if isinstance(item, AnyOf):
        return AnyOf(tuple(replace(one, field=_field_in_view(one.field, view)) for one in item.conditions))
    return replace(item, field=_field_in_view(item.field, view))


class Listings:
    """The listings of one model by query string, as far as they were asked for lately."""

    def __init__(
        self,
        model: ModelSql,
        models: Models | None = None,
        limits: Limits = DEFAULT_LIMITS,
        *,
        must_bind: bool = False,
    ) -> None:
        self._model = model
        self._models = models
        self._limits = limits
        self._must_bind = must_bind
        self.guarded: Collection[FieldMeta] = ()  # fields in reach that may be hidden from a caller
        self.own = OwnParameters()
        self._listings: dict[bytes, Listing] = {}
        self._bound: Bound = {}
        self._bound_by_text: dict[tuple[bytes, Forced], Listing] = {}

    def get(self, query_string: bytes) -> Listing:
        """The listing that all requests with this text share."""
        listing = self._listings.get(query_string)
        return self._add(query_string) if listing is None else listing

    def read(self, query_string: bytes) -> Listing:
        """As `get`, but a query string that cannot be read is refused here, because no later step does it."""
        listing = self.get(query_string)
        if listing.is_refused:
            self.parse(query_string, NOTHING)
        return listing

    def within(self, query_string: bytes, condition: Forced) -> Listing:
        """The same inside one condition, which many requests are bound by alike."""
        listing = self._bound_by_text.get((query_string, condition))
        if listing is None:
            listing = self.get(query_string).within(condition)
            if len(query_string) <= _LONGEST_REMEMBERED:
                if len(self._bound_by_text) >= _MOST_REMEMBERED:
                    self._bound_by_text.pop(next(iter(self._bound_by_text)), None)
                self._bound_by_text[query_string, condition] = listing
        return listing

    def _add(self, query_string: bytes) -> Listing:
        if len(query_string) > self._limits.uri_length:
            raise UriTooLong(f"a query string has at most {self._limits.uri_length} bytes")
        asked = AskedFields(self.guarded) if self.guarded else None
        try:
            query = self.parse(query_string, NOTHING if asked is None else asked)
        except InvalidQuery:
            if asked is None:
                raise
            # What is wrong with it depends on the caller, who is not known everywhere it is asked for.
            listing = Listing(self._model, self.parse(b"", NOTHING), self._bound)
            listing.is_refused = True
            return listing
        listing = Listing(self._model, query, self._bound)
        if asked is not None:
            listing.asked = tuple(asked.asked)
        if len(query_string) <= _LONGEST_REMEMBERED:
            if len(self._listings) >= _MOST_REMEMBERED:
                self._listings.pop(next(iter(self._listings)), None)
            self._listings[query_string] = listing
        return listing

    def parse(self, query_string: bytes, hiding: Hiding) -> Query:
        """What a caller asks for with this text, to whom some fields do not exist."""
        query = parse(query_string, self._model.meta, self._models, self._limits, hiding, self.own)
        return query.with_(must_bind=self._must_bind)

    def parse_conditions(self, filters: Iterable[str], sorts: Iterable[str], hiding: Hiding) -> ClientQuery:
        """Filters and sorts of a client on the fields of the model itself; those of others stay closed."""
        pairs = [*(("filter", text) for text in filters), *(("sort", text) for text in sorts)]
        limits = replace(self._limits, path_depth=0)
        text = urlencode(pairs).encode()
        return ClientQuery(parse(text, self._model.meta, self._models, limits, hiding))

    def refuse_misplaced(self, query_string: bytes, taken: str = "") -> None:
        """`InvalidQuery` for a parameter that another route of the model reads, and not this one."""
        if query_string and self.own.elsewhere:
            refuse_misplaced(query_string, self._model.meta, self.own, taken)


class _Parts:
    """What a query asks for besides its scope: what of it decides the text, and its values."""

    __slots__ = ("is_later", "shape", "size", "values")

    def __init__(self, model: ModelSql, query: Query, fields: tuple[FieldMeta, ...]) -> None:
        place, limit = query.cursor, query.limit
        # The common page size stands in the text, so that Postgres can plan for it.
        self.size = limit if place is None and (limit is None or limit == DEFAULT_LIMIT) else "any"
        self.is_later = query.page > 1 and limit is not None
        self.shape = (
            "page",
            self.size,
            self.is_later,
            shape(query.filters, ()),
            tuple([(s.field.name, s.descending, tuple([r.name for r in s.path])) for s in query.sorts]),
            None if query.select is None else tuple([f.name for f in fields]),
            search_shape(query.search),
            _cursor_shape(place),
        )
        self.values = arguments = values(model, query.filters, (), ())
        size = limit or 0
        arguments["limit"] = size + 1 if place is not None else size
        arguments["offset"] = (query.page - 1) * size
        if place is not None and place.after is not None:
            arguments["after"] = model.encode_comparable(place.field, place.after[0])
            arguments["after_id"] = place.after[1]
        if query.search is not None:
            arguments["q"] = search.query_text(model, query.search)


def _page_fields(model: ModelSql, query: Query, select: Sequence[FieldMeta]) -> tuple[FieldMeta, ...]:
    """The selected fields, and those that includes and cursors need."""
    names = {"id", *(stored_field(f).name for f in select)}
    names |= {
        i.relation.key
        for i in query.includes
        if i.relation.kind is RelationKind.BELONGS_TO and i.relation.key
    }
    if query.cursor is not None:
        names.add(query.cursor.field.name)
    return tuple(f for f in model.meta.fields if f.name in names)


def _cursor_shape(cursor: Cursor | None) -> tuple[Any, ...] | None:
    if cursor is None:
        return None
    return (cursor.field.name, cursor.descending, cursor.backwards, cursor.after is not None)


def _page(
    model: ModelSql,
    query: Query,
    fields: tuple[FieldMeta, ...],
    parts: _Parts,
    counted: bool,
    versioned: bool,
) -> Compiled:
    conditions = where(
        model, model.table, query.filters, query.forced, live=not asks_for_deleted(model, query.filters)
    )
    columns: list[Any] = [model.read_column(f) for f in fields]
    if versioned:
        columns.append(model.version)
    source, relevance = _search(model, query, conditions)
    if query.cursor is None:
        total = sa.select(sa.func.count()).select_from(source).where(*conditions).correlate(None)
        if counted:
            columns.append(total.scalar_subquery().label("total"))
        statement = sa.select(*columns).select_from(source).where(*conditions)
        statement = statement.order_by(*relevance, *_order(model, query))
    else:
        statement = sa.select(*columns).where(*conditions, *_after(model, query.cursor))
        statement = statement.order_by(*_walk_order(model, query.cursor))
    if parts.size is not None:
        statement = statement.limit(
            sa.literal_column(str(parts.size))
            if isinstance(parts.size, int)
            else sa.bindparam("limit", type_=sa.Integer())
        )
        # Said even where it is nothing, because SQLAlchemy adds a parameter of its own on SQLite.
        statement = statement.offset(
            sa.bindparam("offset", type_=sa.Integer()) if parts.is_later else sa.literal_column("0")
        )
    return compile_statement(statement, model.dialect)


def _search(
    model: ModelSql, query: Query, conditions: list[sa.ColumnElement[bool]]
) -> tuple[FromClause, list[sa.ColumnElement[Any]]]:
    """Narrow the conditions to matches of the search; gives the source of rows and the order by relevance."""
    if query.search is None:
        return model.table, []
    if query.cursor is not None or query.sorts:
        conditions.append(search.matches(model, left_out(query.search)))
        return model.table, []
    hits = search.ranked_matches(model, query.forced, left_out(query.search))
    conditions += hits.conditions
    return hits.source, [hits.order]


def _after(model: ModelSql, cursor: Cursor) -> list[sa.ColumnElement[bool]]:
    if cursor.after is None:
        return []
    here: Any = sa.tuple_(model.comparison_column(cursor.field), model.id)
    there = sa.tuple_(sa.bindparam("after"), sa.bindparam("after_id"))
    return [here < there if cursor.descending != cursor.backwards else here > there]


def _walk_order(model: ModelSql, cursor: Cursor) -> list[sa.ColumnElement[Any]]:
    columns = (model.comparison_column(cursor.field), model.id)
    down = cursor.descending != cursor.backwards
    return [column.desc() if down else column.asc() for column in columns]


def _order(model: ModelSql, query: Query) -> list[sa.ColumnElement[Any]]:
    keys = [sort_key(model, s, query.forced) for s in query.sorts]
    if model.id is None:
        keys += [sort_key(model, s, ()) for s in every_field(model)]
    elif not any(s.field.name == "id" and not s.path for s in query.sorts):
        keys.append(model.id.desc() if query.sorts and query.sorts[-1].descending else model.id.asc())
    return keys
