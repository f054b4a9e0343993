"""Entries that judge single rows, and the table of their policies that a sealed server has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from maniflex.errors import Forbidden
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.entry import ANYWHERE, Entry, EntryDocs, Piece
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import At, ask
from maniflex.pipeline.rules.scopes import LAST, WhereRule
from maniflex.query.query import Models, reachable_models

if TYPE_CHECKING:
    from maniflex.pipeline.entry import Placement, Seat
    from maniflex.pipeline.registration import Middleware, Pipeline, Registration
    from maniflex.pipeline.rules.scopes import Where

UNCOUNTED_META: dict[str, Any] = {
    "type": "object",
    "description": "Where in the list this page is; a page may have fewer records than its limit.",
    "required": ["page", "limit", "has_more"],
    "properties": {
        "page": {"type": "integer", "minimum": 1},
        "limit": {"type": "integer", "minimum": 1},
        "has_more": {"type": "boolean"},
    },
}
_MANY = frozenset({Operation.LIST, Operation.EXPORT})


class PolicyEntry(Entry):
    """A policy on the rows of its models; it is no middleware, the steps that touch rows ask it."""

    homes: ClassVar = {"db": ANYWHERE}
    varies_by_caller = True
    judges_rows = True

    def __init__(self, policy: Policy, where: Where | None) -> None:
        super().__init__()
        self.policy = policy
        self.where = where
        self._rules: dict[ModelMeta, WhereRule] = {}

    def policed_models(self, seat: Seat) -> Iterator[ModelMeta]:
        """The models of a registration; without names all but the tables of the framework."""
        return (meta for meta in seat.models if seat.is_named or not meta.is_internal)

    def problems(self, seat: Seat) -> Iterable[str]:
        models = list(self.policed_models(seat))
        if not models:
            yield "there is no model whose rows it could judge"
        for meta in models:
            if meta.is_internal:
                yield f"{meta.name} is a table of the framework, which has guards of its own"
        if self.where is not None and not self._list_operations(seat):
            yield "where= binds lists, which operations= leaves out"

    def problems_beside(self, seat: Seat, placement: Placement) -> Iterable[str]:
        policed = list(self.policed_models(seat))
        for r in placement.pipeline.db.registrations:
            for meta in policed if r.at is At.REPLACE else ():
                if any(_meet(r, seat, meta, operation) for operation in Operation):
                    yield f"the db step of {meta.name} is replaced by {r.name}, so its rows are not judged"
        for entry, other in placement.seats:
            if entry.hides_secrets:
                yield from self._secret_problems(policed, entry, other)

    def _secret_problems(self, policed: Iterable[ModelMeta], entry: Entry, seat: Seat) -> Iterator[str]:
        reached = {one.name for m in seat.models for one in (m, *reachable_models(m, seat.registered))}
        for meta in policed:
            if meta.name in reached and any(field.secret for field in meta.fields):
                yield (
                    f"{meta.name} has secret fields, which {entry.name} does not keep and a policy may need;"
                    f" register {entry.name} for other models"
                )

    def pieces(self, seat: Seat) -> Iterator[Piece]:
        yield Piece(seat.step, lambda model, operation: None, seat.at)
        if self.where is not None:
            bound = {meta.name for meta in self.policed_models(seat)}
            make = partial(self._make_rule, bound, seat.registered)
            yield Piece("auth", make, At.AFTER, LAST, self._list_operations(seat))

    def _list_operations(self, seat: Seat) -> frozenset[Operation]:
        """The operations on many rows that `where` binds."""
        if seat.operations is None or Operation.LIST in seat.operations:
            return frozenset({Operation.LIST})
        return seat.operations & _MANY

    def _make_rule(
        self, bound: set[str], models: Models, model: ModelMeta | None, operation: Operation
    ) -> Middleware | None:
        if model is None or model.name not in bound or self.where is None:
            return None
        if model not in self._rules:
            self._rules[model] = WhereRule(self.name, self.where, model, models)
        return self._rules[model]

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(refusals={403: ("FORBIDDEN",)})


def _meet(r: Registration, seat: Seat, meta: ModelMeta, operation: Operation) -> bool:
    own: Any = seat.registration
    return any(
        r.matches(meta, operation, item=item) and own.matches(meta, operation, item=item)
        for item in (True, False)
    )


def policy_table(pipeline: Pipeline, models: Iterable[ModelMeta]) -> PolicyTable:
    """The policies of each model that has any, by its name."""
    table: dict[str, list[TablePolicy]] = {}
    metas = tuple(models)
    for r in pipeline.db.registrations:
        entry = r.fn
        if not isinstance(entry, PolicyEntry):
            continue
        policy = TablePolicy(entry.policy, r.operations, has_where=entry.where is not None)
        for meta in metas:
            is_meant = not meta.is_internal if r.models is None else meta.name in r.models
            if is_meant:
                table.setdefault(meta.name, []).append(policy)
    return {name: ModelPolicies(name, policies) for name, policies in table.items()}


# The policies of a server by model: functions of the application that judge single rows.
#
# `auth.enforce` registers them; the steps that touch rows of a model look them up here when the server is
# sealed. A server without policies has an empty table.


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
