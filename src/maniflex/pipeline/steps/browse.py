"""Lists for the panel: pages by any order without a total, counts up to a limit, deleted rows.

These steps take what the list grammar of the API takes, and a `PageRequest` in the scope of the request,
which only code of this process can put there. Scopes, policies and redactions bind them like a list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from maniflex.db.port import Row
from maniflex.model.meta import FieldMeta
from maniflex.model.texts import compared_value, stored_field
from maniflex.pipeline.context import Context
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.db import Database, listing_of
from maniflex.query.operators import Op
from maniflex.query.query import AnyOf, Compare, Filter, Query, Sort

PAGE = "maniflex.page"  # in the scope of such a request: its PageRequest


@dataclass(slots=True)
class PageRequest:
    """Which page is asked for; the steps note here where the walk goes on."""

    limit: int
    after: tuple[Any, str] | None = None  # the sort value and the id of a row
    backwards: bool = False
    page: int = 1  # instead of a place in the walk
    deleted: bool = False  # the deleted rows alone
    filters: tuple[tuple[str, str, Any], ...] = ()  # of the panel: field, operator, typed value
    keyset: bool = True
    oldest_first: bool = False  # by id, where the query has no order of its own
    more: bool = False
    first: tuple[Any, str] | None = None
    last: tuple[Any, str] | None = None


class Browse(Database):
    """The database step of such lists."""

    async def browse(self, ctx: Context) -> None:
        """Read one page and one row more, which tells whether there are others."""
        page: PageRequest = ctx.scope[PAGE]
        ctx._query = query = self._page_query(ctx.current_query(), page)
        ctx.listing = listing = listing_of(ctx, self.store)
        ctx.budget = budget = self._budget()
        fetched, known_total = await self.store.page(listing, counted=False, budget=budget)
        rows: list[Row] = list(fetched)
        ctx.more = len(rows) > page.limit or page.page * page.limit < known_total
        rows = rows[: page.limit]
        ctx.rows = rows[::-1] if page.backwards else rows
        if query.includes:
            await self._include(ctx, query, ctx.rows, listing.fields, budget)

    async def count_up_to(self, ctx: Context) -> None:
        """Count the rows, and stop behind the limit."""
        page: PageRequest = ctx.scope[PAGE]
        query = self._narrow(ctx.current_query(), page)
        most = page.limit + 1
        ctx.total = await self.store.count(query.filters, scope=query.forced, search=query.search, most=most)

    def answer_count(self, ctx: Context) -> None:
        """Answer with the number that was counted."""
        if ctx.response is None:
            ctx.response = Response(200, ctx.total)

    def note_ends(self, ctx: Context) -> None:
        """Tell the page request where the walk goes on, from rows that the caller may see."""
        page: PageRequest = ctx.scope[PAGE]
        page.more = ctx.more
        rows, listing = ctx.rows, ctx.listing
        ends = ctx.page_ends or ((rows[0], rows[-1]) if rows else None)
        if ends is None or listing is None or not page.keyset or not listing.query.sorts:
            return
        places = {field.name: i for i, field in enumerate(listing.fields)}
        field = listing.query.sorts[0].field
        place = places[stored_field(field).name]
        page.first, page.last = ((compared_value(field, row[place]), row[places["id"]]) for row in ends)

    def _narrow(self, query: Query, page: PageRequest) -> Query:
        for name, op, value in page.filters:
            query = query.with_filter(name, value, op)
        marker = self.store.meta.soft_delete
        if page.deleted and marker is not None:
            condition = (None, Op.NOT_NULL) if marker.timestamp else (True, Op.EQ)
            query = query.with_filter(marker.field, *condition)
        return query

    def _page_query(self, query: Query, page: PageRequest) -> Query:
        query = self._narrow(query, page)
        if self.store.meta.options.backend is not None:  # its order is its own
            return query.with_(limit=page.limit, page=page.page)
        if not page.keyset:  # whether there are more is told by the count
            return query.with_(limit=page.limit, page=page.page)
        sort = query.sorts[0] if query.sorts else Sort(self._id, descending=not page.oldest_first)
        down = sort.descending
        filters = query.filters
        if page.after is not None:
            filters = (*filters, *rows_after(sort.field, down != page.backwards, *page.after, self._id))
        turned = Sort(sort.field, down != page.backwards)
        by_id = Sort(self._id, down != page.backwards)
        sorts = (turned,) if sort.field is self._id else (turned, by_id)
        return query.with_(sorts=sorts, filters=filters, limit=page.limit + 1, page=1)

    @property
    def _id(self) -> FieldMeta:
        return self.store.meta.by_name["id"]


def rows_after(
    field: FieldMeta, descending: bool, value: Any, record_id: str, id_field: FieldMeta
) -> Iterator[Filter]:
    """Conditions for the rows behind the one with this value and id; nulls come first, descending last."""
    further = Op.LT if descending else Op.GT
    behind_id = Compare(id_field, further, record_id)
    if field is id_field:
        yield behind_id
    elif value is None and not descending:  # the other nulls, then everything
        yield AnyOf((Compare(field, Op.NOT_NULL), behind_id))
    elif value is None:
        yield Compare(field, Op.IS_NULL)
        yield behind_id
    else:
        nulls = (Compare(field, Op.IS_NULL),) if descending and field.nullable else ()
        same = Op.LTE if descending else Op.GTE
        yield AnyOf((Compare(field, same, value), *nulls))
        yield AnyOf((Compare(field, further, value), *nulls, behind_id))
