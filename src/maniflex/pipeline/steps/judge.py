"""The validate step of routes with rules of catalogue entries: one answer names every problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maniflex.errors import Detail, ValidationFailed
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.rules.checks import Draft, ValueRule, judge_all, refusal
from maniflex.pipeline.scope import singleton_id


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

    def _rules_for(self, rules: Sequence[ValueRule], draft: Draft) -> Sequence[ValueRule]:
        if not self._is_update:
            return rules
        names = dict.fromkeys([*draft.values, *draft.refused])
        return [rule for rule in rules if rule.concerns(names)]

    def _draft(self, ctx: Context, problems: Sequence[Detail]) -> Draft:
        body: Mapping[str, Any] = ctx._body or {}
        if not problems and self._is_update and ctx.changes is not None:
            return Draft(ctx.changes, body)
        if not problems and not self._is_update and ctx._record is not None:
            return Draft(ctx._record.__dict__, body)
        return self._draft_of_rest(body, problems)

    def _draft_of_rest(self, body: Mapping[str, Any], problems: Sequence[Detail]) -> Draft:
        """The draft of a body that is refused: the values that break no rule, and defaults."""
        refused_names = {str(problem["field"]).partition(".")[0] for problem in problems}
        rest = {name: value for name, value in body.items() if name not in refused_names}
        by_api = self._model.by_api
        refused_fields = frozenset(by_api[name].name for name in refused_names if name in by_api)
        try:
            values = self._model.validator.patch(rest)
        except ValidationFailed:  # the built-in rules were replaced, and these values pass no rule of ours
            return Draft({}, body, frozenset(by_api[name].name for name in body if name in by_api))
        if not self._is_update:
            defaults = (f for f in self._model.fields if f.has_default and f.default_factory is None)
            values = {**{f.name: f.default for f in defaults if f.name not in refused_fields}, **values}
        return Draft(values, body, refused_fields)

    async def _row_problems(self, ctx: Context, draft: Draft) -> Sequence[Detail]:
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
        return await judge_all(rules, ctx, Draft(outcome, draft.body, draft.refused))
