"""The step behind the database step of routes that show rows with policies: it leaves out what they deny.

It judges rows wherever they came from, so a cached row is judged for each caller anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from maniflex.db.includes import IncludedRow, Related
from maniflex.db.store import Store
from maniflex.pipeline.context import Context
from maniflex.pipeline.policy_table import PolicyTable, RowPolicies


class ShownRows:
    """Judges the rows of one model, and those of other models that came along with them."""

    def __init__(self, store: Store, table: PolicyTable, own: RowPolicies | None) -> None:
        self._store = store
        self._table = table
        self._own = own
        self._counts = own is None or not own.hides_rows

    async def judge_one(self, ctx: Context) -> None:
        """Refuse a record that the caller may not see."""
        if self._own is not None and ctx.row is not None:
            await self._own.require(ctx, self._store.record(ctx.row))
        if ctx.related:
            ctx.related = await keep_allowed(ctx, self._table, ctx.related)

    async def judge_many(self, ctx: Context) -> None:
        """Drop the records that the caller may not see."""
        if self._own is not None and ctx.rows is not None and ctx.listing is not None:
            await self._drop_denied(ctx, self._own, ctx.rows)
        if ctx.related:
            ctx.related = await keep_allowed(ctx, self._table, ctx.related)

    async def _drop_denied(self, ctx: Context, own: RowPolicies, rows: Sequence[Sequence[object]]) -> None:
        assert ctx.listing is not None
        query, record = ctx.listing.query, self._store.record
        places = [i for i, row in enumerate(rows) if await own.allow(ctx, record(row))]
        allowed_rows = [rows[i] for i in places]
        if ctx.related:
            ctx.related = [ctx.related[i] for i in places]
        ctx.rows = allowed_rows
        # Of a page that is denied as a whole the walk goes on behind its last row all the same.
        ends = allowed_rows or rows
        ctx.page_ends = (ends[0], ends[-1]) if ends else None
        if not self._counts:
            if query.cursor is None:
                ctx.more = query.page * (query.limit or 0) < ctx.total
            ctx.total = len(allowed_rows)


async def keep_allowed(ctx: Context, table: PolicyTable, related: Sequence[Related]) -> list[Related]:
    """Related rows without those that policies deny, and without all that came along with these."""
    verdicts: dict[int, bool] = {}
    return [await _allowed_relations(ctx, table, relations, verdicts) for relations in related]


async def _allowed_relations(
    ctx: Context, table: PolicyTable, relations: Related, verdicts: dict[int, bool]
) -> Related:
    allowed: dict[str, IncludedRow | list[IncludedRow]] = {}
    for name, entry in relations.items():
        if isinstance(entry, list):
            allowed[name] = [one for one in entry if await _is_allowed(ctx, table, one, verdicts)]
        elif await _is_allowed(ctx, table, entry, verdicts):
            allowed[name] = entry
    return allowed


async def _is_allowed(
    ctx: Context, table: PolicyTable, entry: IncludedRow, verdicts: dict[int, bool]
) -> bool:
    """Whether the row may be shown; a row that many refer to is judged once."""
    verdict = verdicts.get(id(entry))
    if verdict is None:
        policies = table.get(entry.store.meta.name)
        judges = None if policies is None else policies.of_included
        verdict = judges is None or await judges.allow(ctx, entry.store.record(entry.row))
        verdicts[id(entry)] = verdict
        if verdict and entry.related:
            entry.related = await _allowed_relations(ctx, table, entry.related, verdicts)
    return verdict
