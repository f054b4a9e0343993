"""Writes to a model with policies: the stored row is judged under its lock, in the write's transaction."""

from __future__ import annotations

from functools import partial

from maniflex.db.port import Row
from maniflex.db.unrolled import judged_first
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.policy_table import ModelPolicies, RowPolicies
from maniflex.pipeline.scope import stamp
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
            with judged_first(partial(self._judge_outcome, ctx)):
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
