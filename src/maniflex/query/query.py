"""What a client asks of a list, as a value: no strings left to parse, no SQL yet."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from maniflex._names import did_you_mean
from maniflex.config import DEFAULT_LIMIT
from maniflex.errors import InvalidQuery, UnusableQuery, UnusableScope
from maniflex.model.base import Model
from maniflex.model.history_row import RECORD, is_history
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind, RelationMeta
from maniflex.model.texts import LOCALE, TEXT
from maniflex.query.operators import Op, Operator, Takes, fold_case
from maniflex.query.values import operand, require_operator

Models = Mapping[str, ModelMeta]
Place = tuple[tuple[RelationMeta, ...], FieldMeta]  # a field, and the relations that lead to it
ModelName = type[Model] | ModelMeta | str


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
    """A condition the server imposes, by name: it binds every model that has such a field.

    A dotted name follows `belongs_to` relations to the field of another record. With `model` the
    condition binds the rows of that model alone.
    """

    name: str
    op: Op
    value: Any
    kind: Kind  # of the field the value was typed for
    model: str | None
    models: Models = field(compare=False, repr=False)  # that a dotted name can lead to
    by_rule: bool = field(default=False, compare=False)  # a scope rule: who is outside it is not there
    of_shown: bool = False  # what is shown: a row that is written need not end up inside

    def __hash__(self) -> int:
        return hash(self.value)  # enough to tell scopes apart, and a fifth of what hashing all fields takes

    def on(self, model: ModelMeta) -> Compare | None:
        """The condition on that model, if it has the field; its value as that model's type."""
        if self.model is not None and self.model != model.name:
            return None
        path: tuple[RelationMeta, ...] = ()
        if "." not in self.name:
            field = find_field(model, self.name)
        else:
            path, field = field_along(model, self.name, self.models) or ((), None)
        if field is None:
            return None
        if field.kind is self.kind:
            return Compare(field, self.op, self.value, path)
        return Compare(field, self.op, forced_operand(model, field, self.op, self.value)[1], path)

    def binds(self, model: ModelMeta) -> bool:
        """Whether the rows of that model have what the condition asks for."""
        if self.model is not None and self.model != model.name:
            return False
        return field_along(model, self.name, self.models) is not None

    def limited_to(self, model: ModelMeta) -> Iterator[Forced]:
        """This condition for the rows of one model alone, unless it names another model itself.

        If that model lacks the field, the condition stays with the related models that have it.
        """
        if self.model is not None:
            yield self
        elif self.binds(model):
            yield replace(self, model=model.name)
        else:
            for meta in related_models(model, self.models):
                if self.binds(meta):
                    yield replace(self, model=meta.name)

    def asks_like(self, other: Forced) -> bool:
        """Whether both ask for the same of different models; one value may have two types.

        True, false and nothing are the values of many fields, so there the name at the end counts too.
        """
        if self.op is not other.op or str(self.value) != str(other.value):
            return False
        telling = self.value is not None and not isinstance(self.value, bool)
        return telling or self.name.rpartition(".")[2] == other.name.rpartition(".")[2]

    def says(self, other: Forced) -> bool:
        """Whether rows that satisfy this condition satisfy the other one anyhow."""
        alike = (self.name, self.op, self.value) == (other.name, other.op, other.value)
        return alike and self.model in (None, other.model) and self.of_shown <= other.of_shown


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A filter that binds the rows of one model wherever the request meets them."""

    filter: Filter
    model: str
    of_shown: bool = False  # what is shown: a row that is written need not end up inside

    def __hash__(self) -> int:
        return hash(self.model)

    def on(self, model: ModelMeta) -> Filter | None:
        """The filter, if it is about that model."""
        return self.filter if model.name == self.model else None


Scope = tuple[Forced | Narrowed, ...]


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
    scope: str = ""  # what the request that made the token was bound to


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Query:
    """Paging, filters and order of one list: a value, of which `with_` and its kin make another."""

    model: ModelMeta
    models: Models
    page: int = 1
    limit: int | None = DEFAULT_LIMIT  # None: no paging, for code that wants them all
    filters: tuple[Filter, ...] = ()
    forced: Scope = ()
    must_bind: bool = False  # the model itself must have every name it is bound by
    sorts: tuple[Sort, ...] = ()
    includes: tuple[Include, ...] = ()
    select: tuple[FieldMeta, ...] | None = None
    search: str | None = None
    cursor: Cursor | None = None

    def __repr__(self) -> str:
        return f"<Query {self.model.name} page={self.page} limit={self.limit} {self.filters} {self.sorts}>"

    def with_(self, **parts: Any) -> Query:
        """The same query with other parts: `query.with_(page=2)`."""
        return type(self)(**({name: getattr(self, name) for name in Query.__slots__} | parts))

    def with_scope(self, scope: Scope) -> Query:
        """The same query bound to this scope."""
        return type(self)(  # part by part, because every request that is bound makes one
            self.model,
            self.models,
            self.page,
            self.limit,
            self.filters,
            scope,
            self.must_bind,
            self.sorts,
            self.includes,
            self.select,
            self.search,
            self.cursor,
        )

    def with_filter(self, name: str, value: Any = None, op: str = Op.EQ) -> Query:
        """The query narrowed further; unlike a client, code may use any field."""
        from maniflex.query.conditions import ConditionReader  # which makes the values of this module

        condition = ConditionReader(self).condition(name, op, value, "filter")
        return self.with_(filters=(*self.filters, condition))

    def with_sort(self, name: str, direction: str = "asc") -> Query:
        """The query sorted by one more field, after those already there."""
        if direction not in ("asc", "desc"):
            raise UnusableQuery(
                f"{self.model.name}: sort: {direction!r} of {name!r} is neither 'asc' nor 'desc'"
            )
        path, field = self._field(name)
        return self.with_(sorts=(*self.sorts, Sort(field, direction == "desc", path)))

    def with_force(
        self, name: str, value: Any = None, op: str = Op.EQ, *, model: ModelName | None = None
    ) -> Query:
        """The query bound to rows where this holds, as `ctx.query.force` says."""
        if model is None:
            holder, place = self._place(name)
        else:
            holder = self._model_named(model)
            place = field_along(holder, name, self.models)
        if place is None:
            hint = did_you_mean(name, holder.by_name)
            raise UnusableScope(f"{holder.name} cannot be bound by {name!r}: it has no such field{hint}")
        known_op, known_value = forced_operand(holder, place[1], op, value)
        only = None if model is None else holder.name
        condition = Forced(name, known_op, known_value, place[1].kind, only, self.models)
        return self.with_scope((*self.forced, condition))

    def _place(self, name: str) -> tuple[ModelMeta, Place | None]:
        """The field that types a value: of the request's own model, or of the nearest related one."""
        place = field_along(self.model, name, self.models)
        if place is None and not self.must_bind:
            for meta in related_models(self.model, self.models):
                place = field_along(meta, name, self.models)
                if place is not None:
                    return meta, place
        return self.model, place

    def _model_named(self, model: ModelName) -> ModelMeta:
        name = model.name if isinstance(model, ModelMeta) else getattr(model, "__name__", model)
        if not isinstance(name, str):
            raise UnusableScope(f"{type(name).__name__!r} is no model, so it cannot be bound")
        meta = self.models.get(name)
        if meta is None:
            hint = did_you_mean(name, self.models)
            raise UnusableScope(f"no model named {name!r} is registered, so it cannot be bound{hint}")
        return meta

    def _field(self, name: str) -> tuple[tuple[RelationMeta, ...], FieldMeta]:
        path, model = self.walk(name.split(".")[:-1])
        last = name.rpartition(".")[2]
        field = None if model is None else find_field(model, last)
        if field is None:
            hint = "" if model is None else did_you_mean(last, model.by_name)
            raise UnusableQuery(f"{self.model.name}: sort: {name!r} is not a field{hint}")
        return path, field

    def walk(
        self, names: Sequence[str], *, closes: Callable[[FieldMeta], bool] | None = None
    ) -> tuple[tuple[RelationMeta, ...], ModelMeta | None]:
        """The relations of a dotted path and the model at its end; None when there is no such path.

        Clients go no way that hangs on a secret key, or on one that `closes` says is closed to them.
        """
        model: ModelMeta | None = self.model
        path: list[RelationMeta] = []
        for name in names:
            relation = None if model is None else model.relations.get(name)
            if relation is None or model is None:
                return (), None
            if closes is not None and not shows(model, relation, self.models, hides=closes):
                return (), None
            path.append(relation)
            model = self.models.get(relation.target)
        return tuple(path), model


class ModellessQuery(Query):
    """The query of a request to no model: there is nothing to filter, but it can be bound."""

    __slots__ = ()

    @classmethod
    def over(cls, models: Models) -> ModellessQuery:
        """The query of a request that may reach these models."""
        return cls(None, models)  # type: ignore[arg-type]  # that is the point

    def _place(self, name: str) -> tuple[ModelMeta, Place | None]:
        for meta in self.models.values():
            place = None if is_history(meta) else field_along(meta, name, self.models)
            if place is not None:
                return meta, place
        raise UnusableScope(f"no model can be bound by {name!r}")

    def _field(self, name: str) -> tuple[tuple[RelationMeta, ...], FieldMeta]:
        raise UnusableQuery(f"sort: this request is about no model, so {name!r} is no field of it")


def adopt(scope: Scope, other: Query) -> Scope:
    """The scope, and what another query is bound and narrowed to, for the rows of its model alone.

    What its model lacks the field for binds the models related to it, as in that query itself.
    """
    for condition in other.forced:
        if any(_implies(own, condition) for own in scope):
            continue
        parts = condition.limited_to(other.model) if isinstance(condition, Forced) else (condition,)
        for part in parts:
            if not any(_implies(own, part) for own in scope):
                scope = (*scope, part)
    if other.filters:
        scope = (*scope, *(Narrowed(item, other.model.name) for item in other.filters))
    return scope


def _implies(own: Forced | Narrowed, other: Forced | Narrowed) -> bool:
    if isinstance(own, Forced):
        return isinstance(other, Forced) and own.says(other)
    return own == other


def forced_operator(model: ModelMeta, field: FieldMeta, op: str) -> Operator:
    """The operator of a forced condition, if it works on the field, whoever asks in whichever language."""
    if LOCALE in field.extra:
        raise UnusableScope(f"{model.name} cannot be bound by {field.name!r}, which has translations")
    try:
        return require_operator(op, field, "force")
    except InvalidQuery as error:
        raise UnusableScope(f"{model.name} cannot be bound by {field.name!r}: {error}") from error


def forced_operand(model: ModelMeta, field: FieldMeta, op: str, value: Any) -> tuple[Op, Any]:
    """Operator and value of a forced condition; a mistake is the application's, so no client sees it."""
    operator = forced_operator(model, field, op)
    try:
        forced_value = None if value is None else operand(operator, field, value, "force", None)
    except InvalidQuery as error:
        raise UnusableScope(f"{model.name} cannot be bound by {field.name!r}: {error}") from error
    if operator.takes is Takes.FIELD:
        raise UnusableScope(f"{model.name} cannot be bound by {field.name!r} {op}")
    if value is None and operator.takes is not Takes.NOTHING:
        # A tenant nobody set must not open the rows that have none; is_null says that it is meant.
        raise UnusableScope(f"{model.name} cannot be bound by {field.name!r} to nothing; use is_null")
    return operator.op, forced_value


def shows(
    model: ModelMeta,
    relation: RelationMeta,
    models: Models,
    *,
    hides: Callable[[FieldMeta], bool] = lambda field: False,
) -> bool:
    """Whether a client may follow the relation: a key that is secret or hidden shows by where it leads."""
    holder = relation.through or relation.target
    owner = model if relation.kind is RelationKind.BELONGS_TO else models.get(holder)
    keys = [key for key in (relation.key, relation.far_key) if key]
    target = models.get(relation.target)
    if owner is None or target is None or target.options.headless:  # no routes: for code alone
        return False
    fields = [owner.by_name[key] for key in keys]
    return not any(field.secret for field in fields) and not any(hides(field) for field in fields)


def find_field(model: ModelMeta, name: str) -> FieldMeta | None:
    """The field of that attribute, API or column name."""
    field = model.field(name)
    if field is None:
        field = next((f for f in model.fields if f.column == name), None)
    return field


def field_along(model: ModelMeta, name: str, models: Models) -> Place | None:
    """The field of that name, or the one at the end of dotted `belongs_to` names, with its path."""
    if "." not in name:
        field = find_field(model, name)
        return None if field is None else ((), field)
    *names, last = name.split(".")
    path: list[RelationMeta] = []
    for step in names:
        relation = model.relations.get(step)
        target = None if relation is None else models.get(relation.target)
        if relation is None or target is None or relation.kind is not RelationKind.BELONGS_TO:
            return None
        path.append(relation)
        model = target
    field = find_field(model, last)
    return None if field is None else (tuple(path), field)


def leaves(filters: Sequence[Filter]) -> Iterator[Compare]:
    """Every comparison, in the order in which it was asked for."""
    for item in filters:
        if isinstance(item, AnyOf):
            yield from item.conditions
        else:
            yield item


def with_conditions(scope: Scope, conditions: Iterable[Forced | Narrowed]) -> Scope:
    """The scope and these conditions, without those it says already."""
    for condition in conditions:
        if not any(_implies(own, condition) for own in scope):
            scope = (*scope, condition)
    return scope


def through(model: ModelMeta, key: str, scope: Scope) -> Iterator[Forced]:
    """What the scope asks of the record that a written key names, if it binds rows through it."""
    for condition in scope:
        if not isinstance(condition, Forced) or condition.of_shown:
            continue
        item = condition.on(model)
        if item is not None and item.path and item.path[0].key == key:
            yield replace(condition, name=condition.name.partition(".")[2], model=item.path[0].target)


def models_reached(query: Query, includes: Iterable[Include]) -> tuple[str, ...]:
    """The names of the models that a query touches besides its own, if it includes these relations."""
    paths = [*(item.path for item in leaves(query.filters)), *(sort.path for sort in query.sorts)]
    return (*(name for path in paths for name in models_along(path)), *models_included(includes))


def models_included(includes: Iterable[Include]) -> Iterator[str]:
    """The names of the models whose records are included, and of those between."""
    for include in includes:
        yield from models_along((include.relation,))
        yield from models_included(include.nested)


@dataclass(frozen=True, slots=True)
class ClientQuery:
    """Filters and sorts that a client has sent and that were read by the rules of clients."""

    query: Query


# Which fields a caller may not see, as the readers of queries ask: field by field, when a client names
# one.
#
# Most callers have nothing hidden from them, and most models have no such fields; then it is `NOTHING`.


class Hiding(Protocol):
    """The fields that are hidden from one caller."""

    def hides(self, field: FieldMeta) -> bool:
        """Whether the caller may not see the values of the field."""

    def closes(self, field: FieldMeta) -> bool:
        """Whether the caller may not even compare them or sort by them."""


class _Nothing:
    def hides(self, field: FieldMeta) -> bool:
        return False

    def closes(self, field: FieldMeta) -> bool:
        return False


NOTHING: Hiding = _Nothing()


class AskedFields:
    """Hides nothing, and notes which of some fields a query is about."""

    def __init__(self, fields: Collection[FieldMeta]) -> None:
        self._fields = fields
        self.asked: dict[FieldMeta, None] = {}

    def hides(self, field: FieldMeta) -> bool:
        if field in self._fields:
            self.asked[field] = None
        return False

    closes = hides


class Undetermined(Exception):
    """Whether a field is hidden has to be worked out first."""

    def __init__(self, field: FieldMeta) -> None:
        super().__init__(field.name)
        self.field = field


# Which models relations lead to.


def related_models(model: ModelMeta, models: Mapping[str, ModelMeta]) -> Iterator[ModelMeta]:
    """The models that relations lead to from this one, nearest first; then those that refer to it."""
    visited_names = {model.name}
    for meta in reachable_models(model, models):
        visited_names.add(meta.name)
        yield meta
    for meta in models.values():
        refers = any(r.target == model.name for r in meta.relations.values())
        # A history says whose its rows are by the record alone; its own columns are about the author.
        if refers and meta.name not in visited_names and not is_history(meta):
            yield meta


def reachable_models(model: ModelMeta, models: Mapping[str, ModelMeta]) -> Iterator[ModelMeta]:
    """The models that relations lead to from this one, nearest first."""
    visited_names = {model.name}
    ahead = [model]
    for meta in ahead:  # grows while it is read
        for relation in meta.relations.values():
            for name in (relation.through, relation.target):
                if name is not None and name not in visited_names and name in models:
                    visited_names.add(name)
                    ahead.append(models[name])
                    yield models[name]


def models_along(path: Iterable[RelationMeta]) -> Iterator[str]:
    """The names of the models that a path of relations passes."""
    for relation in path:
        if relation.through is not None:
            yield relation.through
        yield relation.target


# What binds the records of a versioned model, on the rows of its history: through the record they tell
# of.
#
# A record that is marked as deleted still says whose its history is; one that is gone does not, so what
# is bound at all does not show the history of such a record.


def through_record(history: ModelMeta, query: Query) -> Scope:
    """The conditions and filters of a query for the parent, for the rows of its history alone."""
    return (
        *_conditions(history, query),
        *(_condition(history, item, query.models) for item in query.filters),
    )


def _conditions(history: ModelMeta, query: Query) -> Iterator[Forced | Narrowed]:
    for condition in query.forced:
        if isinstance(condition, Narrowed):
            if condition.model == query.model.name:
                yield _condition(history, condition.filter, query.models)
        elif condition.model == history.name:
            yield condition
        elif condition.binds(query.model):
            yield replace(condition, name=f"{RECORD}.{condition.name}", model=history.name)


def _condition(history: ModelMeta, item: Filter, models: Models) -> Forced | Narrowed:
    if isinstance(item, Compare) and _leads_to_one(item):
        name = ".".join((RECORD, *(relation.name for relation in item.path), item.field.name))
        return Forced(name, item.op, item.value, item.field.kind, history.name, models)
    record = history.relations[RECORD]
    if isinstance(item, AnyOf):
        return Narrowed(AnyOf(tuple(_reach_through(record, one) for one in item.conditions)), history.name)
    return Narrowed(_reach_through(record, item), history.name)


def _leads_to_one(item: Compare) -> bool:
    """Whether it compares a value with that of the record itself, or of one it belongs to."""
    is_value = not isinstance(item.value, FieldMeta) and TEXT not in item.field.extra
    return is_value and all(relation.kind is RelationKind.BELONGS_TO for relation in item.path)


def _reach_through(record: RelationMeta, item: Compare) -> Compare:
    return replace(item, path=(record, *item.path))


# What a scope says of rows that are written: which values their fields have.


def fields_fixed_by(model: ModelMeta, scope: Scope) -> set[str]:
    """The attributes whose values the scope sets, so that those in a body do not count."""
    return {item.field.name for item in fixed_values(model, scope)}


def fixed_values(model: ModelMeta, scope: Scope) -> Iterator[Compare]:
    """The conditions that say which value a field of a written row has."""
    for condition in scope:
        item = None if is_for_reading(condition) else condition.on(model)
        if isinstance(item, Compare) and item.op is Op.EQ and not item.path:
            yield item


def is_for_reading(condition: Forced | Narrowed) -> bool:
    """Whether the condition binds only rows that are shown."""
    return condition.of_shown


# The text of a search that leaves some of the searchable fields out.


class SearchText(str):
    """The text of a search, with the searchable fields that the search leaves out.

    A kind of `str`, so that these fields go along wherever the text goes.
    """

    __slots__ = ("without",)

    without: tuple[FieldMeta, ...]

    def __new__(cls, text: str, without: tuple[FieldMeta, ...]) -> SearchText:
        self = super().__new__(cls, text)
        self.without = without
        return self

    def __repr__(self) -> str:
        return f"SearchText({str(self)!r}, {[f.name for f in self.without]})"


def left_out(text: str | None) -> tuple[FieldMeta, ...]:
    """The fields that a search for this text leaves out."""
    return text.without if isinstance(text, SearchText) else ()


def search_shape(text: str | None) -> tuple[str, ...] | None:
    """The part of a search that decides the text of its statement: the fields that it leaves out."""
    return None if text is None else tuple([f.name for f in left_out(text)])


# Conditions on values in memory: what a row about to be written is held against.
#
# The databases evaluate the same operators in SQL (`sql/operators.py`); both must agree.


Matcher = Callable[[Any, Any], bool]


def holds(op: Op, value: Any, wanted: Any) -> bool:
    """Whether a value satisfies a condition; False where only the database can tell."""
    if value is None:
        return op is Op.IS_NULL
    return MATCHERS[op](value, wanted)


def _text(matcher: Callable[[str, str], bool]) -> Matcher:
    """A comparison of texts in which ASCII letters are alike; no other value satisfies it."""
    return lambda value, wanted: isinstance(value, str) and matcher(fold_case(value), fold_case(wanted))


def _matches_pattern(text: str, pattern: str) -> bool:
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    expression = "".join(wild.get(p) or re.escape(p[-1]) for p in parts)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def _cannot_be_told(value: Any, wanted: Any) -> bool:
    """Another field is no value; what it holds is known to the database alone."""
    return False


# Of a value that is not null.
MATCHERS: dict[Op, Matcher] = {
    Op.EQ: operator.eq,
    Op.NEQ: operator.ne,
    Op.GT: operator.gt,
    Op.GTE: operator.ge,
    Op.LT: operator.lt,
    Op.LTE: operator.le,
    Op.LIKE: lambda value, wanted: isinstance(value, str) and _matches_pattern(value, wanted),
    Op.ILIKE: _text(_matches_pattern),
    Op.CONTAINS: _text(operator.contains),
    Op.STARTS_WITH: _text(str.startswith),
    Op.ENDS_WITH: _text(str.endswith),
    Op.IN: lambda value, wanted: value in wanted,
    Op.NOT_IN: lambda value, wanted: value not in wanted,
    Op.BETWEEN: lambda value, wanted: bool(wanted[0] <= value <= wanted[1]),
    Op.IS_NULL: lambda value, wanted: False,
    Op.NOT_NULL: lambda value, wanted: True,
    Op.EQ_FIELD: _cannot_be_told,
    Op.NEQ_FIELD: _cannot_be_told,
    Op.GT_FIELD: _cannot_be_told,
    Op.GTE_FIELD: _cannot_be_told,
    Op.LT_FIELD: _cannot_be_told,
    Op.LTE_FIELD: _cannot_be_told,
}
