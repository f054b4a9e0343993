"""`ctx.query`: the query of a request as code sees it, to be read, narrowed and bound.

A `Query` is a value that requests share; a change made here replaces the query of the one request.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.query.operators import Op
from maniflex.query.query import Cursor, Filter, Include, ModelName, Models, Query, Scope, Sort

T = TypeVar("T")


class QueryHolder(Protocol):
    """A request, whose query is there."""

    _query: Query | None


class _QueryPart(Generic[T]):
    """One part of the query, as an attribute that can be set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, face: RequestQuery, owner: type) -> T:
        part: T = getattr(face._value, self._name)
        return part

    def __set__(self, face: RequestQuery, value: T) -> None:
        face._value = face._value.with_(**{self._name: value})


class RequestQuery:
    """What the request asks for. It is made when code looks at `ctx.query`: no other request pays for it."""

    __slots__ = ("_holder",)

    page: _QueryPart[int] = _QueryPart()
    limit: _QueryPart[int | None] = _QueryPart()
    filters: _QueryPart[tuple[Filter, ...]] = _QueryPart()
    sorts: _QueryPart[tuple[Sort, ...]] = _QueryPart()
    includes: _QueryPart[tuple[Include, ...]] = _QueryPart()
    select: _QueryPart[tuple[FieldMeta, ...] | None] = _QueryPart()
    search: _QueryPart[str | None] = _QueryPart()
    cursor: _QueryPart[Cursor | None] = _QueryPart()

    def __init__(self, holder: QueryHolder) -> None:
        self._holder = holder

    def __repr__(self) -> str:
        return repr(self._value)

    @property
    def _value(self) -> Query:
        query = self._holder._query
        assert query is not None
        return query

    @_value.setter
    def _value(self, query: Query) -> None:
        self._holder._query = query

    @property
    def model(self) -> ModelMeta:
        return self._value.model

    @property
    def models(self) -> Models:
        return self._value.models

    @property
    def forced(self) -> Scope:
        """The conditions the request is bound to."""
        return self._value.forced

    def add_filter(self, name: str, value: Any = None, op: str = Op.EQ) -> None:
        """Narrow the list further; unlike a client, code may use any field."""
        self._value = self._value.with_filter(name, value, op)

    def add_sort(self, name: str, direction: str = "asc") -> None:
        """Sort by one more field, after those already there."""
        self._value = self._value.with_sort(name, direction)

    def force(self, name: str, value: Any = None, op: str = Op.EQ, *, model: ModelName | None = None) -> None:
        """Bind the request to rows where this holds, on every surface; a client cannot undo it.

        The condition binds every model of the request that has such a field, or `model` alone. A
        dotted name binds rows through the record they belong to: `order.tenant_id`.
        """
        holder = self._holder
        assert holder._query is not None
        holder._query = holder._query.with_force(name, value, op, model=model)
