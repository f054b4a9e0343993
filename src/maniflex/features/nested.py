"""Records in the bodies of others: relations with `nested=True`.

A body is taken apart when it is read. The validate step judges all of it, so that one answer names every
problem of every level by its path, `lines[2].quantity`; the database step writes all in one transaction:
what the record belongs to, the record, what belongs to it, and what it is linked with. Each nested record
is a write of its own model, as the caller of the request: its auth and validate middleware run with the
judging, its service middleware with the writing, and what binds it binds it here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from maniflex._ids import new_id
from maniflex._tables import PartialTable
from maniflex.config import Limits
from maniflex.db.includes import load
from maniflex.db.many import details_of
from maniflex.db.store import Store
from maniflex.errors import (
    Detail,
    ForeignKeyViolation,
    NotFound,
    RequestError,
    ValidationFailed,
)
from maniflex.model.meta import ModelMeta, RelationKind, RelationMeta
from maniflex.model.value_rules import detail
from maniflex.pipeline.body import Body
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context, Header
from maniflex.pipeline.in_process import headers_of_caller, part_context
from maniflex.pipeline.model_routes import PartChains, part_chains
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import no_answer_error, status_of
from maniflex.pipeline.rules.checks import refusal
from maniflex.pipeline.rules.reach import Guard, Refused, view_through
from maniflex.pipeline.runtime import Runtime, Step
from maniflex.pipeline.scope import singleton_id
from maniflex.pipeline.steps.policies import keep_allowed
from maniflex.query.query import Include, Query, adopt

if TYPE_CHECKING:
    from maniflex.pipeline.routes import RouteBuilder

_TYPE = b"content-type", b"application/json"
_METHODS = PartialTable(
    {Operation.CREATE: "POST", Operation.UPDATE: "PATCH", Operation.DELETE: "DELETE"},
    others="write nothing that a body may hold",
)
_raw_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_raw_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_LIST = 'is a list of records: [{"…": …}, …]'
_RECORD = 'is a record: {"…": …}'
_CHANGES = 'is {"create": [{…}], "update": [{"id": …, …}], "delete": [id]}'
_LINKS = 'is {"link": [id], "create": [{…}]}'
_LINK_CHANGES = 'is {"link": [id], "create": [{…}], "unlink": [id]}'
_ONE_CHANGE = 'is {"create": {…}}, which makes another, or {"update": {…}}, which changes the present one'


def nested_problems(meta: ModelMeta, routes: RouteBuilder) -> Iterator[str]:
    """What cannot be meant by `nested=True`."""
    for relation in meta.relations.values():
        for text in _faults(meta, relation, routes) if relation.nested else ():
            yield f"{meta.name}.{relation.name}: nested: {text}"


def _faults(meta: ModelMeta, relation: RelationMeta, routes: RouteBuilder) -> Iterator[str]:
    runtime = routes.runtime
    store = runtime.stores.get(meta.cls)
    others = [runtime.find_store(name) for name in (relation.target, relation.through) if name is not None]
    for one in others:
        if store is None or one is None:
            return  # which is a mistake that is told already
        if one.adapter is not store.adapter or not store.has_transactions:
            yield f"{one.meta.name} is in another database, and two databases share no transaction"
        elif one.sql.readonly:
            yield f"{one.meta.name} is made by a query, so it has no records to write"
        elif one.meta.options.singleton:
            yield f"{one.meta.name} is a singleton"
    if relation.name in meta.by_api:
        yield "there is a field of that name, which bodies mean by it"
    for operation in (Operation.CREATE, Operation.UPDATE):
        if routes.composer.replaces("db", meta, operation):
            yield f"the application has its own db step for {operation}, which writes nothing nested"
    if relation.through is not None and (junction := runtime.find_store(relation.through)) is not None:
        keys = (relation.key, relation.far_key)
        open_names = [
            f.name for f in junction.meta.fields if junction.meta.asks_for(f) and f.name not in keys
        ]
        if open_names:
            yield f"{junction.meta.name} needs {', '.join(open_names)}, which no link gives"


# What stands in one body.


@dataclass(slots=True)
class NestedPlace:
    """Where a nested record stands in the body of its request."""

    level: int
    seen: list[int]  # how many records there are in the whole body so far
    passed: bool = False  # it has been judged, and no middleware answered for it


@dataclass(slots=True)
class NestedBody:
    """What is nested in one record."""

    place: NestedPlace
    limits: Limits
    problems: list[Detail] = field(default_factory=list)
    before: list[NestedWrite] = field(default_factory=list)  # what the record belongs to
    after: list[NestedWrite] = field(default_factory=list)
    relations: list[RelationMeta] = field(default_factory=list)  # those named
    is_changed: bool = False  # by what was nested

    def note(self, path: str, code: str, text: str) -> None:
        self.problems.append(detail(path, code, text))

    def counts(self, path: str, number: int) -> bool:
        """Whether that many more records are within the limit of a body."""
        most, count = self.limits.nested_items, self.place.seen
        was_within, count[0] = count[0] <= most, count[0] + number
        if count[0] > most and was_within:
            self.note(path, "items", f"is beyond the {most} records that a body may have nested in it")
        return count[0] <= most

    def includes(self) -> tuple[Include, ...]:
        """What the answer shows: the relations that the body names, at every level."""
        below: dict[str, list[Include]] = {relation.name: [] for relation in self.relations}
        for one in (*self.before, *self.after):
            if one.is_shown and one.nested is not None:
                includes = below[one.relation.name]
                names = {include.relation.name for include in includes}
                includes += [i for i in one.nested.includes() if i.relation.name not in names]
        return tuple(Include(relation, tuple(below[relation.name])) for relation in self.relations)


class NestedWrite:
    """One write that is nested in a body."""

    far: NestedWrite | None = None  # of a link: the record that is made for it
    far_target: Store | None = None  # of a link to a record by its id: where that is looked for
    far_id = ""

    def __init__(
        self,
        routes: NestedModel,
        parent: Context,
        relation: RelationMeta,
        operation: Operation,
        path: str,
        raw: bytes = b"",
        *,
        record_id: str = "",
        id_path: str = "",
        is_link: bool = False,
    ) -> None:
        name = (relation.through or "") if is_link else relation.target
        self.relation = relation
        self.operation = operation
        self.path = path
        self.record_id = record_id
        self.ctx: Context | None = None
        self._parent = parent
        self._store = parent.runtime.store(name)
        self._chains = routes.chains[name, operation]
        self._raw = raw
        self._id_path = id_path  # of the id in the body, where a record is named by it
        self._is_link = is_link
        self._stamps: dict[str, Any] = {}  # keys that the request settles, by attribute
        self._bound_to: tuple[str, str] | None = None  # a key that the stored row has, and its value

    @property
    def nested(self) -> NestedBody | None:
        """What is nested in it in turn."""
        return None if self.ctx is None else self.ctx.nested

    @property
    def is_shown(self) -> bool:
        """Whether the answer shows the record, under the name of its relation."""
        return not self._is_link and self.operation is not Operation.DELETE

    def settle(self, owner_id: str) -> None:
        """Tell it the id of the record that its body is part of."""
        key = self.relation.key or ""
        if self.relation.kind is RelationKind.HAS_MANY or self._is_link:
            if self.operation is Operation.CREATE:
                self._stamps[key] = owner_id
            else:
                self._bound_to = key, owner_id

    async def check(self) -> list[Detail]:
        """Judge it; its problems, or the refusal of its middleware."""
        if self.far is not None:
            self._stamps[self.relation.far_key or ""] = self.far.record_id
        ctx = self.ctx = self._make_context()
        problems: list[Detail] = []
        try:
            await self._chains.check(ctx)
            self._require_passed(ctx)
        except ValidationFailed as error:
            problems += details_of(error, self.path)
        except RequestError as error:
            raise self._put_place(error) from None
        if self.operation is Operation.CREATE:
            self.record_id = ctx._new_id or new_id()  # of a record with problems: one that nothing has
        elif await self._store.find(self.record_id, scope=ctx.forced) is None:
            problems.append(_missing(self._id_path))
        if self.far_target is not None and await self.far_target.find(self.far_id, scope=ctx.forced) is None:
            problems.append(_missing(self._id_path))
        return problems

    async def write(self) -> bool:
        """Write it, in the transaction that is open; whether that changed anything."""
        ctx = self.ctx
        assert ctx is not None, "it was judged before"
        try:
            await self._chains.write(ctx)
        except (NotFound, ForeignKeyViolation) as error:
            if self.far_target is None and (
                self.operation is Operation.CREATE or type(error) is not NotFound
            ):
                raise self._put_place(error) from None
            raise ValidationFailed(details=[_missing(self._id_path)]) from None
        except RequestError as error:
            raise self._put_place(error) from None
        _refuse_as(ctx)
        if ctx.row is None and ctx._result is None and not ctx.deleted and ctx.response is None:
            raise no_answer_error(ctx)
        if ctx.keeps_answer_secret:
            self._parent.keep_answer_secret()
        if ctx.extra_headers:
            self._parent.extra_headers = [*(self._parent.extra_headers or ()), *ctx.extra_headers]
        if self.operation is not Operation.UPDATE:
            return True
        return bool(ctx.changes) or (self.nested is not None and self.nested.is_changed)

    def _make_context(self) -> Context:
        parent, meta = self._parent, self._store.meta
        headers: list[Header] = headers_of_caller(parent)
        path = f"{parent.runtime.config.path_prefix}/{meta.table}"
        about = {
            "method": _METHODS[self.operation],
            "path": f"{path}/{self.record_id}" if self.record_id else path,
            "headers": [*headers, _TYPE] if self._raw else headers,
        }
        ctx = part_context(parent, Context, self.operation, about, self._raw)
        place: NestedPlace = parent.nested.place
        ctx.model, ctx.resource_id, ctx.raw_body = meta, self.record_id, self._raw
        ctx.nested_place = NestedPlace(place.level + 1, place.seen)
        if self._stamps:
            ctx._body = Body({})
            for name, value in self._stamps.items():
                ctx._body.stamp(meta.by_name[name].api, value)
        if self._bound_to is not None:
            key, owner_id = self._bound_to
            ctx.query.force(key, owner_id, model=meta.name)
        return ctx

    def _require_passed(self, ctx: Context) -> None:
        _refuse_as(ctx)
        if not ctx.nested_place.passed:
            raise no_answer_error(ctx)

    def _put_place(self, error: RequestError) -> RequestError:
        """The refusal with the path of the record before the fields it names."""
        if error.status < 500 and error.details:
            error.details = details_of(error, self.path)
        return error


class LinkById(NestedWrite):
    """A link to a record that is there, or the end of one."""

    async def find(self, owner_id: str) -> str:
        """The id of the row of the junction that links the two; empty where there is none."""
        store, relation = self._store, self.relation
        query = Query(store.meta, store.models, limit=1)
        query = query.with_filter(relation.key or "", owner_id).with_filter(
            relation.far_key or "", self.far_id
        )
        rows, _ = await store.page(store.listing(query), counted=False)
        return str(store.record(rows[0]).id) if rows else ""

    async def write(self) -> bool:
        assert self.ctx is not None
        if self.operation is Operation.CREATE and await self.find(self._stamps[self.relation.key or ""]):
            return False  # another request has linked them meanwhile
        return await super().write()


def _refuse_as(ctx: Context) -> None:
    """Refuse the whole request as middleware of a nested record has refused that."""
    if ctx.response is not None and status_of(ctx.response) >= 400:
        raise Refused(ctx.response)


def _missing(path: str) -> Detail:
    """What is said of a record that is not there, of another parent or of another tenant alike."""
    return detail(path, "not_found", "names no record that is there")


# The steps of one model.


class NestedModel:
    """Reads, judges and writes what is nested in bodies of one model."""

    def __init__(self, model: ModelMeta, runtime: Runtime) -> None:
        self._model = model
        self._store = runtime.stores[model.cls]
        self._limits = model.options.limits or runtime.config.limits
        self._relations = {r.name: r for r in model.relations.values() if r.nested}
        self.chains: dict[tuple[str, Operation], PartChains] = {}  # by the name of a model
        self._guards: dict[Operation, dict[ModelMeta, Guard]] = {}

    def compose(self, routes: RouteBuilder) -> None:
        """Make the chains of all that may be nested, and the guards of what answers show."""
        for relation in self._relations.values():
            for name in filter(None, (relation.target, relation.through)):
                for operation in _METHODS:
                    if (name, operation) not in self.chains:
                        meta = routes.runtime.store(name).meta
                        self.chains[name, operation] = part_chains(routes, meta, operation)
        for operation in (Operation.CREATE, Operation.UPDATE):
            is_item = operation is Operation.UPDATE
            guards = routes.reached.guards_of_reachable(self._model, operation, item=is_item)
            self._guards[operation] = guards

    # -- reading

    def read(self, ctx: Context) -> None:
        """Take what is nested out of the body."""
        body = ctx._body
        if body is None or self._relations.keys().isdisjoint(body.values_):
            return
        place: NestedPlace = ctx.nested_place or NestedPlace(0, [0])
        contents = ctx.nested = NestedBody(place, self._limits)
        values = {name: body.values_[name] for name in body if name in self._relations}
        if ctx.form is None and ctx.raw_body:
            parts = _raw_parts(ctx.raw_body)
            raws = {name: bytes(parts[name]) for name in values if name in parts}
        else:
            raws = {name: _encode(value) for name, value in values.items()}
        for name, value in values.items():
            body.remove(name)
            relation = self._relations[name]
            contents.relations.append(relation)
            if place.level >= self._limits.nested_depth:
                most = self._limits.nested_depth
                contents.note(name, "depth", f"is deeper than the {most} levels that a body may have")
            else:
                self._read_relation(ctx, contents, relation, value, raws.get(name, b"null"))

    def _read_relation(
        self, ctx: Context, nested: NestedBody, relation: RelationMeta, value: Any, raw: bytes
    ) -> None:
        is_create = ctx.operation is Operation.CREATE
        if relation.kind is RelationKind.BELONGS_TO:
            self._read_parent(ctx, nested, relation, value, raw, is_create=is_create)
        elif relation.kind is RelationKind.HAS_MANY and is_create:
            if type(value) is not list:
                nested.note(relation.name, "form", _LIST)
            else:
                self._read_creates(ctx, nested, relation, relation.name, value, _raw_items(raw))
        else:
            self._read_forms(ctx, nested, relation, value, raw, is_create=is_create)

    def _read_parent(
        self,
        ctx: Context,
        nested: NestedBody,
        relation: RelationMeta,
        value: Any,
        raw: bytes,
        *,
        is_create: bool,
    ) -> None:
        """The record that this one belongs to."""
        path, form, operation = relation.name, _RECORD, Operation.CREATE
        if not is_create and type(value) is dict and len(value) == 1:
            [(word, value)] = value.items()
            if word in ("create", "update"):
                path, raw, operation = f"{path}.{word}", bytes(_raw_parts(raw)[word]), Operation(word)
                form = ""
        if type(value) is not dict or (not is_create and form):
            nested.note(relation.name, "form", _RECORD if is_create else _ONE_CHANGE)
            return
        key = self._model.by_name[relation.key or ""]
        if ctx._body.is_from_client(key.api):
            nested.note(relation.name, "form", f'is given along with "{key.api}"; send one of the two')
        if nested.counts(path, 1):
            nested.before.append(NestedWrite(self, ctx, relation, operation, path, raw, id_path=path))

    def _read_forms(
        self,
        ctx: Context,
        nested: NestedBody,
        relation: RelationMeta,
        value: Any,
        raw: bytes,
        *,
        is_create: bool,
    ) -> None:
        """Lists of records by what is done to them."""
        name = relation.name
        is_linked = relation.kind is RelationKind.MANY_TO_MANY
        words: tuple[str, ...] = ("create", "update", "delete")
        form = _CHANGES
        if is_linked:
            words = ("link", "create") if is_create else ("link", "create", "unlink")
            form = _LINKS if is_create else _LINK_CHANGES
        if type(value) is not dict or not value.keys() <= {*words}:
            nested.note(name, "form", form)
            return
        raws = _raw_parts(raw)
        places: dict[str, str] = {}  # ids and the form that names them
        for word in words:
            if word not in value:
                continue
            path = f"{name}.{word}"
            if type(value[word]) is not list:
                nested.note(path, "form", "is a list")
            elif word == "create":
                self._read_creates(ctx, nested, relation, path, value[word], _raw_items(raws[word]))
            elif word == "update":
                self._read_updates(ctx, nested, relation, path, value[word], _raw_items(raws[word]), places)
            else:
                self._read_ids(ctx, nested, relation, path, word, value[word], places)

    def _read_creates(
        self,
        ctx: Context,
        nested: NestedBody,
        relation: RelationMeta,
        path: str,
        values: Sequence[Any],
        raws: Sequence[msgspec.Raw],
    ) -> None:
        target = ctx.runtime.store(relation.target).meta
        if not nested.counts(path, len(values)):
            return
        for number, (value, raw) in enumerate(zip(values, raws, strict=True)):
            place = f"{path}[{number}]"
            if type(value) is not dict:
                nested.note(place, "form", _RECORD)
                continue
            one = NestedWrite(self, ctx, relation, Operation.CREATE, place, bytes(raw))
            nested.after.append(one)
            if relation.kind is RelationKind.MANY_TO_MANY:
                link = NestedWrite(self, ctx, relation, Operation.CREATE, place, b"{}", is_link=True)
                link.far = one
                nested.after.append(link)
            else:
                self._refuse_key(nested, relation, target, place, value)

    def _read_updates(
        self,
        ctx: Context,
        nested: NestedBody,
        relation: RelationMeta,
        path: str,
        values: Sequence[Any],
        raws: Sequence[msgspec.Raw],
        named: dict[str, str],
    ) -> None:
        target = ctx.runtime.store(relation.target).meta
        if not nested.counts(path, len(values)):
            return
        for number, (value, raw) in enumerate(zip(values, raws, strict=True)):
            place = f"{path}[{number}]"
            record_id = value.get("id") if type(value) is dict else None
            if type(record_id) is not str:
                nested.note(f"{place}.id", "required", "is required")
            elif record_id in named:
                nested.note(f"{place}.id", "repeated", f"is named in {named[record_id]} already")
            else:
                named[record_id] = place
                self._refuse_key(nested, relation, target, place, value)
                one = NestedWrite(
                    *(self, ctx, relation, Operation.UPDATE, place, bytes(raw)),
                    record_id=record_id,
                    id_path=f"{place}.id",
                )
                nested.after.append(one)

    def _read_ids(
        self,
        ctx: Context,
        nested: NestedBody,
        relation: RelationMeta,
        path: str,
        word: str,
        ids: Sequence[Any],
        named: dict[str, str],
    ) -> None:
        if not nested.counts(path, len(ids)):
            return
        for number, record_id in enumerate(ids):
            place = f"{path}[{number}]"
            if type(record_id) is not str:
                nested.note(place, "type", "must be an id")
            elif record_id in named and not named[record_id].startswith(f"{path}["):
                nested.note(place, "repeated", f"is named in {named[record_id]} already")
            elif record_id not in named:
                named[record_id] = place
                nested.after.append(self._by_id(ctx, relation, word, place, record_id))

    def _by_id(
        self, ctx: Context, relation: RelationMeta, word: str, place: str, record_id: str
    ) -> NestedWrite:
        """A write of a record that is named by its id alone."""
        if word == "delete":
            return NestedWrite(
                self, ctx, relation, Operation.DELETE, place, record_id=record_id, id_path=place
            )
        operation = Operation.CREATE if word == "link" else Operation.DELETE
        raw = b""
        if word == "link":
            junction = ctx.runtime.store(relation.through or "").meta
            raw = _encode({junction.by_name[relation.far_key or ""].api: record_id})
        link = LinkById(self, ctx, relation, operation, place, raw, id_path=place, is_link=True)
        link.far_id = record_id
        if word == "link":
            link.far_target = ctx.runtime.store(relation.target)
        return link

    def _refuse_key(
        self,
        nested: NestedBody,
        relation: RelationMeta,
        target: ModelMeta,
        place: str,
        value: Mapping[str, Any],
    ) -> None:
        """Refuse what says once more, or otherwise, to which record this one belongs."""
        belongs = (r for r in target.relations.values() if r.kind is RelationKind.BELONGS_TO)
        ways = [r.name for r in belongs if r.key == relation.key and r.nested]
        for name in (target.by_name[relation.key or ""].api, *ways):
            if name in value:
                nested.note(f"{place}.{name}", "form", "is the record around it, and is left out here")

    # -- judging

    def around_validate(self, validate: Step) -> Step:
        def step(ctx: Context) -> Awaitable[None] | None:
            return validate(ctx) if ctx.nested is None else self._validate(ctx, validate, ctx.nested)

        return step

    async def _validate(self, ctx: Context, validate: Default, nested: NestedBody) -> None:
        problems = [*nested.problems]
        if ctx.operation is Operation.UPDATE and not self._model.options.singleton:
            await self._require_own(ctx)
        for one in nested.before:
            problems += await self._check_parent(ctx, one)
        try:
            await _run(validate, ctx)
        except ValidationFailed as error:
            problems += [error.details] if isinstance(error.details, Mapping) else [*(error.details or ())]
            if not error.details:
                raise
        is_create = ctx.operation is Operation.CREATE
        own_id = (ctx._new_id or new_id()) if is_create else self._own_id(ctx)
        if not is_create:
            await self._find_links(ctx, nested, own_id)
        for one in nested.after:
            one.settle(own_id)
            problems += await one.check()
        if problems:
            raise self._refusal(problems)

    def _refusal(self, problems: Sequence[Detail]) -> ValidationFailed:
        """The one answer that names every problem; in logs nothing but names, where there are secrets."""
        error = refusal(self._model, problems)
        targets = [self._store.stores_by_model[r.target].meta for r in self._relations.values()]
        if any(field.secret for meta in targets for field in meta.fields):
            places = {str(problem["field"]).partition(".")[0] for problem in problems}
            error.secrets = frozenset({*error.secrets, *places})
        return error

    async def _require_own(self, ctx: Context) -> None:
        """Refuse a record that is not the caller's before anything is said of what belongs to it."""
        row = await self._store.find(ctx.resource_id, scope=ctx.forced)
        if row is None:
            raise NotFound(model=self._model.name, record_id=ctx.resource_id)
        await ctx.runtime.rules[self._model.cls].judge_of_changes.require_row(ctx, row)

    def _own_id(self, ctx: Context) -> str:
        return singleton_id(self._model, ctx.forced) if self._model.options.singleton else ctx.resource_id

    async def _check_parent(self, ctx: Context, one: NestedWrite) -> list[Detail]:
        """Judge the record that this one belongs to; one that is made gives its id to the key."""
        key = self._model.by_name[one.relation.key or ""]
        if one.operation is Operation.CREATE:
            problems = await one.check()
            ctx._body.stamp(key.api, one.record_id)
            return problems
        row = await self._store.find(self._own_id(ctx), scope=ctx.forced)
        present = None if row is None else row[self._store.sql.names.index(key.name)]
        if row is None:
            raise NotFound(model=self._model.name, record_id=ctx.resource_id)
        if present is None:
            return [detail(one.path, "not_found", "changes the present record, and there is none")]
        one.record_id = present
        return await one.check()

    async def _find_links(self, ctx: Context, nested: NestedBody, own_id: str) -> None:
        """Find the rows of junctions that links and unlinks are about: what is so already changes nothing."""
        remaining: list[NestedWrite] = []
        for one in nested.after:
            link_id = await one.find(own_id) if isinstance(one, LinkById) else ""
            if isinstance(one, LinkById) and bool(link_id) is (one.operation is Operation.CREATE):
                continue
            one.record_id = link_id or one.record_id
            remaining.append(one)
        nested.after[:] = remaining

    # -- writing

    def around_write(self, write: Step) -> Step:
        def step(ctx: Context) -> Awaitable[None] | None:
            return write(ctx) if ctx.nested is None else self._write(ctx, write, ctx.nested)

        return step

    async def _write(self, ctx: Context, write: Default, nested: NestedBody) -> None:
        async with ctx.transaction() as tx:
            for one in nested.before:
                nested.is_changed |= await one.write()
            await _run(write, ctx)
            _refuse_as(ctx)
            is_update = ctx.operation is Operation.UPDATE
            if is_update and any(isinstance(one, LinkById) for one in nested.after):
                await self._store.lock(ctx.resource_id, tx=tx)  # so that two who link the same do it once
            for one in nested.after:
                nested.is_changed |= await one.write()
            if nested.is_changed and ctx.row is not None:
                record_id = str(ctx.row[self._store.id_place])
                if is_update and not ctx.changes:  # so that its tag is another one
                    ctx.row = await self._store.update(record_id, {}, tx=tx)
                else:  # a total that follows the rows may have changed it
                    ctx.row = await self._store.find(record_id, tx=tx) or ctx.row
            if ctx.nested_place is None and ctx.row is not None:
                await self._load(ctx, nested)

    async def _load(self, ctx: Context, nested: NestedBody) -> None:
        """Read what the answer shows of what was nested, as far as the caller may read it."""
        rules, guards = ctx.runtime.rules, self._guards[ctx.operation]
        includes, scope = nested.includes(), ctx.forced
        for meta in dict.fromkeys(_models_shown(includes, self._store)):
            if meta in guards:
                view = await view_through(ctx, meta, guards[meta])
                if view is None:
                    includes = tuple(_without(includes, meta.name))
                else:
                    scope = adopt(scope, view.current_query())
        ctx._query = ctx.current_query().with_(includes=includes)  # by which the answer is redacted
        most = self._limits.included_rows
        rows = [] if ctx.row is None else [ctx.row]
        relations = await load(
            self._store, rows, self._store.meta.fields, includes, scope, most=most, tx=ctx.tx
        )
        if any(rules[meta.cls].judges_rows for meta in _models_shown(includes, self._store)):
            relations = await keep_allowed(ctx, rules, relations)
        ctx.related = relations


def _models_shown(includes: Iterable[Include], store: Store) -> Iterator[ModelMeta]:
    """The models whose records these includes show."""
    for include in includes:
        target = store.stores_by_model[include.relation.target]
        yield target.meta
        yield from _models_shown(include.nested, target)


def _without(includes: Iterable[Include], name: str) -> Iterator[Include]:
    """The includes without those of a model, and without all that comes along with them."""
    for include in includes:
        if include.relation.target != name:
            yield replace(include, nested=tuple(_without(include.nested, name)))


async def _run(step: Default, ctx: Context) -> None:
    outcome = step(ctx)
    if outcome is not None:
        await outcome
