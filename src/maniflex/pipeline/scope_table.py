"""The scope rules of a server by model, as code that asks for rows looks them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from maniflex.pipeline.operation import Operation, covered
from maniflex.query.query import Forced


class BindingRule(Protocol):
    """A scope rule on one model."""

    async def condition(self, ctx: Any, /) -> Forced | None:
        """The condition that binds this caller; None where the rule is lifted."""


@dataclass(frozen=True, slots=True)
class TableRule:
    """A rule of the table: on one model, for some operations or for all."""

    rule: BindingRule
    operations: frozenset[Operation] | None

    def covers(self, operation: Operation) -> bool:
        """Whether it binds code that does this to a record, or asks for it."""
        return self.operations is None or covered(self.operations, operation, item=True)


ScopeTable = Mapping[str, Sequence[TableRule]]
