"""Rules that catalogue entries add to the writes of a model. They are no middleware: the steps ask them.

The validate step asks every `ValueRule` and puts what it finds into one answer with the built-in rules.
On an update, rules that need the stored row and every `RowCheck` are asked by the database step, under
the lock of the row and in the transaction of the write. Which rules a route has is settled when the
server is sealed; a route without any has neither of these.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maniflex.errors import MOST_DETAILS, Detail, ValidationFailed
from maniflex.model.meta import ModelMeta

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context


Problems = Sequence[Detail]


class Sentence(dict[str, Any]):
    """A problem in the words of the application; alone, they are the message of the answer."""


@dataclass(frozen=True, slots=True)
class RecordDraft:
    """A record about to be written, as a rule sees it."""

    values: Mapping[str, Any]  # typed, by attribute; of an update the row with its changes, or these alone
    body: Mapping[str, Any]  # by API name; what the client sent and code has set
    refused: frozenset[str] = frozenset()  # attributes whose values break rules of their fields


class Check:
    """A rule of a catalogue entry, made for one model and operation."""

    extensions: Mapping[str, Any] = {}  # what the API description says of such operations


class ValueRule(Check):
    """Judges values; its problems stand in one answer with those of the built-in rules."""

    names: frozenset[str] = frozenset()  # attributes: an update that sets none of them is not judged
    reads_row: bool = False  # an update is judged by the row as it will be
    is_last: bool = False  # judges only what nothing else is wrong with

    def judge(self, ctx: Context, draft: RecordDraft) -> Problems | Awaitable[Problems]:
        """The problems of a record."""
        raise NotImplementedError

    def concerns(self, names: Mapping[str, Any]) -> bool:
        """Whether an update of these attributes is to be judged."""
        return not self.names or not self.names.isdisjoint(names)


@dataclass(slots=True)
class RowChange:
    """An update of a row that is locked, for checks to look at and add to."""

    stored: Mapping[str, Any]  # typed, by attribute
    changes: dict[str, Any]  # typed, by attribute; what a check adds is written too
    after: list[Callable[[], Awaitable[None]]] = field(default_factory=list)  # run once it is written

    @property
    def outcome(self) -> Mapping[str, Any]:
        """The row as it will be."""
        return {**self.stored, **self.changes}


class RowCheck(Check):
    """Looks at the row of an update under its lock; refuses the update by raising."""

    order: int = 0  # checks that set values come before those that judge

    def concerns(self, changes: Mapping[str, Any]) -> bool:
        """Whether it looks at an update of these attributes."""
        raise NotImplementedError

    async def look(self, ctx: Context, change: RowChange) -> None:
        """Judge the update, or add to it."""
        raise NotImplementedError


class RowRules(RowCheck):
    """The value rules of a model that read the row: all their problems in one answer."""

    order = 1

    def __init__(self, model: ModelMeta, rules: Sequence[ValueRule]) -> None:
        self._model = model
        self._rules = tuple(rules)

    def concerns(self, changes: Mapping[str, Any]) -> bool:
        return any(rule.concerns(changes) for rule in self._rules)

    async def look(self, ctx: Context, change: RowChange) -> None:
        draft = RecordDraft(change.outcome, ctx._body or {})
        rules = [rule for rule in self._rules if rule.concerns(change.changes)]
        problems = await judge_all(rules, ctx, draft)
        if problems:
            raise refusal(self._model, problems)


async def judge_all(rules: Sequence[ValueRule], ctx: Context, draft: RecordDraft) -> list[Detail]:
    """The problems that these rules find."""
    problems: list[Detail] = []
    for rule in rules:
        outcome = rule.judge(ctx, draft)
        problems += outcome if isinstance(outcome, Sequence) else await outcome
    return problems


def refusal(model: ModelMeta, problems: Sequence[Detail]) -> ValidationFailed:
    """The one answer that names every problem."""
    secrets = frozenset(f.api for f in model.fields if f.secret)
    message = problems[0]["message"] if len(problems) == 1 and isinstance(problems[0], Sentence) else None
    return ValidationFailed(message, problems[:MOST_DETAILS], model=model.name, secrets=secrets)


def value_rules(checks: Sequence[Check]) -> list[ValueRule]:
    """The rules that the validate step asks."""
    return [check for check in checks if isinstance(check, ValueRule)]


def row_checks(model: ModelMeta, checks: Sequence[Check]) -> list[RowCheck]:
    """The checks of an update's row, in their order."""
    rules = [rule for rule in value_rules(checks) if rule.reads_row]
    own = [check for check in checks if isinstance(check, RowCheck)]
    return sorted([*own, *([RowRules(model, rules)] if rules else [])], key=lambda check: check.order)
