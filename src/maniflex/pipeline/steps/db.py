"""The operation itself: what was asked becomes one statement, or a few in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from maniflex.db.budget import Budget
from maniflex.db.current import current_tx, transaction
from maniflex.db.includes import load
from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.errors import (
    Abort,
    AnswerTooLarge,
    DatabaseError,
    NotFound,
    PreconditionFailed,
    UnfilledField,
    ValidationFailed,
)
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta
from maniflex.model.texts import has_edits, localized_fields
from maniflex.model.value_rules import detail
from maniflex.pipeline.context import Context
from maniflex.pipeline.response import row_part
from maniflex.pipeline.rules.checks import RowChange, RowCheck, refusal
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.scope import drop_settled, singleton_id, stamp
from maniflex.pipeline.serializer import Serializer, trim_page
from maniflex.query.cursor import require_same_scope
from maniflex.query.query import Narrowed, Query, Scope
from maniflex.sql.listing import Listing


def listing_of(ctx: Context, store: Store) -> Listing:
    """The list that a request asks for now: as its client wrote it, or as code has narrowed and bound it."""
    query = ctx._query or ctx.current_query()
    listing = ctx.client_listing
    if listing is None:  # middleware replaced the deserialize step
        listing = store.listing(query)
    elif listing.query is not query:
        listing = listing.with_query(query)
    if query.select is not None and ctx.runtime.rules[store.meta.cls].judges_rows:
        return listing.with_all_fields()  # a policy looks at whole records
    return listing


class Database:
    """The database step of one model."""

    def __init__(
        self, store: Store, serializer: Serializer, runtime: Runtime, checks: Sequence[RowCheck] = ()
    ) -> None:
        self._checks = tuple(checks)
        self._limits = store.meta.options.limits or runtime.config.limits
        self._most = self._limits.answer_size
        self.store = store
        self._serializer = serializer
        self._runtime = runtime
        self._optimistic = bool(store.meta.options.optimistic_lock)
        self._lock_scopes = tuple((f.name, f.lock_scope) for f in store.meta.fields if f.lock_scope)
        self._validator = store.meta.validator
        self._create = store.meta.create_record
        self._has_texts = bool(localized_fields(store.meta))
        self._filled = tuple(sorted(store.meta.names_to_fill))
        # A list binds the rows that a filter reaches by their own scopes. A backend reaches no others, and
        # what it lists may not be the record that was asked for.
        self._lists_filtered_reads = store.meta.options.backend is None

    async def read(self, ctx: Context) -> None:
        query = ctx._query
        if query is None:
            ctx.row = await self.store.read(ctx.resource_id)
            return
        if query.search is not None or (query.filters and self._lists_filtered_reads):
            row = await self._matching(ctx.resource_id, query)
        else:
            row = await self.store.read(ctx.resource_id, scope=self.touchable(ctx))
        ctx.row = row
        if query.includes:
            ctx.budget = budget = self._budget()
            await self._include(ctx, query, [row], self.store.meta.fields, budget)

    async def _matching(self, record_id: str, query: Query) -> Row:
        """The row of that id, which a filter or a search may leave out as it would from a list."""
        lookup = query.with_(sorts=(), select=None, cursor=None, page=1, limit=1).with_filter("id", record_id)
        marker = self.store.meta.soft_delete
        if marker is not None:  # a list shows deleted rows to a filter that names the marker; a read does not
            lookup = lookup.with_filter(marker.field, None if marker.timestamp else False)
        rows, _ = await self.store.page(self.store.listing(lookup), counted=False)
        if not rows:
            raise NotFound(model=self.store.meta.name, record_id=record_id)
        return rows[0][: len(self.store.meta.fields)]

    async def list(self, ctx: Context) -> None:
        ctx.listing = listing = listing_of(ctx, self.store)
        query, budget = listing.query, self._budget()
        page = None
        try:
            page = await self.store.page(listing, budget=budget)
        except AnswerTooLarge as refused:
            if not budget.is_small:
                raise
            refused.__traceback__ = None  # its frames have the rows that were read
        if page is None:
            budget = Budget(budget.most)
            async with self._runtime.large_reads:
                page = await self.store.page(listing, budget=budget)
        rows, ctx.total = page
        if query.cursor is not None:
            require_same_scope(query)
            rows, ctx.more = trim_page(rows, query)
        elif not self.store.counts:
            ctx.more = query.page * (query.limit or 0) < ctx.total
        ctx.rows, ctx.budget = rows, budget
        if query.includes:
            await self._include(ctx, query, rows, listing.fields, budget)

    def _budget(self) -> Budget:
        """The bytes a read may bring at once; what turns out to need more is read again in its turn.

        So however many ask for much at the same time, only a few have it in memory.
        """
        # A read that is stopped may end the transaction, so that there is no other try.
        return Budget(self._most, small=current_tx(self.store.adapter) is None)

    async def _include(
        self, ctx: Context, query: Query, rows: Sequence[Row], fields: Sequence[FieldMeta], budget: Budget
    ) -> None:
        most, size_before = self._limits.included_rows, budget.used
        read = partial(load, self.store, rows, fields, query.includes, query.forced, most=most)
        try:
            ctx.related = await read(budget=budget)
            return
        except AnswerTooLarge as error:
            if not budget.is_small:
                raise
            error.__traceback__ = None
        budget.grow(size_before)
        async with self._runtime.large_reads:
            ctx.related = await read(budget=budget)

    async def create(self, ctx: Context) -> None:
        record, scope = self._record_to_store(ctx)
        for name, target in self._lock_scopes:
            await self._lock_scope(ctx, name, target or "")
        ctx.row = await self.store.create(record, scope=scope, guard=ctx.write_guard)

    @property
    def takes_guard(self) -> bool:
        """Whether a create outside a transaction takes a statement that has to find its row."""
        return not self._lock_scopes and self.store.has_transactions

    def _record_to_store(self, ctx: Context) -> tuple[Model, Scope]:
        record, query = ctx._record, ctx._query
        if record is None:  # middleware replaced the validate step; types still have to fit
            values = ctx._body.values_ if ctx._body is not None else {}
            ctx._record = record = self._create(values)
        if self._filled:
            self._require_filled(record)
        scope = () if query is None else query.forced
        if scope:
            stamp(self.store.meta, scope, record.__dict__)
        if ctx._new_id:
            record.__dict__["id"] = ctx._new_id  # the framework's, whatever middleware did to it
        return record, scope

    def _require_filled(self, record: Model) -> None:
        """Refuse a record without what the server was to fill; a client is asked for what it can send."""
        meta = self.store.meta
        fields = [meta.by_name[name] for name in self._filled if record.__dict__.get(name) is None]
        for field in fields:
            if field.name in meta.closed:
                raise UnfilledField(
                    f"{meta.name}.{field.name} is filled by the server, and nothing filled it"
                )
        if fields:
            problems = [detail(field.api, "required", "is required") for field in fields]
            raise refusal(meta, problems)

    async def _lock_scope(self, ctx: Context, name: str, target: str) -> None:
        scope = self._runtime.store(target)
        tx = current_tx(scope.adapter)
        if tx is None:
            cause = DatabaseError(f"{ctx.model.name}.{name} has lock_scope; register with_transaction()")
            raise Abort(500, "LOCK_SCOPE_NO_TX", "the request could not be completed") from cause
        value = getattr(ctx.record, name)
        if value is not None:
            await scope.lock_unchanged(value, tx=tx, scope=ctx.forced)

    async def update(self, ctx: Context) -> None:
        changes = ctx.changes
        if changes is None:  # middleware replaced the validate step; types still have to fit
            values = ctx._body.values_ if ctx._body is not None else {}
            ctx.changes = changes = self._validator.patch(values)
        scope = () if ctx._query is None else self.touchable(ctx)
        if scope:
            stamp(self.store.meta, ctx.forced, changes, only_present=True)
            drop_settled(self.store.meta, ctx.forced, changes)
        if_match = ctx.header("if-match") if self._optimistic else None
        is_apart = self._has_texts and has_edits(changes)  # what they change depends on the stored row
        if if_match is None and not self._validator.has_model_validators and not is_apart:
            if changes:
                ctx.row = await self.store.update(ctx.resource_id, changes, scope=scope)
            else:
                row = self._require_unlocked(await self.store.read(ctx.resource_id, scope=scope))
                ctx.row = await self.store.note_unchanged(ctx.resource_id, row)
            return
        check_version = await self._version_check(ctx)
        ctx.row = await self.store.revise(
            ctx.resource_id, changes, scope=scope, check=lambda row: check_version(row, if_match)
        )

    async def update_checked(self, ctx: Context) -> None:
        """As `update`, for a model with row checks: those it concerns see the row under its lock."""
        if ctx.changes is None:
            ctx.changes = self._validator.patch(ctx._body.values_ if ctx._body is not None else {})
        changes = ctx.changes
        checks = [check for check in self._checks if check.concerns(changes)]
        if not checks:
            await self.update(ctx)
            return
        scope = self.touchable(ctx)
        if scope:
            stamp(self.store.meta, ctx.forced, changes, only_present=True)
            drop_settled(self.store.meta, ctx.forced, changes)
        if_match = ctx.header("if-match") if self._optimistic else None
        after: list[Callable[[], Awaitable[None]]] = []
        check_version = await self._version_check(ctx)

        async def check(row: Row) -> None:
            check_version(row, if_match)
            change = RowChange(vars(self.store.record(row)), changes, after)
            for item in checks:
                await item.look(ctx, change)

        async with ctx.transaction() as tx:
            ctx.row = await self.store.revise(ctx.resource_id, changes, scope=scope, tx=tx, check=check)
            for call in after:
                await call()
            if after:  # they may have changed it further
                ctx.row = await self.store.find(ctx.resource_id, tx=tx) or ctx.row

    async def delete(self, ctx: Context) -> None:
        ctx.deleted = True
        scope = self.touchable(ctx)
        if_match = ctx.header("if-match") if self._optimistic else None
        if if_match is None:
            await self.store.delete(ctx.resource_id, scope=scope)
            return
        async with transaction(self.store.adapter) as tx:
            row = await self.store.lock_unchanged(ctx.resource_id, tx=tx, scope=scope)
            (await self._version_check(ctx))(row, if_match)
            await self.store.delete(ctx.resource_id, scope=scope, tx=tx)

    async def restore(self, ctx: Context, judge: Callable[[Row], Awaitable[None]] | None = None) -> None:
        """Bring a deleted row back; `judge` may refuse it before anything is said of it."""
        # There is no body to read; what middleware stamped is stored along.
        changes = self._validator.patch(ctx._body.values_) if ctx._body is not None else {}
        if ctx.forced:
            stamp(self.store.meta, ctx.forced, changes, only_present=True)
        if_match = ctx.header("if-match") if self._optimistic else None
        check_version = await self._version_check(ctx)

        async def check(row: Row) -> None:
            if judge is not None:
                await judge(row)
            check_version(row, if_match)

        scope = self.touchable(ctx)
        ctx.row = await self.store.restore(ctx.resource_id, changes, scope=scope, check=check)

    def touchable(self, ctx: Context) -> Scope:
        """The rows a request may touch: those it is bound to that code has not filtered out."""
        query = ctx._query
        if query is None or not query.filters:
            return ctx.forced
        return (*query.forced, *(Narrowed(item, self.store.meta.name) for item in query.filters))

    async def read_singleton(self, ctx: Context) -> None:
        await self.provision(ctx)
        await self.read(ctx)

    async def update_singleton(self, ctx: Context) -> None:
        await self.provision(ctx)
        await self.update(ctx)

    async def update_singleton_checked(self, ctx: Context) -> None:
        await self.provision(ctx)
        await self.update_checked(ctx)

    async def provision(self, ctx: Context) -> None:
        """Make the one row of this scope from its defaults; two at once make it once."""
        ctx.resource_id = singleton_id(self.store.meta, ctx.forced)
        if await self.store.find(ctx.resource_id) is None:
            record = self._validator.create_from_code({"id": ctx.resource_id})
            try:
                stamp(self.store.meta, ctx.forced, record.__dict__)
            except ValidationFailed:  # bound by more than equality, so which row is meant is not settled
                raise NotFound() from None
            await self.store.provision(record)

    def _require_unlocked(self, row: Row) -> Row:
        error = self.store.lock_refusal(row)
        if error is not None:
            raise error
        return row

    async def _version_check(self, ctx: Context) -> Callable[[Row, str | None], None]:
        """What compares a row with `If-Match`: the tags a caller knows are of the fields it sees."""
        rules = self._runtime.rules[self.store.meta.cls]
        is_asked = self._optimistic and rules.redactions and ctx.header("if-match") is not None
        serializer = await rules.serializer(ctx) if is_asked else self._serializer
        return partial(_check_version, serializer)


def _check_version(serializer: Serializer, row: Row, if_match: str | None) -> None:
    if if_match is None or if_match.strip() == "*":
        return
    tags = [row_part(tag.strip()) for tag in if_match.split(",")]
    if serializer.etag(row) not in tags:
        raise PreconditionFailed(model=serializer.meta.name)
