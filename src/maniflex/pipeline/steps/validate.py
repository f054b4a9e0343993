"""The declared rules, applied to what a client sent; every offending field is named at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from maniflex.db.store import Store
from maniflex.errors import Detail, ValidationFailed
from maniflex.model.meta import ModelMeta, RelationKind, RelationMeta
from maniflex.model.value_rules import detail, unknown_field
from maniflex.pipeline.body import Body
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.rules.checks import Problems, RecordDraft, ValueRule, judge_all, refusal
from maniflex.pipeline.scope import singleton_id, stamp_body
from maniflex.pipeline.threads import LARGE

T = TypeVar("T")


class Validate:
    """The validate step of one model."""

    def __init__(self, store: Store) -> None:
        meta = store.meta
        self._store = store
        self._create = meta.create_record
        self._patch = meta.validator.patch
        self._relations = {
            name: relation
            for name, relation in meta.relations.items()
            if name not in meta.by_api and is_known_relation(relation, meta)
        }
        # Relations are looked for along with closed names: a body of ordinary fields pays for neither.
        closed_names = {f.api for f in meta.fields if f.name in meta.closed} | self._relations.keys()
        self._closed_on_create = frozenset(closed_names)
        self._closed_on_update = frozenset(closed_names | {f.api for f in meta.fields if f.immutable})

    def create(self, ctx: Context) -> Awaitable[None] | None:
        body, query, raw_body = ctx._body, ctx._query, ctx.raw_body
        if query is not None and query.forced:
            stamp_body(self._store.meta, query.forced, body)
        values = body.values_
        if not self._closed_on_create.isdisjoint(values):
            ctx.sent_names = tuple(body)
            self._refuse_relations(body, self._create)
            body.strip(self._closed_on_create)
        if raw_body is not None and len(raw_body) > LARGE:
            return self._create_large(ctx, values)
        ctx._record = record = self._create(values)
        ctx._new_id = record.id
        return None

    async def _create_large(self, ctx: Context, values: dict[str, Any]) -> None:
        ctx._record = record = await self._beside_the_loop(ctx, partial(self._create, values))
        ctx._new_id = record.id

    def update(self, ctx: Context) -> Awaitable[None] | None:
        body, raw_body = ctx._body, ctx.raw_body
        values = body.values_
        if not self._closed_on_update.isdisjoint(values):
            ctx.sent_names = tuple(body)
            self._refuse_relations(body, self._patch)
            body.strip(self._closed_on_update)
        if raw_body is not None and len(raw_body) > LARGE:
            return self._update_large(ctx, values)
        ctx.changes = self._patch(values)
        return None

    def _refuse_relations(self, body: Body, validate: Callable[[dict[str, Any]], Any]) -> None:
        """Refuse a body that names relations, with everything else that is wrong with it."""
        names = [name for name in body if name in self._relations]
        if not names:
            return
        problems = [relation_problem(self._relations[name], self._store.meta) for name in names]
        body.strip([*self._closed_on_create, *names])
        try:
            validate(body.values_)
        except ValidationFailed as error:
            problems += error.details or ()  # type: ignore[arg-type]  # of a validator: a list
        raise refusal(self._store.meta, problems)

    async def _update_large(self, ctx: Context, values: dict[str, Any]) -> None:
        ctx.changes = await self._beside_the_loop(ctx, partial(self._patch, values))

    @staticmethod
    async def _beside_the_loop(ctx: Context, validate: Callable[[], T]) -> T:
        return await ctx.runtime.offload.run(len(ctx.raw_body or b""), validate)

    async def update_unless_locked(self, ctx: Context) -> None:
        """Validate an update; a locked record is refused as locked before other mistakes are named."""
        try:
            outcome = self.update(ctx)
            if outcome is not None:
                await outcome
        except ValidationFailed:
            row = await self._store.find(ctx.resource_id, scope=ctx.forced)
            if row is not None:
                await ctx.runtime.rules[self._store.meta.cls].judge_of_changes.require_row(ctx, row)
            error = None if row is None else self._store.lock_refusal(row)
            if error is not None:
                raise error from None
            raise


def is_known_relation(relation: RelationMeta, model: ModelMeta) -> bool:
    """Whether clients may know of the relation: one over a hidden key does not exist to them."""
    key = None if relation.key is None else model.by_name.get(relation.key)
    return relation.kind is not RelationKind.BELONGS_TO or key is None or not key.hidden


def relation_problem(relation: RelationMeta, model: ModelMeta) -> Detail:
    """What a body that names a relation is told."""
    key = None if relation.key is None else model.by_name.get(relation.key)
    if relation.kind is RelationKind.BELONGS_TO and key is not None:
        return detail(relation.name, "relation", f'is a relation; send the id as "{key.api}"')
    return detail(relation.name, "relation", "is a relation, which a body cannot set")


# Keys of a body that name no field: refused by an entry or by the setting `unknown_fields`.


def known_names(model: ModelMeta) -> frozenset[str]:
    """The keys that a body of the model may have; relations have an answer of their own."""
    relations = (name for name, relation in model.relations.items() if is_known_relation(relation, model))
    return frozenset(f.api for f in model.fields if not f.hidden) | frozenset(relations)


class UnknownFields(ValueRule):
    """Refuses every key of the body that names no field."""

    def __init__(self, model: ModelMeta) -> None:
        self._known = known_names(model)
        self._fields = [f.api for f in model.fields if not f.hidden]

    def judge(self, ctx: Context, draft: RecordDraft) -> Problems:
        body = ctx._body
        if body is None:
            return ()
        # A hidden field is refused like one that does not exist, though its key was dropped before.
        names = body if ctx.sent_names is None else ctx.sent_names
        if self._known.issuperset(names):
            return ()
        unknown = [n for n in names if n not in self._known and (n not in body or body.is_from_client(n))]
        return [unknown_field(name, self._fields) for name in unknown if name not in ctx.extra_names]


# The validate step of routes with rules of catalogue entries: one answer names every problem.


class Judge:
    """Runs the built-in rules, if the application has not replaced them, and then those of the entries.

    An update that is refused here is also held against the stored row, so that the answer is complete;
    one that is not refused is held against it by the database step, which locks the row.
    """

    def __init__(
        self,
        model: ModelMeta,
        operation: Operation,
        rules: Sequence[ValueRule],
        built_in: Default | None,
        *,
        writes_rows: bool,
    ) -> None:
        self._model = model
        self._is_update = operation is Operation.UPDATE
        self._built_in = built_in
        self._writes_rows = writes_rows  # otherwise a step of the application's own writes, and locks nothing
        reads_row = [rule for rule in rules if rule.reads_row] if self._is_update else []
        self._row_rules = reads_row
        self._rules = [rule for rule in rules if rule not in reads_row and not rule.is_last]
        self._last = [rule for rule in rules if rule not in reads_row and rule.is_last]

    async def __call__(self, ctx: Context) -> None:
        problems = await self._built_in_problems(ctx)
        draft = self._draft(ctx, problems)
        problems += await judge_all(self._rules_for(self._rules, draft), ctx, draft)
        if self._is_update and (problems or (self._row_rules and not self._writes_rows)):
            problems += await self._row_problems(ctx, draft)
        if problems:
            raise refusal(self._model, problems)
        if self._last:
            problems = await judge_all(self._rules_for(self._last, draft), ctx, draft)
            if problems:
                raise refusal(self._model, problems)

    async def _built_in_problems(self, ctx: Context) -> list[Detail]:
        if self._built_in is None:
            return []
        try:
            outcome = self._built_in(ctx)
            if outcome is not None:
                await outcome
        except ValidationFailed as error:
            return [error.details] if isinstance(error.details, Mapping) else [*(error.details or ())]
        return []

    def _rules_for(self, rules: Sequence[ValueRule], draft: RecordDraft) -> Sequence[ValueRule]:
        if not self._is_update:
            return rules
        names = dict.fromkeys([*draft.values, *draft.refused])
        return [rule for rule in rules if rule.concerns(names)]

    def _draft(self, ctx: Context, problems: Sequence[Detail]) -> RecordDraft:
        body: Mapping[str, Any] = ctx._body or {}
        if not problems and self._is_update and ctx.changes is not None:
            return RecordDraft(ctx.changes, body)
        if not problems and not self._is_update and ctx._record is not None:
            return RecordDraft(ctx._record.__dict__, body)
        return self._draft_of_rest(body, problems)

    def _draft_of_rest(self, body: Mapping[str, Any], problems: Sequence[Detail]) -> RecordDraft:
        """The draft of a body that is refused: the values that break no rule, and defaults."""
        refused_names = {str(problem["field"]).partition(".")[0] for problem in problems}
        rest = {name: value for name, value in body.items() if name not in refused_names}
        by_api = self._model.by_api
        refused_fields = frozenset(by_api[name].name for name in refused_names if name in by_api)
        try:
            values = self._model.validator.patch(rest)
        except ValidationFailed:  # the built-in rules were replaced, and these values pass no rule of ours
            return RecordDraft({}, body, frozenset(by_api[name].name for name in body if name in by_api))
        if not self._is_update:
            defaults = (f for f in self._model.fields if f.has_default and f.default_factory is None)
            values = {**{f.name: f.default for f in defaults if f.name not in refused_fields}, **values}
        return RecordDraft(values, body, refused_fields)

    async def _row_problems(self, ctx: Context, draft: RecordDraft) -> Sequence[Detail]:
        """The problems of the row as it would be; a locked row is refused before anything else."""
        store = ctx.runtime.stores[self._model.cls]
        is_singleton = self._model.options.singleton
        record_id = singleton_id(self._model, ctx.forced) if is_singleton else ctx.resource_id
        row = await store.find(record_id, scope=ctx.forced)
        if row is None:
            return ()
        await ctx.runtime.rules[self._model.cls].judge_of_changes.require_row(ctx, row)
        lock_error = store.lock_refusal(row)
        if lock_error is not None:
            raise lock_error
        rules = self._rules_for(self._row_rules, draft)
        outcome = {**vars(store.record(row)), **draft.values}
        return await judge_all(rules, ctx, RecordDraft(outcome, draft.body, draft.refused))
