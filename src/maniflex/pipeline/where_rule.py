"""The `where` of a policy: conditions that bind lists of a model in SQL, as scope rules do.

They bind what shows many rows or is worked out from them: lists, counts, exports, aggregates, searches and
the rows that other models lead to. Single records are for the policy to judge.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from maniflex.errors import InvalidQuery, OutOfScope, UnusableScope
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.registration import Next
from maniflex.pipeline.scope_rules import ALL, ask_once
from maniflex.pipeline.scope_table import BindingRule
from maniflex.query.conditions import ConditionReader, condition_parts
from maniflex.query.operators import Takes, operator
from maniflex.query.query import Models, Narrowed, Query

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
