"""The rules of a state machine as they are declared, and as they are held against one field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex.middleware.typed_values import plain_value, typed_value
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.context import Context

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
