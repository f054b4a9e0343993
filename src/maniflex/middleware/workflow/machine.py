"""`workflow.machine`: which states of a field may follow which, judged under the lock of the row."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, overload

from maniflex._fence import Fence
from maniflex.db.current import transaction
from maniflex.errors import Abort, DeclarationError, RequestError
from maniflex.middleware.arguments import is_function
from maniflex.middleware.typed_values import plain_value
from maniflex.middleware.validate.rule_entry import RuleEntry
from maniflex.middleware.workflow.rules import (
    Allow,
    AllowInitial,
    OnTransition,
    Rule,
    StateRules,
    dead_rules,
    rules_of,
    state_problems,
)
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.checks import Check, Draft, Problems, RowChange, RowCheck, ValueRule
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Seat, ask, require_field
from maniflex.pipeline.operation import Operation

M = TypeVar("M", bound=Model)


def machine(field: str, *rules: Rule) -> Machine:
    """A state machine on one field: register it on `validate`, for creates and updates."""
    return Machine(field, rules)


class Machine(RuleEntry):
    """A state machine on one field of one model or several."""

    name = "workflow.machine"

    def __init__(self, field: str, rules: Sequence[Rule]) -> None:
        super().__init__()
        self.fields = (field,)
        self._rules = rules
        self._models: tuple[ModelMeta, ...] = ()
        arguments: Sequence[Any] = rules  # their types are only promises until here
        for rule in arguments:
            if not isinstance(rule, Allow | AllowInitial | OnTransition):
                self.mistakes.append(f"{rule!r} is no rule, such as allow(...) or on_transition(...)")
            elif not all(is_function(fn, 3) for fn in _functions(rule)):
                self.mistakes.append("guards and hooks are functions of (ctx, from_, to)")
            elif isinstance(rule, AllowInitial) and not rule.states:
                self.mistakes.append("allow_initial names no state, so no record could be made")

    @overload
    async def transition(self, ctx: Context, id: str, to: Any, *, model: type[M], **changes: Any) -> M: ...
    @overload
    async def transition(
        self, ctx: Context, id: str, to: Any, *, model: str | None = None, **changes: Any
    ) -> Any: ...
    async def transition(
        self, ctx: Context, id: str, to: Any, *, model: type[Model] | str | None = None, **changes: Any
    ) -> Any:
        """Change the state of a record from code, with guards and hooks; `changes` are written along."""
        meta = self._model_of(model)
        store = ctx.runtime.store(meta.cls)
        field = require_field(meta, self.fields[0])
        valid = meta.validator.patch_from_code({**changes, field.name: to})
        check = Transition(rules_of(field, self._rules))
        async with transaction(store.adapter):
            record: Any
            if store.has_transactions:
                record = await ctx.lock_for_update(meta.cls, id)
            else:
                record = await ctx.db(meta.cls).read(id)
            lock_error = store.lock_refusal([vars(record)[name] for name in store.sql.names])
            if lock_error is not None:
                raise lock_error
            change = RowChange(vars(record), valid)
            await check.look(ctx, change)
            record = await ctx.db(meta.cls).update(id, change.changes)
            for call in change.after:
                await call()
            return await ctx.db(meta.cls).read(id) if change.after else record

    def _model_of(self, model: type[Model] | str | None) -> ModelMeta:
        name = model if model is None or isinstance(model, str) else model.__name__
        fitting = [meta for meta in self._models if name is None or meta.name == name]
        if len(fitting) == 1:
            return fitting[0]
        names = ", ".join(meta.name for meta in self._models) or "no model"
        raise DeclarationError(f"workflow.machine is registered for {names}: say which one with model=")

    def claims(self, model: ModelMeta) -> Iterable[str]:
        yield f"{model.name}.{require_field(model, self.fields[0]).name} has a state machine"

    def problems(self, seat: Seat) -> Iterable[str]:
        self._models = seat.models
        return super().problems(seat)

    def model_problems(self, model: ModelMeta, seat: Seat) -> Iterable[str]:
        field = require_field(model, self.fields[0])
        if field.name in ("id", "created_at", "updated_at") or model.options.query is not None:
            yield f"{field.name} is not changed by anybody"
            return
        problems = dict.fromkeys(state_problems(field, self._rules))
        yield from problems or dead_rules(rules_of(field, self._rules))

    def states_of(self, model: ModelMeta) -> StateRules:
        """The rules with the states of a model's field."""
        return rules_of(require_field(model, self.fields[0]), self._rules)

    def is_on(self, model: ModelMeta) -> bool:
        """Whether it was registered for the model, once the server is being sealed."""
        return any(meta.name == model.name for meta in self._models)

    def codes(self, operation: Operation) -> dict[int, tuple[str, ...]]:
        judges_creates = any(isinstance(rule, AllowInitial) for rule in self._rules)
        codes: dict[int, tuple[str, ...]] = {422: ("INVALID_TRANSITION",)}
        if operation is Operation.CREATE:
            return codes if judges_creates else {}
        if any(isinstance(rule, OnTransition) for rule in self._rules):
            codes[500] = ("WORKFLOW_HOOK_ERROR",)
        return codes

    def rules(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        rules = self.states_of(model)
        if operation is Operation.UPDATE:
            yield Transition(rules)
        elif rules.initial is not None:
            yield InitialState(rules)


def _functions(rule: Rule) -> Sequence[Any]:
    if isinstance(rule, Allow):
        return rule.guards
    return (rule.hook,) if isinstance(rule, OnTransition) else ()


class InitialState(ValueRule):
    """Judges the state of a new record."""

    is_last = True

    def __init__(self, rules: StateRules) -> None:
        self._rules = rules

    def judge(self, ctx: Context, draft: Draft) -> Problems:
        state = plain_value(draft.values.get(self._rules.field.name))
        if state not in (self._rules.initial or ()):
            raise _initial_refusal(self._rules, state)
        return ()


class Transition(RowCheck):
    """Judges a change of state under the lock of the row, and runs the hooks after it is written."""

    order = 3

    def __init__(self, rules: StateRules) -> None:
        self._rules = rules
        self.extensions = {} if rules.field.secret else {"x-transitions": {rules.field.api: rules.describe()}}

    def concerns(self, changes: Mapping[str, Any]) -> bool:
        return self._rules.field.name in changes

    async def look(self, ctx: Context, change: RowChange) -> None:
        name = self._rules.field.name
        before, after = (plain_value(values[name]) for values in (change.stored, change.changes))
        if type(before) is type(after) and before == after:
            return
        rule = self._rules.deciding(before, after)
        if rule is None:
            raise _refusal(self._rules, before, after)
        for guard in rule.guards:
            verdict = await ask(ctx, guard, ctx, before, after)
            if verdict is not None and verdict is not True:
                text = verdict if isinstance(verdict, str) else ""
                raise _refusal(self._rules, before, after, text, getattr(guard, "roles", None))
        change.after += [
            partial(_run_hook, ctx, item, before, after)
            for item in self._rules.hooks
            if item.matches(before, after)
        ]


async def _run_hook(ctx: Context, item: OnTransition, before: Any, after: Any) -> None:
    fence = Fence()
    try:
        outcome: Awaitable[Any] | Any = item.hook(ctx, before, after)
        if inspect.isawaitable(outcome):
            await outcome
    except RequestError:
        raise
    except BaseException as error:
        raise Abort(500, "WORKFLOW_HOOK_ERROR", "the change was not made") from fence.absorb(error)


def _refusal(
    rules: StateRules, before: Any, after: Any, text: str = "", roles: Sequence[str] | None = None
) -> Abort:
    """The refusal of a change, in the words of the guard that refused it."""
    field, possible = rules.field, rules.following(before)
    if not text and not field.secret:
        change = f"change from {_word(before)} to {_word(after)}"
        text = f'"{field.api}" cannot {change}{_choices("become", possible)}'
    states = {} if field.secret else {"from": before, "to": after, "possible": possible}
    return _invalid_transition(rules, text, {**states, **({"roles": [*roles]} if roles else {})})


def _initial_refusal(rules: StateRules, state: Any) -> Abort:
    """The refusal of a new record."""
    field, possible = rules.field, list(rules.initial or ())
    if field.secret:
        return _invalid_transition(rules, "", {})
    text = f'"{field.api}" of a new record cannot be {_word(state)}{_choices("be", possible)}'
    return _invalid_transition(rules, text, {"from": None, "to": state, "possible": possible})


def _invalid_transition(rules: StateRules, text: str, more: Mapping[str, Any]) -> Abort:
    message = text or f'"{rules.field.api}" cannot be changed like this'
    return Abort(422, "INVALID_TRANSITION", message, [{"field": rules.field.api, **more, "message": message}])


def _word(state: Any) -> str:
    return "null" if state is None else str(state)


def _choices(verb: str, states: Sequence[Any]) -> str:
    return f"; it can {verb} {', '.join(map(_word, states))}" if states else ""
