"""Workflow entries: a state machine on one field of a model, judged under the lock of the row.

from maniflex.middleware import workflow

status = workflow.machine(
    "status",
    workflow.allow_initial("draft"),
    workflow.allow("draft", "sent"),
    workflow.allow("sent", "paid", workflow.require_role("accountant")),
    workflow.on_transition("*", "paid", book_payment),
)
server.pipeline.validate.register(status, models=[Invoice])
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, overload

from maniflex._callables import explain_section
from maniflex._fence import Fence
from maniflex.db.current import transaction
from maniflex.errors import Abort, DeclarationError, RequestError
from maniflex.middleware.arguments import is_function, plain_value, typed_value
from maniflex.middleware.validate.rule_entry import RuleEntry
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import EntryRule, Seat, SoleRight, ask, require_field
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.rules.checks import Check, Problems, RecordDraft, RowChange, RowCheck, ValueRule

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

    def rules(self, seat: Seat) -> Iterable[EntryRule]:
        for model in seat.models:
            yield SoleRight(f"{model.name}.{require_field(model, self.fields[0]).name} has a state machine")

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

    def checks_of_body(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
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

    def judge(self, ctx: Context, draft: RecordDraft) -> Problems:
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


# The rules of a state machine as they are declared, and as they are held against one field.


ANY = "*"  # any state
Guard = Callable[[Context, Any, Any], Any]
Hook = Callable[[Context, Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Allow:
    """A transition that is allowed if its guards agree."""

    source: Any
    target: Any
    guards: tuple[Guard, ...] = ()

    def matches(self, source: Any, target: Any) -> bool:
        return _fits(self.source, source) and _fits(self.target, target)


@dataclass(frozen=True, slots=True)
class AllowInitial:
    """The states that a new record may have."""

    states: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OnTransition:
    """A hook that runs after a transition, in its transaction."""

    source: Any
    target: Any
    hook: Hook

    def matches(self, source: Any, target: Any) -> bool:
        return _fits(self.source, source) and _fits(self.target, target)


Rule = Allow | AllowInitial | OnTransition


def allow(from_: Any, to: Any, *guards: Guard) -> Allow:
    """Allow a change from one state to another; "*" is any state, None is null."""
    return Allow(from_, to, guards)


def allow_any(*guards: Guard) -> Allow:
    """Allow every change."""
    return Allow(ANY, ANY, guards)


def allow_initial(*states: Any) -> AllowInitial:
    """Let new records have these states and no others."""
    return AllowInitial(states)


def on_transition(from_: Any, to: Any, hook: Hook) -> OnTransition:
    """Call `hook(ctx, from_, to)` after such a change, in its transaction."""
    return OnTransition(from_, to, hook)


class TransitionRoles:
    """Asks callers for one of some roles."""

    def __init__(self, roles: Sequence[str]) -> None:
        self.roles = list(roles)
        self._names = frozenset(roles)
        names = ", ".join(map(repr, roles))
        one = f"the role {names}" if len(roles) == 1 else f"one of the roles {names}"
        self._refusal = f"this change needs {one}" if roles else "nobody may make this change"

    def __call__(self, ctx: Context, from_: Any, to: Any) -> str | None:
        is_holder = ctx.auth is not None and not self._names.isdisjoint(ctx.auth.roles)
        return None if is_holder else self._refusal


def require_role(*roles: str) -> Guard:
    """A guard that asks for one of the roles; without roles it refuses everybody."""
    return TransitionRoles(roles)


def _fits(pattern: Any, state: Any) -> bool:
    return bool(pattern == ANY or (type(pattern) is type(state) and pattern == state))


@dataclass(frozen=True, slots=True)
class StateRules:
    """The rules of a machine with the states of one field."""

    field: FieldMeta
    allows: tuple[Allow, ...]
    initial: tuple[Any, ...] | None  # None: any
    hooks: tuple[OnTransition, ...]

    def deciding(self, source: Any, target: Any) -> Allow | None:
        """The first rule for a change, which decides."""
        return next((rule for rule in self.allows if rule.matches(source, target)), None)

    def following(self, source: Any) -> list[Any]:
        """The states that can come after one, as far as they are known; guards may still refuse them."""
        states = [*(self.field.enum or ()), *([None] if self.field.nullable else [])]
        named_targets = [rule.target for rule in self.allows if rule.target != ANY]
        every = [*dict.fromkeys(plain_value(state) for state in [*states, *named_targets])]
        return [state for state in every if state != source and self.deciding(source, state) is not None]

    def possible(self, states: Sequence[Any], source: Any, *, is_new: bool) -> list[Any]:
        """The states among these that a new record may have, or that may follow, if guards agree."""
        if is_new:
            return [state for state in states if self.initial is None or state in self.initial]
        after = self.following(source)
        return [state for state in states if state == source or state in after]

    def describe(self) -> list[dict[str, Any]]:
        """The transitions for the API description."""
        return [{"from": rule.source, "to": rule.target} for rule in self.allows]


def state_problems(field: FieldMeta, rules: Sequence[Rule]) -> Iterator[str]:
    """The states that rules name and the field cannot have, each of them once."""
    for rule in rules:
        for state in rule.states if isinstance(rule, AllowInitial) else (rule.source, rule.target):
            try:
                _state(field, state)
            except ValueError as error:
                yield str(error)


def rules_of(field: FieldMeta, rules: Sequence[Rule]) -> StateRules:
    """The rules with typed states; `ValueError` for a state that the field cannot have."""
    initial = [state for rule in rules if isinstance(rule, AllowInitial) for state in rule.states]
    has_initial = any(isinstance(rule, AllowInitial) for rule in rules)
    return StateRules(
        field,
        tuple(
            Allow(_state(field, rule.source), _state(field, rule.target), rule.guards)
            for rule in rules
            if isinstance(rule, Allow)
        ),
        tuple(_state(field, state) for state in initial) if has_initial else None,
        tuple(
            OnTransition(_state(field, rule.source), _state(field, rule.target), rule.hook)
            for rule in rules
            if isinstance(rule, OnTransition)
        ),
    )


def _state(field: FieldMeta, state: Any) -> Any:
    return ANY if isinstance(state, str) and state == ANY else typed_value(field, state)


def dead_rules(rules: StateRules) -> Iterator[str]:
    """Rules that can never match."""
    for place, rule in enumerate(rules.allows):
        if _is_same_state(rule):
            yield f"allow({rule.source!r}, {rule.target!r}) is no change"
        earlier = next((r for r in rules.allows[:place] if _covers(r, rule)), None)
        if earlier is not None:
            first = f"({earlier.source!r}, {earlier.target!r})"
            yield f"allow({rule.source!r}, {rule.target!r}) never decides: {first} before it does"
    for hook in rules.hooks:
        if _is_same_state(hook) or not any(_meet(rule, hook) for rule in rules.allows):
            yield f"on_transition({hook.source!r}, {hook.target!r}) never runs: no such change is allowed"


def _is_same_state(rule: Allow | OnTransition) -> bool:
    return bool(rule.source != ANY and rule.source == rule.target)


def _covers(earlier: Allow, later: Allow) -> bool:
    return earlier.source in (ANY, later.source) and earlier.target in (ANY, later.target)


def _meet(rule: Allow, hook: OnTransition) -> bool:
    pairs = ((rule.source, hook.source), (rule.target, hook.target))
    return all(ANY in pair or pair[0] == pair[1] for pair in pairs)


__all__ = ["Machine", "allow", "allow_any", "allow_initial", "machine", "on_transition", "require_role"]

explain_section(globals(), "workflow", __all__)
