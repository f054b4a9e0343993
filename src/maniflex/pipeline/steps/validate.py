"""The declared rules, applied to what a client sent; every offending field is named at once."""

from __future__ import annotations

from maniflex.db.store import Store
from maniflex.errors import ValidationFailed
from maniflex.pipeline.context import Context
from maniflex.pipeline.scope import stamp_body


class Validate:
    """The validate step of one model."""

    def __init__(self, store: Store) -> None:
        meta = store.meta
        self._store = store
        self._create = meta.validator.create
        self._patch = meta.validator.patch
        closed = {f.api for f in meta.fields if f.name in meta.closed}
        self._closed_on_create = frozenset(closed)
        self._closed_on_update = frozenset(closed | {f.api for f in meta.fields if f.immutable})

    def create(self, ctx: Context) -> None:
        body = ctx._body
        if ctx.forced:
            stamp_body(self._store.meta, ctx.forced, body)
        values = body.values_
        if not self._closed_on_create.isdisjoint(values):
            body.strip(self._closed_on_create)
        ctx._record = record = self._create(values)
        ctx._new_id = record.id

    def update(self, ctx: Context) -> None:
        body = ctx._body
        values = body.values_
        if not self._closed_on_update.isdisjoint(values):
            body.strip(self._closed_on_update)
        ctx.changes = self._patch(values)

    async def update_unless_locked(self, ctx: Context) -> None:
        """As `update`, but a locked record says so before it says what else is wrong."""
        try:
            self.update(ctx)
        except ValidationFailed:
            row = await self._store.find(ctx.resource_id, scope=ctx.forced)
            locked = None if row is None else self._store.locked(row)
            if locked is not None:
                raise locked from None
            raise
