"""Events of writes: what follows from a change of a record of a model that emits is its event.

One row for each record that changed, written with the change: `EventRows` is a follow-up of the write seam,
so a create and its event are one statement. The rows hold what `db/redacted.py` lets out and nothing else.
An update that changes no visible field makes no event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from maniflex._caller import Caller, Source
from maniflex._ids import new_id
from maniflex._names import did_you_mean, snake_case
from maniflex._tables import PartialTable
from maniflex.background.feed.scope_digests import ScopeDigests
from maniflex.background.feed.store import DraftEvent, FeedStore
from maniflex.db.port import Row, Tx
from maniflex.db.redacted import Differences, Redaction
from maniflex.db.store import Store
from maniflex.db.write_seam import Change, ChangeKind, FollowUp, Statements, after_commit_once
from maniflex.errors import DeclarationError, ValidationFailed
from maniflex.events.emit import Emit
from maniflex.events.event import encode_data
from maniflex.events.patterns import type_problem
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.operation import Operation
from maniflex.query.query import find_field
from maniflex.query.values import comparable
from maniflex.sql.statement import Sql

SUFFIXES: Mapping[ChangeKind, str] = {
    ChangeKind.CREATE: "created",
    ChangeKind.UPDATE: "updated",
    ChangeKind.DELETE: "deleted",
    ChangeKind.RESTORE: "restored",
}
# Nobody wrote these rows: a rule or the time did.
BY_NOBODY = frozenset({Source.CASCADE, Source.SET_NULL, Source.SWEEP, Source.RETENTION, Source.ERASURE})
AT_ONCE = 500  # events of one statement
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class EventWriter:
    """What writers of events share: the statements, whose events they are, and how large one may be."""

    store: FeedStore
    source: str
    max_size: int
    path_prefix: str
    now: Callable[[], Any]
    wake: Callable[[], None]  # once an event is committed
    is_routing: Callable[[], bool]  # whether this process gives positions
    digests: ScopeDigests
    count: Callable[[str, int], None]  # events by their types, for the metrics

    @property
    def notifies(self) -> bool:
        """Whether processes that give positions have to be told by the database."""
        return self.store.can_notify and not self.is_routing()

    def of_source(self, source: str) -> EventWriter:
        """The same for events that say they are of another source."""
        return replace(self, source=source)


class ModelEvents:
    """The events that changes of one model make."""

    def __init__(self, meta: ModelMeta, options: Emit, kinds: Iterable[ChangeKind]) -> None:
        self.meta = meta
        self.kinds = frozenset(kinds)
        self._options = options
        self._noun = snake_case(meta.name)
        self._redaction = Redaction(meta)
        self._differences = Differences(meta)
        self._scope_places = [i for i, f in enumerate(meta.fields) if f.name in _field_names(meta, options)]
        self._is_scoped = bool(self._scope_places)
        tenant = None if options.tenant is None else find_field(meta, options.tenant)
        self._tenant_place = None if tenant is None else meta.fields.index(tenant)
        self._kept = None if options.fields is None else _api_names(meta, options.fields)
        self._texts: dict[tuple[ChangeKind, bool], str] = {}  # by kind, and whether they notify
        self._needs_record = callable(options.type) or callable(options.subject) or callable(options.data)
        self._type = options.type if isinstance(options.type, str) else self._noun

    def types(self) -> list[str]:
        """The types that its events can have, as far as that is known beforehand."""
        if callable(self._options.type):
            return []
        return [f"{self._type}.{SUFFIXES[kind]}" for kind in ChangeKind if kind in self.kinds]

    def counted_type(self, suffix: str | None) -> str:
        """What metrics call the type of an event: `other` where a function makes it."""
        return "other" if callable(self._options.type) else f"{self._type}.{suffix}"

    def insert(self, change: Change, who: Caller, feed: EventWriter) -> Sql | None:
        """What adds the event of a change, if it makes one: quick, because much of its text is fixed."""
        if self._needs_record or self._is_scoped:
            draft = self.draft(change, who, feed)
            return None if draft is None else feed.store.append(draft, notifies=feed.notifies)
        if change.operation not in self.kinds:
            return None
        row = change.before if change.operation is ChangeKind.DELETE else change.after
        assert row is not None
        changed_names = None
        if change.operation is ChangeKind.UPDATE:
            changed_names = self._changed_names(change, row)
            if changed_names is None:
                return None
        data, dataref = self._data(change, row, {}), None
        if data is not None and len(data) > feed.max_size:
            data, dataref = None, f"{feed.path_prefix}/{self.meta.table}/{change.id}"
        notifies = feed.notifies
        text = self._texts.get((change.operation, notifies))
        if text is None:
            noun = self._options.subject if isinstance(self._options.subject, str) else self._noun
            suffix = SUFFIXES[change.operation]
            text = self._texts[change.operation, notifies] = feed.store.insert_text(
                f"{self._type}.{suffix}",
                feed.source,
                noun,
                self.meta.name,
                suffix,
                self._options.schema_version,
                notifies=notifies,
            )
        actor_id = None if change.source in BY_NOBODY else who.actor_id
        tenant_id = who.tenant_id if self._tenant_place is None else self._tenant(row)
        ids = (new_id(), change.id, feed.store.as_time(feed.now()))
        return Sql(text, (*ids, actor_id, tenant_id, who.traceparent, changed_names or None, dataref, data))

    def _tenant(self, row: Row) -> str | None:
        value = None if self._tenant_place is None else row[self._tenant_place]
        return None if value is None else str(value)

    def _changed_names(self, change: Change, row: Row) -> str | None:
        """The names of the visible fields that differ, empty where only others do; None makes no event."""
        assert change.before is not None
        names = self._differences.between(change.before, row)
        if names:
            return ",".join(names)
        return "" if any(change.before[i] != row[i] for i in self._scope_places) else None

    def draft(self, change: Change, who: Caller, feed: EventWriter) -> DraftEvent | None:
        """The event of a change, if it makes one."""
        if change.operation not in self.kinds:
            return None
        row = change.before if change.operation is ChangeKind.DELETE else change.after
        assert row is not None
        changed_names: str | None = None
        if change.operation is ChangeKind.UPDATE:
            changed_names = self._changed_names(change, row)
            if changed_names is None:
                return None
        suffix, record_id = SUFFIXES[change.operation], change.id or ""
        record = _plain(self._redaction(row)) if self._needs_record else {}
        id, now = new_id(), feed.now()
        data, dataref = self._data(change, row, record), None
        if data is not None and len(data) > feed.max_size:
            data, dataref = None, f"{feed.path_prefix}/{self.meta.table}/{record_id}"
        tenant_id = who.tenant_id if self._tenant_place is None else self._tenant(row)
        subject = self._subject(suffix, record_id, record)
        return DraftEvent(
            id,
            id,
            self._full_type(suffix, record),
            feed.source,
            subject,
            now,
            subject,
            self.meta.name,
            suffix,
            record_id,
            None if change.source in BY_NOBODY else who.actor_id,
            tenant_id,
            who.traceparent,
            self._options.schema_version,
            changed_names or None,
            None,
            dataref,
            data,
            self._scope(row, feed) if self._is_scoped else None,
        )

    def _scope(self, row: Row, feed: EventWriter) -> str | None:
        """Digests of the fields that conditions may ask about, as JSON text."""
        fields = self.meta.fields
        values = feed.digests.of_fields(self.meta, [(fields[i], row[i]) for i in self._scope_places])
        return _encode(values).decode() if values else None

    def _full_type(self, suffix: str, record: dict[str, Any]) -> str:
        if not callable(self._options.type):
            return f"{self._type}.{suffix}"
        type = self._options.type(suffix, record)
        if (problem := type_problem(type)) is not None:
            raise ValidationFailed(f"the event of {self.meta.name} cannot be made: {type!r} {problem}")
        return type

    def _subject(self, suffix: str, record_id: str, record: dict[str, Any]) -> str:
        subject = self._options.subject
        if callable(subject):
            return str(subject(suffix, record))
        return f"{subject or self._noun}/{record_id}"

    def _data(self, change: Change, row: Row, record: dict[str, Any]) -> str | None:
        """The data of the event as JSON text."""
        if self._options.data == "id" or (change.source is Source.ERASURE and change.after is None):
            return _encode({"id": change.id}).decode()
        if callable(self._options.data):
            return encode_data(self._options.data(record))
        values = self._redaction(row)
        if self._kept is not None:
            values = {name: value for name, value in values.items() if name in self._kept}
        return _encode(values).decode()


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Values as they are in JSON, for functions of the application."""
    plain: dict[str, Any] = msgspec.json.decode(_encode(values))
    return plain


def _field_names(meta: ModelMeta, options: Emit) -> set[str]:
    fields = [find_field(meta, name) for name in options.scope]
    return {field.name for field in fields if field is not None}


def _api_names(meta: ModelMeta, names: Iterable[str]) -> frozenset[str]:
    fields = [find_field(meta, name) for name in names]
    return frozenset(field.api for field in fields if field is not None)


class EventRows(FollowUp):
    """Writes the events of one model beside its rows."""

    def __init__(
        self, events: ModelEvents, feed: EventWriter, sources: frozenset[Source] | None = None
    ) -> None:
        self._events = events
        self._feed = feed
        self._sources = sources  # None: whatever made the change

    def follow(self, changes: Sequence[Change], who: Caller) -> Statements:
        """Add the events of these changes."""
        if len(changes) == 1:
            [change] = changes
            is_meant = self._sources is None or change.source in self._sources
            statement = self._events.insert(change, who, self._feed) if is_meant else None
            if statement is not None:
                self._feed.count(self._events.counted_type(SUFFIXES[change.operation]), 1)
                yield statement
            return
        drafts = [
            draft
            for change in changes
            if (self._sources is None or change.source in self._sources)
            and (draft := self._events.draft(change, who, self._feed)) is not None
        ]
        for suffix, number in Counter(draft.operation for draft in drafts).items():
            self._feed.count(self._events.counted_type(suffix), number)
        for start in range(0, len(drafts), AT_ONCE):
            yield self._feed.store.append_many(drafts[start : start + AT_ONCE])

    def note_written(self) -> None:
        """A write of one row is committed: the router has something to do."""
        self._feed.wake()

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        await super().note_changes(changes, tx)
        if self._feed.notifies:
            await self._feed.store.notify(tx)
        after_commit_once(tx, self._feed.wake)


# -- declaring


def read_kinds(operations: Any) -> tuple[frozenset[ChangeKind], list[str]]:
    """The changes that operations of the pipeline mean, and those that are no writes."""
    if operations is None:
        return frozenset(ChangeKind), []
    names: list[Any] = [operations] if isinstance(operations, str) else list(operations)
    kinds: set[ChangeKind] = set()
    problems = []
    for name in names:
        if name in _KINDS:
            kinds |= _KINDS[Operation(name)]
        else:
            problems.append(f"operations: {str(name)!r} writes nothing, so it makes no event")
    return frozenset(kinds), problems


def kinds_of_operations(operations: Iterable[Operation]) -> frozenset[ChangeKind]:
    """The changes that these operations make."""
    return frozenset[ChangeKind]().union(*(_KINDS.get(one, frozenset()) for one in operations))


_KINDS: PartialTable[Operation, frozenset[ChangeKind]] = PartialTable(
    {
        Operation.CREATE: frozenset({ChangeKind.CREATE}),
        Operation.UPDATE: frozenset({ChangeKind.UPDATE, ChangeKind.RESTORE}),
        Operation.DELETE: frozenset({ChangeKind.DELETE}),
    },
    others="write nothing",
)


def emit_problems(meta: ModelMeta, options: Emit) -> list[str]:
    """What is wrong with the options of a model's events, one sentence each."""
    problems = list(read_kinds(options.operations)[1])
    if meta.options.query is not None:
        problems.append("a model of a query has no writes, so it makes no events")
    if meta.options.backend is not None:
        problems.append("the writes of a backend share no transaction with the feed")
    if isinstance(options.type, str) and (problem := type_problem(options.type)) is not None:
        problems.append(f"type={options.type!r} {problem}")
    if not (options.data in ("record", "id") or callable(options.data)):
        problems.append(f"data={options.data!r} is 'record', 'id' or a function of the record")
    if options.fields is not None and options.data != "record":
        problems.append("fields= is for data='record'")
    for name in options.fields or ():
        problems += _field_problems(meta, name, "fields", _is_secret)
    for name in options.scope:
        problems += _field_problems(meta, name, "scope", _is_incomparable)
    if options.tenant is not None:
        problems += _field_problems(meta, options.tenant, "tenant", _is_unreadable)
    return problems


def _is_secret(field: FieldMeta) -> str | None:
    return "is secret, so it is in no event" if field.secret else None


def _is_unreadable(field: FieldMeta) -> str | None:
    if field.writeonly or field.encrypted:
        return "is write-only or encrypted, so nobody may compare it"
    return None


def _is_incomparable(field: FieldMeta) -> str | None:
    return _is_unreadable(field) or (None if comparable(field) else "cannot be compared")


def _field_problems(
    meta: ModelMeta, name: Any, option: str, trouble_of: Callable[[FieldMeta], str | None]
) -> list[str]:
    field = find_field(meta, name) if isinstance(name, str) else None
    if field is None:
        return [f"{option}: there is no field {name!r}{did_you_mean(str(name), meta.by_name)}"]
    trouble = trouble_of(field)
    return [] if trouble is None else [f"{option}: {name!r} {trouble}"]


def read_emit(value: Any) -> Emit:
    """The options of `events=` of a model."""
    if isinstance(value, Emit):
        return value
    if value is True:
        return Emit()
    raise DeclarationError(f"events={value!r} is neither True nor an Emit(...)")


def strip_secrets(data: Any, stores: Mapping[type[Model], Store]) -> Any:
    """Data in which every record has the fields that may leave, by the names of the API."""
    if isinstance(data, Model):
        store = stores.get(type(data))
        if store is None:
            return data
        visible_fields = [
            field for field in store.meta.fields if not field.secret and field.name in data.__dict__
        ]
        return {field.api: strip_secrets(getattr(data, field.name), stores) for field in visible_fields}
    if isinstance(data, Mapping):
        return {key: strip_secrets(value, stores) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [strip_secrets(value, stores) for value in data]
    return data
