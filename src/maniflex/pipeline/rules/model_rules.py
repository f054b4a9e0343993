"""The rules of a server by model: which rows and fields of it callers see, and what they may write.

Every surface that shows or changes records asks here, whatever brought it to them: routes, includes, exports,
files, histories, searches, aggregates, trails, the panel, code. Entries of the catalogue and features declare
rules while the server is put together; then each model gets one `ModelRules`, which changes no more.

    rules = runtime.rules[Post]
    rules.binding(Operation.LIST)             # conditions of scope rules, for code
    rules.judge(Operation.LIST, item=False)   # may this caller see this row?
    await ctx.redacted(Post)                  # which fields of it may the caller not see?
    rules.changes(Operation.LIST)             # which fields are shown in another form?
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from maniflex._callables import is_async
from maniflex.db.store import Store
from maniflex.model.base import Model
from maniflex.model.history_row import secret_names
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.entry import Entry, FieldTransform
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.rules.checks import Check
from maniflex.pipeline.rules.policies import RowJudge, TablePolicy, declared_policies
from maniflex.pipeline.rules.redactions import (
    NONE,
    Names,
    RedactionRule,
    RefuseHidden,
    answer_of_rule,
    ask_rule,
    names_hidden_later,
)
from maniflex.pipeline.rules.scopes import TableRule, declared_scopes
from maniflex.pipeline.rules.transforms import Transform
from maniflex.query.query import Hiding, Undetermined, models_included, reachable_models
from maniflex.sql.search import searchable_fields

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context
    from maniflex.pipeline.entry import Placement
    from maniflex.pipeline.registration import Registration
    from maniflex.pipeline.serializer import Serializer

T = TypeVar("T")


@dataclass(slots=True)
class _Declared:
    """What was declared about one model so far."""

    scopes: list[TableRule] = field(default_factory=list)
    policies: list[TablePolicy] = field(default_factory=list)
    redactions: list[RedactionRule] = field(default_factory=list)
    transforms: list[Transform] = field(default_factory=list)


class ModelRules:
    """The rules of one model; where nobody declared any, all it gives is empty."""

    def __init__(self, store: Store, declared: _Declared, checks: Sequence[Registration]) -> None:
        self.meta = store.meta
        self.scopes = tuple(declared.scopes)
        self.redactions = tuple(declared.redactions)
        self.transforms = tuple(declared.transforms)
        self._store = store
        self._policies = tuple(declared.policies)
        self._checks = tuple(checks)
        self._acting: dict[tuple[Operation, ModelMeta | None], tuple[RedactionRule, ...]] = {}
        # The rules that bind rows which code or a request reaches through another model.
        self.binding_reached = tuple([rule for rule in self.scopes if rule.binds_reached])
        # What is counted, searched or joined would tell of rows that SQL does not leave out.
        self.judges_rows = bool(self._policies)
        self.hides_rows = self.judge(Operation.LIST, item=False).hides_rows
        self.judge_of_included = self._judge(
            lambda one: one.covers(Operation.LIST, item=False) or one.covers(Operation.READ, item=True)
        )
        self.changes_of_included = tuple([t for t in self.transforms if t.covers_included])
        # For refusals of an update that would tell of the row.
        self.judge_of_changes = self.judge_of_stored(Operation.UPDATE)

    # -- rows: conditions that go into statements

    def binding(self, operation: Operation) -> Sequence[TableRule]:
        """The scope rules that bind code which does this to records of the model."""
        return [rule for rule in self.scopes if rule.covers(operation)]

    def is_read_apart(self, operation: Operation) -> bool:
        """Whether a scope rule binds reads and not such a write: its caller may make what it cannot read."""
        return any(r.covers(Operation.READ) and not r.covers(operation) for r in self.scopes)

    # -- rows: judges of those that code has in hand

    def judge(self, operation: Operation, *, item: bool) -> RowJudge:
        """Who judges rows for such an operation, on one record (`item`) or on many."""
        return self._judge(lambda one: one.covers(operation, item=item))

    def judge_of_stored(self, operation: Operation) -> RowJudge:
        """Who judges a stored row that such a write changes: whoever may not read it cannot change it."""
        return self._judge(
            lambda one: one.covers(operation, item=True) or one.covers(Operation.READ, item=True)
        )

    def judge_of_answer(self, operation: Operation) -> RowJudge:
        """Who does not judge the row which such a write makes, but whether the caller is shown it."""
        return self._judge(
            lambda one: one.covers(Operation.READ, item=True) and not one.covers(operation, item=True)
        )

    def _judge(self, has_say: Callable[[TablePolicy], bool]) -> RowJudge:
        return RowJudge(self._store, [one for one in self._policies if has_say(one)])

    # -- fields

    def hidden_fields(self, request: Context) -> Names | Awaitable[Names]:
        """The keys that this caller does not see in records of the model, or an awaitable of them.

        `request` is the request itself, and no view of it: `ctx.redacted` is the way here for code.
        """
        names = NONE
        rules = self._acting.get((request.operation, request.model)) or self.acting(request)
        for rule in rules:
            value = ask_rule(request, rule.when)
            if value is False:
                continue
            if value is not True:
                return names_hidden_later(request, rules[rules.index(rule) :], names, value)
            names |= {rule.name}
        return names

    def acting(self, request: Context) -> tuple[RedactionRule, ...]:
        """The rules of redaction that act on a request to this model, or to one that reaches it."""
        about: ModelMeta | None = request.model
        rules = self._acting.get((request.operation, about))
        if rules is None:
            is_own = about is not None and about.cls is self.meta.cls
            rules = tuple([r for r in self.redactions if r.covers(request.operation, own=is_own)])
            self._acting[request.operation, about] = rules
        return rules

    @property
    def waits(self) -> bool:
        """Whether a rule of redaction says by its form that its answer is to be awaited."""
        return any(is_async(rule.when) for rule in self.redactions)

    async def unshown_fields(self, ctx: Context) -> Names:
        """The keys that a history or a trail must not show to this caller of what it keeps of records.

        Secrets are not kept; a field that became one since is among these names.
        """
        return secret_names(self.meta) | await ctx.redacted(self.meta.cls)

    async def serializer(self, request: Context) -> Serializer:
        """How this caller sees records of the model."""
        names = self.hidden_fields(request)
        serializer = request.runtime.serializers[self.meta.cls]
        return serializer.without(names if isinstance(names, frozenset) else await names)

    def changes(self, operation: Operation) -> Sequence[Transform]:
        """The fields that answers of such an operation show in another form."""
        return [transform for transform in self.transforms if transform.covers(operation)]

    # -- writes

    def checks(self, operation: Operation) -> list[Check]:
        """The rules that entries add to such a write."""
        return [
            check
            for r in self._checks
            if isinstance(r.fn, Entry) and r.matches(self.meta, operation, item=True)
            for check in r.fn.checks(self.meta, operation)
        ]


class ServerRules(dict[type[Model], ModelRules]):
    """The rules of every model that has a store, once they are sealed."""

    def __init__(self, stores: Mapping[type[Model], Store], placement: Placement) -> None:
        super().__init__()
        self._stores = stores
        self._placement = placement
        self._declared = {cls: _Declared() for cls in stores}
        self._redacted_fields: dict[FieldMeta, list[RedactionRule]] = {}
        self._open_serializers: dict[type[Model], Serializer] | None = None  # of models without redaction
        self._classes = {store.meta.name: cls for cls, store in stores.items()}
        self.scoped_models: list[type[Model]] = []  # by the registrations that bind them
        self.has_policies = self.has_redactions = False
        self.hidden_models: frozenset[str] = frozenset()  # with rows that policies alone hide from requests
        self._collect()

    def _collect(self) -> None:
        """Ask the entries of the server."""
        pipeline = self._placement.pipeline
        metas = [store.meta for store in self._stores.values()]
        for cls, scope_rule in declared_scopes(pipeline, metas):
            self._declared[cls].scopes.append(scope_rule)
            if cls not in self.scoped_models:
                self.scoped_models.append(cls)
        for cls, policy in declared_policies(pipeline, metas):
            self.add_policy(cls, policy)
        for rule in self._placement.rules:
            if isinstance(rule, FieldTransform):
                self.add_transform(rule.model, rule.transform)
            elif isinstance(rule, RedactionRule):
                self.add_redaction(rule)

    def add_policy(self, model: type[Model], policy: TablePolicy) -> None:
        """Add a policy; before the rules are sealed."""
        self._of(model).policies.append(policy)
        self.has_policies = True

    def add_transform(self, model: type[Model], transform: Transform) -> None:
        """Add a field that is shown in another form; before the rules are sealed."""
        self._of(model).transforms.append(transform)

    def add_redaction(self, rule: RedactionRule) -> None:
        """Add a field that some callers may not see; before the rules are sealed."""
        self._of(rule.model).redactions.append(rule)
        self.has_redactions = True
        if rule.field is not None:
            self._redacted_fields.setdefault(rule.field, []).append(rule)

    def _of(self, model: type[Model]) -> _Declared:
        assert not self, "the rules are sealed"
        return self._declared.setdefault(model, _Declared())  # a mistake may have taken its store from it

    @property
    def bind_rows(self) -> bool:
        """Whether somebody declared which rows callers see."""
        return bool(self.scoped_models) or self.has_policies

    def seal(self) -> None:
        """Make the rules of each model, and tell the readers of query strings of the fields they concern."""
        checks = self._placement.pipeline.checks
        for cls, store in self._stores.items():
            self[cls] = ModelRules(store, self._declared[cls], checks)
        # No other model leads to a table of the framework.
        own_models = [rules for rules in self.values() if not rules.meta.is_internal]
        self.hidden_models = frozenset(r.meta.name for r in own_models if r.judge_of_included.hides_rows)
        models = {store.meta.name: store.meta for store in self._stores.values()}
        for cls, store in self._stores.items():
            if self.has_redactions:
                models_reached = (store.meta, *reachable_models(store.meta, models))
                store.listings.guarded = frozenset(
                    self._with_redaction(f for meta in models_reached for f in meta.fields)
                )
                store.guarded = frozenset(self._with_redaction(store.meta.fields))
            changed_fields = [transform.field for transform in self[cls].transforms]
            searched_fields = searchable_fields(store.meta)
            store.sql.never_quoted = tuple(f for f in searched_fields if f in changed_fields)
            store.sql.apart_in_search = tuple(
                f for f in searched_fields if f in changed_fields or f in store.guarded
            )

    def _with_redaction(self, fields: Iterable[FieldMeta]) -> Iterator[FieldMeta]:
        return (field for field in fields if field in self._redacted_fields)

    def of_name(self, name: str) -> ModelRules:
        """The rules of a model by its name."""
        return self[self._classes[name]]

    def step_before_query(self, model: ModelMeta, operation: Operation, item: bool) -> RefuseHidden | None:
        """The step that refuses queries about hidden fields, where a query can be about one."""
        store = self._stores.get(model.cls)
        if store is None or not store.listings.guarded or operation not in Operation.READS:
            return None
        return RefuseHidden(store)

    def hidden_from(self, model: ModelMeta | None, operation: Operation) -> frozenset[str]:
        """The models with rows that policies alone hide, which the query of such a request may ask about."""
        if not self.hidden_models or model is None or operation not in Operation.READS:
            return frozenset()
        models = {store.meta.name: store.meta for store in self._stores.values()}
        return self.hidden_models & {model.name, *(meta.name for meta in reachable_models(model, models))}

    @property
    def redacted_models(self) -> list[type[Model]]:
        """The models with fields that some callers may not see."""
        return [cls for cls, rules in self.items() if rules.redactions]

    # -- questions of one request about fields of many models

    async def read(self, request: Context, read: Callable[[Hiding], T]) -> T:
        """What `read` makes of a query to this caller, who is asked about as far as the query needs it."""
        hiding = _RequestHiding(self._redacted_fields)
        while True:
            try:
                return read(hiding)
            except Undetermined as undetermined:
                hiding.known[undetermined.field] = await self._look_at(request, undetermined.field)

    def hides_any(self, request: Context, fields: Collection[FieldMeta]) -> bool | Awaitable[bool]:
        """Whether one of these fields is hidden; something to await if that takes waiting."""
        for one in fields:
            for rule in self._redacted_fields.get(one, ()):
                is_acting = rule in self[rule.model].acting(request)
                value: bool | Awaitable[bool] = ask_rule(request, rule.when) if is_acting else False
                if value is not False:
                    return value
        return False

    async def _look_at(self, request: Context, field: FieldMeta) -> tuple[bool, bool]:
        """Whether a field is hidden, and whether it is closed."""
        rules = self._redacted_fields.get(field, ())
        acting = [rule for rule in rules if rule in self[rule.model].acting(request)]
        hiding_rules = [rule for rule in acting if await answer_of_rule(request, rule.when)]
        return bool(hiding_rules), any(rule.closes_queries for rule in hiding_rules)

    async def included_serializers(self, request: Context) -> Mapping[type[Model], Serializer]:
        """How this caller sees the records that the request includes; no other redacted model is there."""
        if self._open_serializers is None:
            serializers = request.runtime.serializers
            self._open_serializers = {cls: s for cls, s in serializers.items() if not self[cls].redactions}
        names = dict.fromkeys(models_included(request.current_query().includes))
        included = [rules for rules in map(self.of_name, names) if rules.redactions]
        if not included:
            return self._open_serializers
        return self._open_serializers | {r.meta.cls: await r.serializer(request) for r in included}


class _RequestHiding:
    """How much a request has asked so far about fields that are hidden from its caller."""

    def __init__(self, guarded: Collection[FieldMeta]) -> None:
        self._guarded = guarded
        self.known: dict[FieldMeta, tuple[bool, bool]] = {}

    def hides(self, field: FieldMeta) -> bool:
        return self._look_up(field)[0]

    def closes(self, field: FieldMeta) -> bool:
        return self._look_up(field)[1]

    def _look_up(self, field: FieldMeta) -> tuple[bool, bool]:
        if field not in self._guarded:
            return False, False
        if field not in self.known:
            raise Undetermined(field)
        return self.known[field]
