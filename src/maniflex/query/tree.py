"""What a client asks of a list, as a value: no strings left to parse, no SQL yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maniflex._limits import DEFAULT_LIMIT
from maniflex.errors import InvalidQuery, UnusableScope
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind, RelationMeta
from maniflex.query.operands import known_operator, operand
from maniflex.query.operators import Op, Operator, Takes

Models = Mapping[str, ModelMeta]


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition on a field, of the model itself or at the end of a path of relations.

    `value` is of the field's type: one value, a tuple of them, another `FieldMeta`, or None.
    """

    field: FieldMeta
    op: Op
    value: Any = None
    path: tuple[RelationMeta, ...] = ()
    few: bool = False  # of the records at the end of the path; then it is best to begin with them


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A group of conditions of which one must hold."""

    conditions: tuple[Compare, ...]


Filter = Compare | AnyOf


@dataclass(frozen=True, slots=True)
class Forced:
    """A condition the server imposes, by name: it binds every model that has such a field."""

    name: str
    op: Op
    value: Any
    kind: Kind  # of the field the value was typed for

    def on(self, model: ModelMeta) -> Compare | None:
        """The condition on that model, if it has the field; its value as that model's type."""
        found = find_field(model, self.name)
        if found is None:
            return None
        if found.kind is self.kind:
            return Compare(found, self.op, self.value)
        return Compare(found, self.op, _imposed(model, found, self.op, self.value)[1])


@dataclass(frozen=True, slots=True)
class Sort:
    """One sort key, of the model itself or of a record it belongs to."""

    field: FieldMeta
    descending: bool = False
    path: tuple[RelationMeta, ...] = ()


@dataclass(frozen=True, slots=True)
class Include:
    """A relation to load along, and what to load along with it."""

    relation: RelationMeta
    nested: tuple[Include, ...] = ()


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a keyset walk: after (or before) the record with these two values."""

    field: FieldMeta
    descending: bool
    after: tuple[Any, str] | None = None
    backwards: bool = False
    walk: str = ""  # what the client asked for, as its tokens are bound to it


class Query:
    """Paging, filters and order of one list; middleware may read and extend it.

    A query that was asked before starts as a copy of the first, so that what was worked out for it
    can be used again as long as nobody changes the copy. Every part is a value that is replaced,
    never changed, so identity tells.
    """

    __slots__ = (
        "cursor",
        "filters",
        "forced",
        "includes",
        "limit",
        "model",
        "models",
        "page",
        "prepared",
        "search",
        "select",
        "sorts",
        "template",
    )

    def __init__(
        self,
        model: ModelMeta,
        models: Models | None = None,
        *,
        page: int = 1,
        limit: int | None = DEFAULT_LIMIT,
    ) -> None:
        self.model = model
        self.models: Models = {model.name: model} if models is None else models
        self.page = page
        self.limit = limit  # None: no paging, for code that wants them all
        self.filters: tuple[Filter, ...] = ()
        self.forced: tuple[Forced, ...] = ()
        self.sorts: tuple[Sort, ...] = ()
        self.includes: tuple[Include, ...] = ()
        self.select: tuple[FieldMeta, ...] | None = None
        self.search: str | None = None
        self.cursor: Cursor | None = None
        self.template: Query | None = None
        self.prepared: Any = None  # whatever a later layer keeps with an unchanged query

    def copy(self) -> Query:
        """The same query, to be changed freely; `unchanged` tells whether it was."""
        made = Query.__new__(Query)
        made.model, made.models, made.page, made.limit = self.model, self.models, self.page, self.limit
        made.filters, made.forced, made.sorts = self.filters, self.forced, self.sorts
        made.includes, made.select, made.search = self.includes, self.select, self.search
        made.cursor, made.template, made.prepared = self.cursor, self, None
        return made

    def unchanged(self) -> Query | None:
        """The query this is a faithful copy of."""
        first = self.template
        if (
            first is not None
            and first.filters is self.filters
            and first.forced is self.forced
            and first.sorts is self.sorts
            and first.page == self.page
            and first.limit == self.limit
            and first.search is self.search
            and first.cursor is self.cursor
            and first.select is self.select
            and first.includes is self.includes
        ):
            return first
        return None

    def __repr__(self) -> str:
        return f"<Query {self.model.name} page={self.page} limit={self.limit} {self.filters} {self.sorts}>"

    def add_filter(self, name: str, value: Any = None, op: str = Op.EQ) -> None:
        """Narrow the list further; unlike a client, code may use any field."""
        path, found = self._field(name)
        known = known_operator(op, found, "filter")
        wanted = self._value(known, found, value, path)
        self.filters = (*self.filters, Compare(found, known.op, wanted, path))

    def add_sort(self, name: str, direction: str = "asc") -> None:
        """Sort by one more field, after those already there."""
        if direction not in ("asc", "desc"):
            raise InvalidQuery(f"sort direction {direction!r} is neither 'asc' nor 'desc'")
        path, found = self._field(name)
        self.sorts = (*self.sorts, Sort(found, direction == "desc", path))

    def force(self, name: str, value: Any = None, op: str = Op.EQ) -> None:
        """Bind the request to rows where this holds, on every surface; a client cannot undo it.

        The condition holds for included and joined records too, wherever they have such a field.
        """
        found = find_field(self.model, name)
        if found is None:
            raise UnusableScope(f"{self.model.name} cannot be bound by {name!r}: it has no such field")
        known, wanted = _imposed(self.model, found, op, value)
        self.forced = (*self.forced, Forced(name, known, wanted, found.kind))

    def _value(self, known: Operator, found: FieldMeta, value: Any, path: tuple[RelationMeta, ...]) -> Any:
        if known.takes is not Takes.FIELD:
            return operand(known, found, value, "filter", None)
        beside, other = self._field(".".join([*(r.name for r in path), str(value)]))
        if other.kind is not found.kind or beside != path:
            raise InvalidQuery(f"filter: {value!r} is not of the same kind")
        return other

    def _field(self, name: str) -> tuple[tuple[RelationMeta, ...], FieldMeta]:
        path, model = self.walk(name.split(".")[:-1])
        found = None if model is None else find_field(model, name.rpartition(".")[2])
        if found is None:
            raise InvalidQuery(f"{self.model.name} has no field {name!r}")
        return path, found

    def walk(
        self, names: Sequence[str], *, revealing: bool = True
    ) -> tuple[tuple[RelationMeta, ...], ModelMeta | None]:
        """The relations of a dotted path and the model at its end; None when there is no such path.

        Clients go no way that hangs on a secret key: with `revealing=False` it is not there.
        """
        model: ModelMeta | None = self.model
        path: list[RelationMeta] = []
        for name in names:
            relation = None if model is None else model.relations.get(name)
            if relation is None or model is None or not (revealing or shows(model, relation, self.models)):
                return (), None
            path.append(relation)
            model = self.models.get(relation.target)
        return tuple(path), model


class Unaimed(Query):
    """The query of a request to no model: there is nothing to filter, but it can be bound.

    What the request looks at later must have the fields it is bound by.
    """

    __slots__ = ()

    def __init__(self, models: Models) -> None:
        super().__init__(None, models)  # type: ignore[arg-type]  # that is the point

    def force(self, name: str, value: Any = None, op: str = Op.EQ) -> None:
        bound = next((m for m in self.models.values() if find_field(m, name) is not None), None)
        if bound is None:
            raise UnusableScope(f"no model can be bound by {name!r}")
        found = Query(bound, self.models)
        found.force(name, value, op)
        self.forced = (*self.forced, *found.forced)

    def _field(self, name: str) -> tuple[tuple[RelationMeta, ...], FieldMeta]:
        raise InvalidQuery(f"this request is about no model, so {name!r} is no field of it")


def _imposed(model: ModelMeta, field: FieldMeta, op: str, value: Any) -> tuple[Op, Any]:
    """Operator and value of a forced condition; who made the mistake is no client, so none learns of it."""
    where = f"{model.name} cannot be bound by {field.name!r}"
    try:
        known = known_operator(op, field, "force")
        wanted = None if value is None else operand(known, field, value, "force", None)
    except InvalidQuery as error:
        raise UnusableScope(f"{where}: {error}") from error
    if known.takes is Takes.FIELD:
        raise UnusableScope(f"{where} {op}")
    if value is None and known.takes is not Takes.NOTHING:
        # A tenant nobody set must not open the rows that have none; is_null says that it is meant.
        raise UnusableScope(f"{where} to nothing; use is_null")
    return known.op, wanted


def shows(model: ModelMeta, relation: RelationMeta, models: Models) -> bool:
    """Whether a client may follow the relation: a secret key would show by where it leads."""
    holder = relation.through or relation.target
    owner = model if relation.kind is RelationKind.BELONGS_TO else models.get(holder)
    keys = [key for key in (relation.key, relation.far_key) if key]
    target = models.get(relation.target)
    if owner is None or target is None or target.options.headless:  # no routes: for code alone
        return False
    return not any(owner.by_name[key].secret for key in keys)


def find_field(model: ModelMeta, name: str) -> FieldMeta | None:
    """The field of that attribute, API or column name."""
    found = model.field(name)
    if found is None:
        found = next((f for f in model.fields if f.column == name), None)
    return found
