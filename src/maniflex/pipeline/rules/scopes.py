"""Scope rules: which rows of a model a caller may touch, wherever these rows show.

A `ScopeRule` is registered once and binds its models in requests to them, where other models lead to
them, and in code. `declared_scopes` gathers the rules of a server when it is sealed; a server without
rules asks nothing. Which value binds a caller is worked out once in a
request; a rule that cannot tell refuses, it never lets everything pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from maniflex._names import did_you_mean
from maniflex.db.backed_store import operator_problems
from maniflex.errors import InvalidQuery, OutOfScope, RequestError, UnusableScope
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Entry, EntryDocs, EntryRule, Filled, Piece, Trait
from maniflex.pipeline.operation import Operation, covered, with_changes_of_read_rows
from maniflex.pipeline.registration import ACTION, MEANT_FOR_TASKS, Admission, At, callback_failure
from maniflex.query.operators import OPERATORS, Op, Takes, operator
from maniflex.query.query import (
    Forced,
    Models,
    Narrowed,
    Place,
    field_along,
    forced_operand,
    forced_operator,
)

if TYPE_CHECKING:
    from maniflex.pipeline.entry import Placement, Seat
    from maniflex.pipeline.registration import Middleware, Next, Pipeline, Registration

LAST = 900  # the rank of rules: identity and roles are known, nothing is looked up yet
_MOST_CONDITIONS = 512


class _All:
    """The value that lifts a rule on purpose."""

    def __repr__(self) -> str:
        return "db.ALL"


ALL: Final = _All()


class ScopeRule(Entry):
    """Binds the rows of its models to a value of the caller, in one of their fields."""

    homes: ClassVar[Mapping[str, Sequence[At]]] = {"auth": ANYWHERE, "db": ANYWHERE, ACTION: ANYWHERE}
    opens_lists: bool = False  # it guards single records, and leaves lists and what leads to them open
    traits = Trait.VARIES_BY_CALLER
    # The refusal of a caller whose rows cannot be told.
    undetermined_codes: ClassVar[Mapping[int, Sequence[str]]] = {403: ("FORBIDDEN",)}

    def __init__(
        self, path: Any, value: Any, op: Any = "eq", *, unless_role: str | Iterable[str] | None = None
    ) -> None:
        super().__init__()
        self.path: str = path  # of the field, from the model that is bound
        self._given_value = value
        self._op = op
        kind = operator(op) if isinstance(op, str) else None
        self._takes_value = kind is None or kind.takes is not Takes.NOTHING
        self._exempt_roles = _names(unless_role)
        self._ask: Callable[[Context], Any] | None = value if callable(value) else None
        self._rules: dict[tuple[ModelMeta, bool], ModelRule | None] = {}  # by model and `of_shown`
        self.mistakes += self._argument_mistakes(unless_role)

    def _argument_mistakes(self, unless_role: Any) -> Iterator[str]:
        path: Any = self.path
        if not isinstance(path, str) or not path:
            yield f"a field is named by a text, not {path!r}"
        kind = operator(self._op) if isinstance(self._op, str) else None
        if kind is None:
            yield f"there is no operator {self._op!r}{did_you_mean(str(self._op), OPERATORS)}"
        elif kind.takes is Takes.FIELD:
            yield f"{self._op} compares two fields; a rule compares a field with a value"
        elif self._takes_value and self._ask is None and _is_empty(self._given_value):
            yield "the value is empty, so nobody could see anything; db.ALL lifts the rule"
        if unless_role is not None and not all(isinstance(r, str) and r for r in self._exempt_roles or ("",)):
            yield f"unless_role is the name of a role, not {unless_role!r}"

    @property
    def needs_identity(self) -> bool:
        """Whether the rule refuses a caller of whom nothing is known."""
        return self._ask is not None and self._takes_value

    @property
    def needs_tenant(self) -> bool:
        """Whether the rule refuses a caller who has no tenant."""
        return False

    @property
    def terms(self) -> str:
        return f"{self.path} unless {', '.join(self._exempt_roles)}" if self._exempt_roles else self.path

    # -- which models

    def binds(self, model: ModelMeta, models: Models) -> bool:
        """Whether the model has what the rule compares."""
        return field_along(model, self.path, models) is not None

    def bound_models(self, seat: Seat) -> Iterator[ModelMeta]:
        """The models of a registration; without names all that have the field, but no internal table.

        Internal tables have guards of their own, which know tenants and operators.
        """
        if seat.is_named:
            yield from seat.models
            return
        for meta in seat.registered.values():
            if not meta.is_internal and self.may_bind(meta) and self.binds(meta, seat.registered):
                yield meta

    def may_bind(self, model: ModelMeta) -> bool:
        """Whether a model that has the field is meant too."""
        return True

    def problems(self, seat: Seat) -> Iterator[str]:
        is_bound = False
        for meta in self.bound_models(seat):
            is_bound = True
            place = field_along(meta, self.path, seat.registered)
            if place is None:
                yield self.describe_missing(meta, seat.registered)
            else:
                yield from self._value_problems(meta, place[1])
        if not is_bound:
            yield self.describe_unbound(seat)

    def describe_missing(self, model: ModelMeta, models: Models) -> str:
        """Says that a model cannot be bound."""
        return f"{model.name} has no field {self.path!r}{did_you_mean(self.path, model.by_name)}"

    def describe_unbound(self, seat: Seat) -> str:
        """Says that no model can be bound."""
        names = {name for meta in seat.registered.values() for name in meta.by_name}
        return f"no model has a field {self.path!r}{did_you_mean(self.path, names)}"

    def _value_problems(self, model: ModelMeta, field: FieldMeta) -> Iterator[str]:
        try:
            forced_operator(model, field, self._op)
            if self._ask is None and self._given_value is not ALL:
                forced_operand(model, field, self._op, self._given_value)
        except (InvalidQuery, UnusableScope) as error:
            yield str(error)
        yield from operator_problems(model, str(self._op))

    # -- where it stands

    def pieces(self, seat: Seat) -> Iterator[Piece]:
        bound_names = {meta.name for meta in self.bound_models(seat)}
        operations = self.operations(seat) or seat.operations
        make = partial(self._make_rule, bound_names, seat.registered, operations)
        yield Piece("auth", make, At.AFTER, LAST, with_changes_of_read_rows(operations))

    def operations(self, seat: Seat) -> frozenset[Operation] | None:
        """The operations it binds; None for those of the registration."""
        return None

    def _make_rule(
        self,
        bound: set[str],
        models: Models,
        operations: frozenset[Operation] | None,
        model: ModelMeta | None,
        operation: Operation,
    ) -> Middleware | None:
        if model is None or model.name not in bound:
            return None
        is_meant = operations is None or any(
            covered(operations, operation, item=item) for item in (True, False)
        )
        # The one row of a singleton is found by the values of its scope, whether it is read or written.
        return self.on_model(model, models, of_shown=not is_meant and not model.options.singleton)

    def on_model(self, model: ModelMeta, models: Models, *, of_shown: bool = False) -> ModelRule | None:
        """The rule on one model: always the same one, so that a request passes it once.

        With `of_shown` it says which rows may be changed, and nothing of what these become.
        """
        key = (model, of_shown)
        if key not in self._rules:
            place = field_along(model, self.path, models)
            self._rules[key] = None if place is None else ModelRule(self, model, place, models, of_shown)
        return self._rules[key]

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        """In an action: what binds all models that have the field."""
        return ActionRule(self)

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        refused = self.undetermined_codes if self._ask is not None else {}
        parent = {404: ("NOT_FOUND",)} if "." in self.path and operation is Operation.CREATE else {}
        return EntryDocs(refusals={**refused, **parent}) if refused or parent else None

    def rules(self, seat: Seat) -> Iterator[EntryRule]:
        if self._op == Op.EQ and "." not in self.path and not self._exempt_roles:
            for model in self.bound_models(seat):
                field = model.field(self.path)
                if field is not None:
                    yield Filled(model, field.name)

    # -- whose rows

    def value_for(self, ctx: Context) -> Any:
        """The value that binds this caller, or an awaitable of it."""
        if self._exempt_roles and self.exempts(ctx):
            return ALL
        return self._given_value if self._ask is None else ask_once(self, self._ask, ctx)

    def exempts(self, ctx: Context) -> bool:
        """Whether the caller has a role that the rule does not bind."""
        return any(ctx.has_role(role) for role in self._exempt_roles)

    def refusal(self, ctx: Context) -> RequestError:
        """The answer to a caller whose rows cannot be told."""
        return OutOfScope()

    def type_value(self, model: ModelMeta, field: FieldMeta, value: Any) -> tuple[Op, Any]:
        """The operator, and the value as the type of a field; `UnusableScope` when it does not fit."""
        return forced_operand(model, field, self._op, value if self._takes_value else None)

    def is_undetermined(self, value: Any) -> bool:
        """Whether the value says nothing of whose rows they are."""
        return self._takes_value and _is_empty(value)


def opens_lists(registration: Registration) -> bool:
    """Whether the registration is of an entry that guards single records and says that lists stay open."""
    return isinstance(registration.fn, ScopeRule) and registration.fn.opens_lists


def unique_among_all(placement: Placement) -> Iterator[tuple[ScopeRule, ModelMeta, FieldMeta]]:
    """Fields of bound models whose values must differ from those of rows their callers do not see."""
    rules = [(entry, seat) for entry, seat in placement.seats if isinstance(entry, ScopeRule)]
    for rule, seat in rules:
        for meta in rule.bound_models(seat):
            for field in meta.fields:
                if field.unique and not field.unique_within and field.name != "id":
                    yield rule, meta, field


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


class ModelRule(Admission, BindingRule):
    """A rule on the rows of one model.

    It stands in the auth step of requests to the model, and before its rows where a request to another one
    reaches them. `conditions` is for code.
    """

    def __init__(
        self, rule: ScopeRule, model: ModelMeta, place: Place, models: Models, of_shown: bool = False
    ) -> None:
        path, field = place
        self._of_shown = of_shown
        self.__name__ = rule.name
        self._rule = rule
        self._model = model
        self._field = field
        self._name = ".".join([*(relation.name for relation in path), field.name])
        self._models = models
        self._by_text: dict[str, Forced] = {}  # the same few values come again and again

    def admit(self, ctx: Context) -> Awaitable[None] | None:
        """Bind the request to its rows."""
        value = self._rule.value_for(ctx)
        condition = self._by_text.get(value) if value.__class__ is str else None
        if condition is None:
            if inspect.isawaitable(value):
                return self._bind_later(ctx, value)
            condition = self._condition(ctx, value)
            if condition is None:
                return None
        if ctx._query is not None:
            _bind_to(ctx, condition)
            return None
        query_string = ctx.scope["query_string"] if ctx.operation in Operation.READS else b""
        listings = ctx.runtime.stores[self._model.cls].listings
        listing = listings.within(query_string, condition)
        if listings.own.locales is not None:
            listing = listing.in_view(ctx.view)
        ctx.client_listing = listing
        ctx._query = listing.query
        return None

    async def _bind_later(self, ctx: Context, value: Awaitable[Any]) -> None:
        condition = self._condition(ctx, await value)
        if condition is not None:
            _bind_to(ctx, condition)

    async def conditions(self, ctx: Context, /) -> Sequence[Forced]:
        value = self._rule.value_for(ctx)
        condition = self._condition(ctx, await value if inspect.isawaitable(value) else value)
        return () if condition is None else (condition,)

    def _condition(self, ctx: Context, value: Any) -> Forced | None:
        if value is ALL:
            return None
        if self._rule.is_undetermined(value):
            raise self._rule.refusal(ctx)
        condition = self._by_text.get(value) if type(value) is str else None
        return self._make_condition(value) if condition is None else condition

    def _make_condition(self, value: Any) -> Forced:
        field = self._field
        op, typed_value = self._rule.type_value(self._model, field, value)
        condition = Forced(
            self._name,
            op,
            typed_value,
            field.kind,
            self._model.name,
            self._models,
            by_rule=True,
            of_shown=self._of_shown,
        )
        if type(value) is str:
            if len(self._by_text) >= _MOST_CONDITIONS:
                self._by_text.pop(next(iter(self._by_text)), None)
            self._by_text[value] = condition
        return condition


def _bind_to(ctx: Context, condition: Forced) -> None:
    query = ctx._query or ctx.current_query()
    listing = ctx.client_listing
    if listing is not None and listing.query is query:  # as the client wrote it; others are bound alike
        ctx.client_listing = listing = listing.within(condition)
        ctx._query = listing.query
    else:
        ctx._query = query.with_(forced=(*query.forced, condition))


class ActionRule:
    """A rule in the middleware of an action: it binds every model that has the field, there alone."""

    def __init__(self, rule: ScopeRule) -> None:
        self.__name__ = rule.name
        self._rule = rule

    async def __call__(self, ctx: Context, next: Next) -> None:
        ctx.bound_action = True
        query = ctx.current_query()
        conditions = [c for rule in self._model_rules(query.models) for c in await rule.conditions(ctx)]
        ctx._query = query.with_(forced=(*query.forced, *conditions))
        await next()

    def _model_rules(self, models: Models) -> Iterator[ModelRule]:
        for meta in models.values():
            rule = None if meta.is_internal else self._rule.on_model(meta, models)
            if rule is not None and self._rule.may_bind(meta):
                yield rule


def declared_scopes(
    pipeline: Pipeline, models: Sequence[ModelMeta]
) -> Iterator[tuple[type[Model], TableRule]]:
    """The rules that bind code, with the models they are on."""
    for registration in pipeline.auth.registrations:
        if isinstance(registration.fn, Entry):
            for meta in models:
                yield from ((meta.cls, rule) for rule in _table_rules(registration, meta))


_IN_CODE = (Operation.LIST, Operation.READ, Operation.CREATE, Operation.UPDATE, Operation.DELETE)


def _table_rules(registration: Registration, model: ModelMeta) -> Iterator[TableRule]:
    """What a registration says of code that does one of these operations to records of the model."""
    operations: dict[BindingRule, set[Operation]] = {}
    for operation in _IN_CODE:
        if registration.matches(model, operation, item=True):
            rule: Any = registration.middleware(model, operation)
            if isinstance(rule, BindingRule):
                operations.setdefault(rule, set()).add(operation)
    for rule, its_operations in operations.items():
        is_for_reads = Operation.READ in its_operations and not opens_lists(registration)
        yield TableRule(rule, frozenset(its_operations), Operation.LIST in its_operations or is_for_reads)


def _is_empty(value: Any) -> bool:
    """None, an empty text and an empty list; 0 and False are values."""
    return value is None or (isinstance(value, str | list | tuple | set | frozenset) and not value)


def _names(roles: Any) -> tuple[Any, ...]:
    if roles is None:
        return ()
    return (roles,) if isinstance(roles, str) or not isinstance(roles, Iterable) else tuple(roles)


def ask_once(rule: object, fn: Callable[[Context], Any], ctx: Context) -> Any:
    """What a callback says of the caller, who is asked about once: it may cost a statement."""
    owner = ctx
    while owner.parent is not None and owner.parent.auth is ctx.auth:
        owner = owner.parent
    if owner.rule_values is None:
        owner.rule_values = {}
    asked = owner.rule_values.get(rule)
    if asked is not None and asked[0] is ctx.auth:
        return asked[1]
    try:
        value = fn(ctx)
    except (RequestError, *MEANT_FOR_TASKS):
        raise
    except BaseException as error:
        raise callback_failure(fn) from error
    if value.__class__ is not str and inspect.isawaitable(value):
        return _await_once(rule, fn, owner, ctx.auth, value)
    owner.rule_values[rule] = (ctx.auth, value)
    return value


async def _await_once(rule: object, fn: Any, owner: Context, auth: Any, waiting: Awaitable[Any]) -> Any:
    try:
        value = await waiting
    except (RequestError, *MEANT_FOR_TASKS):
        raise
    except BaseException as error:
        raise callback_failure(fn) from error
    assert owner.rule_values is not None
    owner.rule_values[rule] = (auth, value)
    return value
