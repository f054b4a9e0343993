"""The port of a backend: a data service that is not SQL and keeps the records of a model.

    class Quote(Model, backend=QuoteService("http://quotes.internal")): ...

A backend gets and gives values by the names of attributes. It has `list` and `read`, and any of `create`,
`update`, `delete` and `count`; what it lacks has no route. What a request is bound by (its tenant, its
owner) stands among the conditions of a query like a filter of the client. Every row that a backend
gives is checked again, so one that overlooks a condition shows nothing.

A backend raises `NotFound`, `Conflict`, `Unavailable` or another `RequestError` to refuse. An `OSError` or
`TimeoutError` is answered as 503, and everything else as 502 without its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from maniflex.query.operators import Op
from maniflex.query.query import holds

Values = Mapping[str, Any]
USUAL_OPERATORS = frozenset({"eq", "in"})


@dataclass(frozen=True, slots=True)
class BackendCondition:
    """What one field must be; behind `in`, `not_in` and `between` the value is a tuple.

    Behind an operator such as `gt_field` the value is the name of another field.
    """

    field: str
    op: str
    value: Any = None

    def matches(self, values: Values) -> bool:
        """Whether these values of a record satisfy it."""
        value, wanted, op = values.get(self.field), self.value, Op(self.op)
        if op.endswith("_field"):
            wanted, op = values.get(wanted), Op(op.removesuffix("_field"))
            if wanted is None:
                return False
        elif wanted is None and op in (Op.EQ, Op.NEQ):
            return (value is None) is (op is Op.EQ)
        return holds(op, plain_value(value), plain_value(wanted))


@dataclass(frozen=True, slots=True)
class BackendAnyOf:
    """A group of conditions of which one must hold; only for a backend with `any_of = True`."""

    conditions: tuple[BackendCondition, ...]

    def matches(self, values: Values) -> bool:
        """Whether these values of a record satisfy one of them."""
        return any(condition.matches(values) for condition in self.conditions)


@dataclass(frozen=True, slots=True)
class BackendSort:
    """One key of the order."""

    field: str
    descending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendQuery:
    """Which records are asked for: all conditions must hold, the client's and the server's alike."""

    conditions: tuple[BackendCondition | BackendAnyOf, ...] = ()
    sorts: tuple[BackendSort, ...] = ()
    limit: int | None = None  # None: all of them
    offset: int = 0

    def matches(self, values: Values) -> bool:
        """Whether these values of a record satisfy every condition."""
        return all(condition.matches(values) for condition in self.conditions)


@dataclass(frozen=True, slots=True)
class BackendPage:
    """The rows of a page and how many there are in all, from a backend that tells both at once.

    A backend with `counts = False` leaves the total out; `more` says whether there are rows behind these.
    """

    rows: Sequence[Values]
    total: int | None = None
    more: bool | None = None  # None: if there are as many rows as were asked for


class Backend(Protocol):
    """What a model needs of a backend; a class may derive from it, or only look like it."""

    operators: frozenset[str] = USUAL_OPERATORS  # that a condition may have
    sorts: bool = True  # whether it can order records
    any_of: bool = False  # whether a condition may be a `BackendAnyOf`
    counts: bool = True  # whether it says how many records there are; with False lists have no total

    async def list(self, query: BackendQuery) -> Sequence[Values] | BackendPage:
        """The records of a query. Where there is no `count`, a `BackendPage` with the total."""

    async def read(self, record_id: str) -> Values | None:
        """The record of that id; None or `NotFound` when there is none."""


# What a backend may have besides; an operation whose method is missing has no route.
REQUIRED_METHODS = ("list", "read")
WRITE_METHODS = ("create", "update", "delete")
OPTIONAL_METHODS = (*WRITE_METHODS, "count")


class WritableBackend(Backend, Protocol):
    """A backend with everything; each of these methods may be left out."""

    async def create(self, values: Values) -> Values:
        """Keep a new record, which has an id; the record as it is kept, under this id or another."""

    async def update(self, record_id: str, changes: Values) -> Values | None:
        """Change these fields; the record as it is kept, or None to have it read."""

    async def delete(self, record_id: str) -> None:
        """Remove the record."""

    async def count(self, query: BackendQuery) -> int:
        """How many records satisfy the conditions; limit and offset do not count."""


def operators_of(backend: Any) -> frozenset[str]:
    """The operators that a backend takes."""
    return frozenset(str(op) for op in getattr(backend, "operators", USUAL_OPERATORS))


def counts_records(backend: Any) -> bool:
    """Whether lists of these records have a total; those of a model without a backend do."""
    return bool(getattr(backend, "counts", True))


def has_method(backend: Any, method: str) -> bool:
    """Whether a backend has the method; None in its place means that it has not."""
    return getattr(backend, method, None) is not None


def plain_value(value: Any) -> Any:
    """A value as rows hold it: the value of a member instead of the member."""
    if isinstance(value, tuple | list):
        return tuple(plain_value(one) for one in value)
    return value.value if isinstance(value, Enum) else value
