"""The scope rules of a server by model, as code that asks for rows looks them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex.pipeline.operation import Operation, covered
from maniflex.query.query import Forced, Narrowed


class BindingRule:
    """A scope rule on one model."""

    async def conditions(self, ctx: Any, /) -> Sequence[Forced | Narrowed]:
        """The conditions that bind this caller; none where the rule is lifted."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TableRule:
    """A rule of the table: on one model, for some operations."""

    rule: BindingRule
    operations: frozenset[Operation]
    binds_reached: bool  # it binds the rows that code reaches through another model

    def covers(self, operation: Operation) -> bool:
        """Whether it binds code that does this to a record, or asks for it."""
        return covered(self.operations, operation, item=True)


ScopeTable = Mapping[str, Sequence[TableRule]]
