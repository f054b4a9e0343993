"""Rows of models with policies: shown ones are judged once they are read, written ones under their lock.

A write is judged in its own transaction, so a row that is denied is not stored.
"""

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
from maniflex.pipeline.rules.model_rules import ModelRules, ServerRules
from maniflex.pipeline.rules.policies import RowJudge
from maniflex.pipeline.scope import stamp
from maniflex.pipeline.steps.db import Database
from maniflex.query.query import Query


class PolicedWrites:
    """Puts the policies of one model around the steps that write it."""

    def __init__(self, database: Database, rules: ModelRules) -> None:
        self._database = database
        self._store = database.store
        self._create = rules.judge(Operation.CREATE, item=False)
        self._update = rules.judge_of_stored(Operation.UPDATE)
        self._updated = rules.judge(Operation.UPDATE, item=True)
        self._delete = rules.judge_of_stored(Operation.DELETE)

    @property
    def judges_creates(self) -> bool:
        """Whether policies judge a record before it is stored."""
        return bool(self._create)

    def around_create(self, write: Default) -> Default:
        """The step that makes a record, which is judged before it is stored."""
        return _PolicedCreate(self._database, self._create, write) if self._create else write

    def around_update(self, write: Default) -> Default:
        """The step that changes a record: it must be allowed as it is, and as it becomes."""
        if not self._update:
            return write

        write_judged = write if self._store.has_transactions else self._judging_first(write)

        async def update(ctx: Context) -> None:
            if self._store.meta.options.singleton:
                await self._database.provision(ctx)
            async with ctx.transaction():
                await self._judge_stored(ctx, self._update)
                await _run(write_judged, ctx)
                await self._judge_written(ctx)

        return update

    def _judging_first(self, write: Default) -> Default:
        """The step for records that no transaction rolls back: what they become is judged before."""

        async def write_judged(ctx: Context) -> None:
            with judged_first(self._store.meta, ctx.resource_id, partial(self._updated.require_row, ctx)):
                await _run(write, ctx)

        return write_judged

    def around_delete(self, write: Default) -> Default:
        """The step that deletes a record."""
        if not self._delete:
            return write

        async def delete(ctx: Context) -> None:
            async with ctx.transaction():
                await self._judge_stored(ctx, self._delete)
                await _run(write, ctx)

        return delete

    def restore(self) -> Default:
        """The step that brings a deleted record back: it must be allowed as it is, and as it becomes."""
        if not self._update:
            return self._database.restore

        async def restore(ctx: Context) -> None:
            async with ctx.transaction():
                await self._database.restore(ctx, partial(self._update.require_row, ctx))
                await self._judge_written(ctx)

        return restore

    async def _judge_stored(self, ctx: Context, judge: RowJudge) -> None:
        tx = ctx.tx
        assert tx is not None
        scope = self._database.touchable(ctx)
        row = await self._store.lock_unchanged(ctx.resource_id, tx=tx, scope=scope)
        await judge.require_row(ctx, row)

    async def _judge_written(self, ctx: Context) -> None:
        assert ctx.row is not None
        await self._updated.require_row(ctx, ctx.row)


class _PolicedCreate:
    """The create step of a model whose new records are judged."""

    def __init__(self, database: Database, judge: RowJudge, write: Default) -> None:
        self._meta = database.store.meta
        self._judge = judge
        self._write = write

    async def __call__(self, ctx: Context) -> None:
        if ctx._record is None:  # middleware replaced the validate step; types still have to fit
            values = ctx._body.values_ if ctx._body is not None else {}
            ctx._record = self._meta.validator.create(values)
        if ctx.forced:
            stamp(self._meta, ctx.forced, ctx._record.__dict__)
        # A copy: what a policy does to it is not stored.
        await self._judge.require(ctx, self._meta.cls._from_db(dict(ctx._record.__dict__)))
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

    def __init__(self, rules: ServerRules, judge: RowJudge) -> None:
        self._rules = rules
        self._judge = judge

    async def judge_one(self, ctx: Context) -> None:
        """Refuse a record that the caller may not see."""
        if ctx.row is not None:
            await self._judge.require_row(ctx, ctx.row)
        if ctx.related:
            ctx.related = await keep_allowed(ctx, self._rules, ctx.related)

    async def judge_many(self, ctx: Context) -> None:
        """Drop the records that the caller may not see."""
        if self._judge and ctx.rows is not None and ctx.listing is not None:
            await self._drop_denied(ctx, ctx.rows, ctx.listing.query)
        if ctx.related:
            ctx.related = await keep_allowed(ctx, self._rules, ctx.related)

    async def _drop_denied(self, ctx: Context, rows: Sequence[Row], query: Query) -> None:
        places = [i for i, row in enumerate(rows) if await self._judge.allows_row(ctx, row)]
        allowed_rows = [rows[i] for i in places]
        if ctx.related:
            ctx.related = [ctx.related[i] for i in places]
        ctx.rows = allowed_rows
        # Of a page that is denied as a whole the walk goes on behind its last row all the same.
        ends = allowed_rows or rows
        ctx.page_ends = (ends[0], ends[-1]) if ends else None
        if self._judge.hides_rows:
            if query.cursor is None:
                ctx.more = query.page * (query.limit or 0) < ctx.total
            ctx.total = len(allowed_rows)


class WrittenRow:
    """Judges the record that a write has made, where it may be one that its caller may not read.

    A rule for reads does not bind the values that a write stores, so a record may end up outside of the rule;
    then the answer to the write has the id of the record alone.
    """

    def __init__(self, store: Store, judge: RowJudge, *, is_scoped: bool) -> None:
        self._store = store
        self._is_scoped = is_scoped
        self._judge = judge

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
        if self._is_scoped:
            scope = await ctx.scope_of(self._store.meta, Operation.READ)
            if await self._store.find(self._store.record(row).id, scope=scope, tx=ctx.tx) is None:
                return False
        return await self._judge.allows_row(ctx, row)

    def around_answer(self, answer: Step, status: int) -> Step:
        """The response step, which answers with the id where the record is not for the caller."""

        def respond(ctx: Context) -> Awaitable[None] | None:
            if ctx.response is not None or not ctx.tells_id_alone or ctx.row is None:
                return answer(ctx)
            ctx.response = Response(status, {"id": self._store.record(ctx.row).id})
            return None

        return respond


def judge_of_written(store: Store, rules: ModelRules, operation: Operation) -> WrittenRow | None:
    """What judges the records of such a write; None where rules for reads bind the write itself."""
    judge, is_scoped = rules.judge_of_answer(operation), rules.is_read_apart(operation)
    return WrittenRow(store, judge, is_scoped=is_scoped) if judge or is_scoped else None


async def keep_allowed(ctx: Context, rules: ServerRules, related: Sequence[Related]) -> list[Related]:
    """Related rows without those that policies deny, and without all that came along with these."""
    verdicts: dict[int, bool] = {}
    return [await _allowed_relations(ctx, rules, relations, verdicts) for relations in related]


async def _allowed_relations(
    ctx: Context, rules: ServerRules, relations: Related, verdicts: dict[int, bool]
) -> Related:
    allowed: dict[str, IncludedRow | list[IncludedRow]] = {}
    for name, entry in relations.items():
        if isinstance(entry, list):
            allowed[name] = [one for one in entry if await _is_allowed(ctx, rules, one, verdicts)]
        elif await _is_allowed(ctx, rules, entry, verdicts):
            allowed[name] = entry
    return allowed


async def _is_allowed(
    ctx: Context, rules: ServerRules, entry: IncludedRow, verdicts: dict[int, bool]
) -> bool:
    """Whether the row may be shown; a row that many refer to is judged once."""
    verdict = verdicts.get(id(entry))
    if verdict is None:
        judge = rules[entry.store.meta.cls].judge_of_included
        verdict = await judge.allows_row(ctx, entry.row)
        verdicts[id(entry)] = verdict
        if verdict and entry.related:
            entry.related = await _allowed_relations(ctx, rules, entry.related, verdicts)
    return verdict
