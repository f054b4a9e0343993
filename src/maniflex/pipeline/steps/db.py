"""The operation itself: what was asked becomes one statement, or a few in one transaction."""

from __future__ import annotations

from collections.abc import Callable

from maniflex.db.current import current_tx, transaction
from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.errors import Abort, DatabaseError, PreconditionFailed
from maniflex.pipeline.context import Context
from maniflex.pipeline.wire import Wire

SINGLETON_ID = "singleton"


class Database:
    """The database step of one model."""

    def __init__(self, store: Store, wire: Wire, find_store: Callable[[str], Store]) -> None:
        self._store = store
        self._wire = wire
        self._find_store = find_store
        self._optimistic = bool(store.meta.options.optimistic_lock)
        self._lock_scopes = tuple((f.name, f.lock_scope) for f in store.meta.fields if f.lock_scope)
        self._validator = store.meta.validator

    async def read(self, ctx: Context) -> None:
        ctx.row = await self._store.read(ctx.resource_id)

    async def list(self, ctx: Context) -> None:
        ctx.rows, ctx.total = await self._store.page(ctx.query)

    async def create(self, ctx: Context) -> None:
        if ctx._record is None:  # somebody replaced the validate step; types still have to fit
            ctx._record = self._validator.create(ctx._body.values_ if ctx._body is not None else {})
        for name, target in self._lock_scopes:
            await self._lock_scope(ctx, name, target or "")
        if ctx.resource_id:
            ctx.record.__dict__["id"] = ctx.resource_id  # the framework's, whatever middleware did to it
        ctx.row = await self._store.create(ctx.record)

    async def _lock_scope(self, ctx: Context, name: str, target: str) -> None:
        scope = self._find_store(target)
        tx = current_tx(scope.adapter)
        if tx is None:
            cause = DatabaseError(f"{ctx.model.name}.{name} has lock_scope; register with_transaction()")
            raise Abort(500, "LOCK_SCOPE_NO_TX", "the request could not be completed") from cause
        value = getattr(ctx.record, name)
        if value is not None:
            await scope.lock(value, tx=tx)

    async def update(self, ctx: Context) -> None:
        if ctx.changes is None:  # somebody replaced the validate step; types still have to fit
            ctx.changes = self._validator.patch(ctx._body.values_ if ctx._body is not None else {})
        changes = ctx.changes
        wanted = ctx.header("if-match") if self._optimistic else None
        if wanted is None and not self._validator.has_model_validators:
            if changes:
                ctx.row = await self._store.update(ctx.resource_id, changes)
            else:
                ctx.row = self._unlocked(await self._store.read(ctx.resource_id))
            return
        ctx.row = await self._store.revise(
            ctx.resource_id, changes, check=lambda row: self._check_version(row, wanted)
        )

    async def delete(self, ctx: Context) -> None:
        ctx.reached = True
        wanted = ctx.header("if-match") if self._optimistic else None
        if wanted is None:
            await self._store.delete(ctx.resource_id)
            return
        async with transaction(self._store.adapter) as tx:
            self._check_version(await self._store.lock(ctx.resource_id, tx=tx), wanted)
            await self._store.delete(ctx.resource_id, tx=tx)

    async def read_singleton(self, ctx: Context) -> None:
        ctx.resource_id = SINGLETON_ID
        await self._provision()
        await self.read(ctx)

    async def update_singleton(self, ctx: Context) -> None:
        ctx.resource_id = SINGLETON_ID
        await self._provision()
        await self.update(ctx)

    async def _provision(self) -> None:
        """Make the one row from its defaults; two at once make it once."""
        if await self._store.find(SINGLETON_ID) is None:
            await self._store.provision(self._validator.create_from_code({"id": SINGLETON_ID}))

    def _unlocked(self, row: Row) -> Row:
        locked = self._store.locked(row)
        if locked is not None:
            raise locked
        return row

    def _check_version(self, row: Row, wanted: str | None) -> None:
        if wanted is None or wanted.strip() == "*":
            return
        tags = [tag.strip() for tag in wanted.split(",")]
        if self._wire.etag(row) not in tags:
            raise PreconditionFailed()
