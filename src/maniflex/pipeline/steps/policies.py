"""Writes to a model with policies: the stored row is judged under its lock, in the write's transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from maniflex.db.current import judged_first
from maniflex.db.includes import IncludedRow, Related
from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.errors import RequestError
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.rules.policies import ModelPolicies, PolicyTable, RowPolicies
from maniflex.pipeline.scope import TableRule, stamp
from maniflex.pipeline.steps.db import Database


class PolicedWrites:
    """Puts the policies of one model around the steps that write it."""

    def __init__(self, database: Database, policies: ModelPolicies) -> None:
        self._database = database
        self._store = database.store
        self._create = policies.of(Operation.CREATE, item=False)
        self._update = policies.of_stored(Operation.UPDATE)
        self._updated = policies.of(Operation.UPDATE, item=True)
        self._delete = policies.of_stored(Operation.DELETE)

    def around_create(self, write: Default) -> Default:
        """The step that makes a record, which is judged before it is stored."""
        return write if self._create is None else _PolicedCreate(self._database, self._create, write)

    def around_update(self, write: Default) -> Default:
        """The step that changes a record: it must be allowed as it is, and as it becomes."""
        policies = self._update
        if policies is None:
            return write

        write_judged = write if self._store.has_transactions else self._judging_first(write)

        async def update(ctx: Context) -> None:
            if self._store.meta.options.singleton:
                await self._database.provision(ctx)
            async with ctx.transaction():
                await self._judge_stored(ctx, policies)
                await _run(write_judged, ctx)
                await self._judge_written(ctx)

        return update

    def _judging_first(self, write: Default) -> Default:
        """The step for records that no transaction rolls back: what they become is judged before."""

        async def write_judged(ctx: Context) -> None:
            with judged_first(self._store.meta, ctx.resource_id, partial(self._judge_outcome, ctx)):
                await _run(write, ctx)

        return write_judged

    def around_delete(self, write: Default) -> Default:
        """The step that deletes a record."""
        policies = self._delete
        if policies is None:
            return write

        async def delete(ctx: Context) -> None:
            async with ctx.transaction():
                await self._judge_stored(ctx, policies)
                await _run(write, ctx)

        return delete

    def restore(self) -> Default:
        """The step that brings a deleted record back: it must be allowed as it is, and as it becomes."""
        policies = self._update
        if policies is None:
            return self._database.restore

        async def restore(ctx: Context) -> None:
            async def judge(row: Row) -> None:
                await policies.require(ctx, self._store.record(row))

            async with ctx.transaction():
                await self._database.restore(ctx, judge)
                await self._judge_written(ctx)

        return restore

    async def _judge_stored(self, ctx: Context, policies: RowPolicies) -> None:
        tx = ctx.tx
        assert tx is not None
        scope = self._database.touchable(ctx)
        row = await self._store.lock_unchanged(ctx.resource_id, tx=tx, scope=scope)
        await policies.require(ctx, self._store.record(row))

    async def _judge_written(self, ctx: Context) -> None:
        assert ctx.row is not None
        await self._judge_outcome(ctx, ctx.row)

    async def _judge_outcome(self, ctx: Context, row: Row) -> None:
        if self._updated is not None:
            await self._updated.require(ctx, self._store.record(row))


class _PolicedCreate:
    """The create step of a model whose new records are judged."""

    def __init__(self, database: Database, policies: RowPolicies, write: Default) -> None:
        self._meta = database.store.meta
        self._policies = policies
        self._write = write

    async def __call__(self, ctx: Context) -> None:
        if ctx._record is None:  # middleware replaced the validate step; types still have to fit
            values = ctx._body.values_ if ctx._body is not None else {}
            ctx._record = self._meta.validator.create(values)
        if ctx.forced:
            stamp(self._meta, ctx.forced, ctx._record.__dict__)
        # A copy: what a policy does to it is not stored.
        await self._policies.require(ctx, self._meta.cls._from_db(dict(ctx._record.__dict__)))
        await _run(self._write, ctx)


async def _run(step: Default, ctx: Context) -> None:
    outcome = step(ctx)
    if outcome is not None:
        await outcome


# The step behind the database step of routes that show rows with policies: it leaves out what they deny.
#
# It judges rows wherever they came from, so a cached row is judged for each caller anew.


Step = Callable[[Context], Awaitable[None] | None]


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


class WrittenRow:
    """Judges the record that a write has made, where it may be one that its caller may not read.

    A rule for reads does not bind the values that a write stores, so a record may end up outside of the rule;
    then the answer to the write has the id of the record alone.
    """

    def __init__(self, store: Store, *, is_scoped: bool, policies: RowPolicies | None) -> None:
        self._store = store
        self._is_scoped = is_scoped
        self._policies = policies

    async def judge(self, ctx: Context) -> None:
        """Note whether the caller may read the record; the step behind the one that writes it."""
        if ctx.row is None:
            return
        try:
            ctx.tells_id_alone = not await self._is_readable(ctx, ctx.row)
        except RequestError as refusal:  # the record is written, so the write is no longer refused
            ctx.tells_id_alone = True
            if refusal.status >= 500:
                ctx.logger.exception("whether the caller may read what it wrote could not be told")

    async def _is_readable(self, ctx: Context, row: Row) -> bool:
        record = self._store.record(row)
        if self._is_scoped:
            scope = await ctx.scope_of(self._store.meta, Operation.READ)
            if await self._store.find(record.id, scope=scope, tx=ctx.tx) is None:
                return False
        return self._policies is None or await self._policies.allow(ctx, record)

    def around_answer(self, answer: Step, status: int) -> Step:
        """The response step, which answers with the id where the record is not for the caller."""

        def respond(ctx: Context) -> Awaitable[None] | None:
            if ctx.response is not None or not ctx.tells_id_alone or ctx.row is None:
                return answer(ctx)
            ctx.response = Response(status, {"id": self._store.record(ctx.row).id})
            return None

        return respond


def judge_of_written(
    store: Store, rules: Sequence[TableRule], policies: ModelPolicies | None, operation: Operation
) -> WrittenRow | None:
    """What judges the records of such a write; None where rules for reads bind the write itself."""
    is_scoped = any(r.covers(Operation.READ) and not r.covers(operation) for r in rules)
    judges = None if policies is None else policies.of_answer(operation)
    if not is_scoped and judges is None:
        return None
    return WrittenRow(store, is_scoped=is_scoped, policies=judges)


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
