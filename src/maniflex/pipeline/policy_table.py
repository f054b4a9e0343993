"""The policies of a server by model: functions of the application that judge single rows.

`auth.enforce` registers them; the steps that touch rows of a model look them up here when the server is
sealed. A server without policies has an empty table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from maniflex.errors import Forbidden
from maniflex.model.base import Model
from maniflex.pipeline.callbacks import ask
from maniflex.pipeline.operation import Operation, covered

Policy = Callable[[Any, Any], Any]  # of the context and the record: whether the caller may


class Judged(Protocol):
    """The context of a request, as far as policies need it."""

    policy_views: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """A policy on one model, for some operations or for all."""

    policy: Policy
    operations: frozenset[Operation] | None
    has_where: bool  # lists are bound in SQL to the rows that it allows

    def covers(self, operation: Operation, *, item: bool) -> bool:
        return self.operations is None or covered(self.operations, operation, item=item)


class RowPolicies:
    """The policies that judge the rows of one model for one operation; all of them must allow."""

    def __init__(self, model: str, policies: Sequence[TablePolicy]) -> None:
        self._model = model
        self._functions = tuple(one.policy for one in policies)
        self.hides_rows = not all(one.has_where for one in policies)  # that SQL does not leave out

    async def allow(self, ctx: Judged, record: Model) -> bool:
        """Whether the caller may touch the record."""
        views = ctx.policy_views
        if views is not None and self._model in views:
            ctx = views[self._model]
        for policy in self._functions:
            if not await ask(ctx, policy, ctx, record):
                return False
        return True

    async def require(self, ctx: Judged, record: Model) -> None:
        """403 unless the caller may touch the record."""
        if not await self.allow(ctx, record):
            raise Forbidden()


class ModelPolicies:
    """All policies of one model."""

    def __init__(self, model: str, policies: Sequence[TablePolicy]) -> None:
        self._model = model
        self._policies = tuple(policies)
        of_lists = self.of(Operation.LIST, item=False)
        # What is counted, searched or joined would tell of rows that SQL does not leave out.
        self.hides_rows = of_lists is not None and of_lists.hides_rows
        included = [
            one
            for one in policies
            if one.covers(Operation.LIST, item=False) or one.covers(Operation.READ, item=True)
        ]
        self.of_included = RowPolicies(model, included) if included else None
        self.hides_reached_rows = self.of_included is not None and self.of_included.hides_rows

    def of(self, operation: Operation, *, item: bool) -> RowPolicies | None:
        """Those that judge such an operation, on one record (`item`) or on many."""
        policies = [one for one in self._policies if one.covers(operation, item=item)]
        return RowPolicies(self._model, policies) if policies else None

    def of_stored(self, operation: Operation) -> RowPolicies | None:
        """Those that judge a stored row which such a write changes: who may not read it cannot change it."""
        policies = [
            one
            for one in self._policies
            if one.covers(operation, item=True) or one.covers(Operation.READ, item=True)
        ]
        return RowPolicies(self._model, policies) if policies else None

    def of_answer(self, operation: Operation) -> RowPolicies | None:
        """Those for reads that do not judge the row which such a write makes, but whether it is shown."""
        policies = [
            one
            for one in self._policies
            if one.covers(Operation.READ, item=True) and not one.covers(operation, item=True)
        ]
        return RowPolicies(self._model, policies) if policies else None

    async def require_changeable(self, ctx: Judged, record: Model) -> None:
        """403 unless the caller may change the record, for refusals that would tell of it."""
        policies = self.of_stored(Operation.UPDATE)
        if policies is not None:
            await policies.require(ctx, record)


PolicyTable = dict[str, ModelPolicies]


def hidden_models(table: PolicyTable) -> frozenset[str]:
    """The names of the models with rows that only a policy hides from requests to other models."""
    return frozenset(name for name, policies in table.items() if policies.hides_reached_rows)
