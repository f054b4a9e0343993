"""Entries that judge single rows, and the table of their policies that a sealed server has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from maniflex.errors import InvalidQuery, OutOfScope, UnusableScope
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, EntryDocs, Piece, Trait
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At
from maniflex.pipeline.rules.row_judge import Policy, TablePolicy
from maniflex.pipeline.rules.scopes import ALL, LAST, BindingRule, ask_once
from maniflex.query.conditions import ConditionReader, condition_parts
from maniflex.query.operators import Takes, operator
from maniflex.query.query import Models, Narrowed, Query, reachable_models

if TYPE_CHECKING:
    from maniflex.pipeline.entry import Placement, Seat
    from maniflex.pipeline.registration import Middleware, Next, Pipeline, Registration

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
    traits = Trait.VARIES_BY_CALLER

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
            if Trait.HIDES_SECRETS in entry.traits:
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


def declared_policies(
    pipeline: Pipeline, models: Sequence[ModelMeta]
) -> Iterator[tuple[type[Model], TablePolicy]]:
    """The policies of a server, with the models whose rows they judge."""
    for r in pipeline.db.registrations:
        entry = r.fn
        if not isinstance(entry, PolicyEntry):
            continue
        policy = TablePolicy(entry.policy, r.operations, has_where=entry.where is not None)
        for meta in models:
            if not meta.is_internal if r.models is None else meta.name in r.models:
                yield meta.cls, policy


# The `where` of a policy: conditions that bind lists of a model in SQL, as scope rules do.
#
# They bind what shows many rows or is worked out from them: lists, counts, exports, aggregates, searches
# and the rows that other models lead to. Single records are for the policy to judge.


Where = Callable[[Context], Any]


class WhereRule(BindingRule):
    """Binds the listed rows of one model to what a function says of the caller."""

    def __init__(self, name: str, where: Where, model: ModelMeta, models: Models) -> None:
        self.__name__ = name
        self._where = where
        self._model = model.name
        self._reader = ConditionReader(Query(model, models))

    async def __call__(self, ctx: Context, next: Next) -> None:
        conditions = await self.conditions(ctx)
        query = ctx.current_query()
        ctx._query = query.with_scope((*query.forced, *conditions))
        await next()

    async def conditions(self, ctx: Context, /) -> Sequence[Narrowed]:
        items = ask_once(self, self._where, ctx)
        if inspect.isawaitable(items):
            items = await items
        if items is ALL:
            return ()
        if not items:
            raise OutOfScope()
        return [self._condition(item) for item in self._pairs(items)]

    def _pairs(self, items: Any) -> Iterable[Any]:
        pairs = items.items() if isinstance(items, Mapping) else items
        if isinstance(pairs, str) or not isinstance(pairs, Iterable):
            raise UnusableScope(f"{self.__name__}: where gave {items!r}, which is no list of conditions")
        return pairs

    def _condition(self, item: Any) -> Narrowed:
        try:
            name, word, value = condition_parts(item, "where")
            if value is None and _takes_value(word):
                # What nobody set must not open the rows that have none; is_null says that it is meant.
                raise OutOfScope()
            return Narrowed(self._reader.condition(name, word, value, "where"), self._model, of_shown=True)
        except InvalidQuery as error:
            raise UnusableScope(f"{self.__name__}: where cannot bind {self._model}: {error}") from error


def _takes_value(word: Any) -> bool:
    kind = operator(word) if isinstance(word, str) else None
    return kind is not None and kind.takes is not Takes.NOTHING
