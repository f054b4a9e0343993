"""Entries that judge single rows, and the table of their policies that a sealed server has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

from maniflex.model.meta import ModelMeta
from maniflex.pipeline.entry import ANYWHERE, Entry, Piece, Placement, Seat
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.policy_table import ModelPolicies, Policy, PolicyTable, TablePolicy
from maniflex.pipeline.registration import At, Middleware, Pipeline, Registration
from maniflex.pipeline.scope_rules import LAST
from maniflex.pipeline.where_rule import Where, WhereRule
from maniflex.query.query import Models, reachable_models

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
