"""What the audit entries have in common: a sink, a way of delivery, and who acts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar

import msgspec

from maniflex._caller import Caller, Source, caller
from maniflex._clock import Clock
from maniflex._ids import new_id
from maniflex._names import did_you_mean
from maniflex.audit.records import (
    LIMIT,
    ActionAuditRecord,
    AnyRecord,
    AuditRecord,
    AuditSink,
    FieldChange,
    ReadAuditRecord,
    RecordCourier,
    SinkDelivery,
)
from maniflex.audit.tables import AT_ONCE, TABLES, AuditRow, TableSink
from maniflex.db.port import Row, Tx
from maniflex.db.redacted import Differences, Redaction
from maniflex.db.store import Store
from maniflex.db.write_seam import Change, ChangeKind, ChangeListener, FollowUp, Statements
from maniflex.errors import Unavailable
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context, Page
from maniflex.pipeline.entry import (
    ANYWHERE,
    Entry,
    EntryDocs,
    Kept,
    ListeningEntry,
    Piece,
    Seat,
    Trait,
    describe_nothing,
)
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import ACTION, Middleware, Next
from maniflex.pipeline.response import Response, status_of
from maniflex.query.query import find_field
from maniflex.sql.statement import Dialect


class AuditEntry(Entry):
    """An entry that makes records for a sink."""

    record: ClassVar[type[AnyRecord]]
    courier: RecordCourier  # from the moment the server is sealed, as the rest of `attach`

    def __init__(self, sink: Any, delivery: Any) -> None:
        super().__init__()
        self.sink = TableSink() if sink is None else sink
        self.mistakes += _sink_mistakes(self.sink)
        self.delivery = self._default_delivery()
        try:
            self.delivery = self.delivery if delivery is None else SinkDelivery(delivery)
        except ValueError:
            self.mistakes.append(f"delivery={delivery!r} is none of {', '.join(SinkDelivery)}")
        self.keeps = Kept(own_tables=(self.table,) if isinstance(self.sink, TableSink) else ())

    @property
    def table(self) -> type[AuditRow]:
        """Where a `TableSink` keeps its records."""
        return TABLES[self.record]

    def _default_delivery(self) -> SinkDelivery:
        return SinkDelivery.TRANSACTION if isinstance(self.sink, TableSink) else SinkDelivery.OUTBOX

    def attach(
        self,
        courier: RecordCourier,
        clock: Clock,
        service_name: str,
        note_failure: Callable[[BaseException], None],
    ) -> None:
        """The server is sealed: this is the way to the sink."""
        self.courier = courier
        self._clock = clock
        self._service_name = service_name
        self._note_failure = note_failure

    async def deliver_in_time(self, record: AnyRecord) -> bool:
        """Bring a record that no transaction tells of on its way; whether that went well."""
        try:
            async with asyncio.timeout(LIMIT):
                await self.courier.deliver([record], None)
        except Exception as error:
            self._note_failure(error)
            return False
        return True

    def common_values(self) -> dict[str, Any]:
        """What every record has: its id, its time and the name of the service."""
        return {"id": new_id(), "timestamp": self._clock.now(), "service_name": self._service_name}

    def caller_values(self, ctx: Context) -> dict[str, Any]:
        """What every record has, and who asks."""
        who = ctx.caller()
        return {
            **self.common_values(),
            "actor": who.actor_id,
            "tenant_id": who.tenant_id,
            "request_id": who.request_id,
            "trace_id": who.trace_id,
        }


def _sink_mistakes(sink: Any) -> Iterator[str]:
    if not callable(getattr(sink, "write", None)) or isinstance(sink, type):
        yield f"sink={sink!r} has no write(record); use one of maniflex.audit, or a class of yours"
    elif isinstance(sink, TableSink):
        yield from sink.mistakes


def names_in(value: Any) -> list[Any]:
    """The names in an argument: one name or a list of names. None stands for an item that is no name."""
    if isinstance(value, str):
        return [value or None]
    if not isinstance(value, Iterable):
        return [None]
    return [name if isinstance(name, str) and name else None for name in value]


# `db.audit_reads`: a record of every answer that shows records, and to whom.


_OUTERMOST = -100  # rank: what it sees is what is sent
# HEAD shows nothing of a record.
SHOWING = frozenset(Operation(name) for name in Operation.READS) - {Operation.HEAD} | frozenset(
    operation for operation in Operation if operation.value == "read_file"
)
_OF_ONE = frozenset({"read", "read_attachment", "read_file"})
_MOST_LETTERS = 1000  # of a user agent


class AccessNotRecorded(Unavailable):
    """A read that must be recorded could not be, so nothing is shown."""

    message = "the access cannot be recorded right now"

    def _subject(self) -> str:
        return "the sink of db.audit_reads"


class AuditReads(AuditEntry):
    """Tells a sink of every answer that shows records of its models."""

    name = "db.audit_reads"
    homes: ClassVar = {"response": ANYWHERE}
    acts_for = SHOWING
    record = ReadAuditRecord

    def __init__(self, sink: Any, required: Any, delivery: Any) -> None:
        super().__init__(sink, delivery)
        if not isinstance(required, bool):
            self.mistakes.append(f"required={required!r} is neither True nor False")
        if required and delivery is None:
            self.delivery = SinkDelivery.TRANSACTION
        if required and self.delivery is SinkDelivery.BACKGROUND:
            self.mistakes.append('required=True waits for the sink, which delivery="background" does not')
        self._is_required = required or self.delivery is SinkDelivery.TRANSACTION

    def _default_delivery(self) -> SinkDelivery:
        return SinkDelivery.BACKGROUND

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        is_refusing = self._is_required and operation in self.acts_for
        return EntryDocs(refusals={503: ["UNAVAILABLE"]}) if is_refusing else None

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if operation in self.acts_for else None

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece(seat.step, self.make, rank=_OUTERMOST),)

    async def __call__(self, ctx: Context, next: Next) -> None:
        await next()
        response = ctx.response
        if response is None or status_of(response) >= 400 or ctx.scope["method"] == "HEAD":
            return
        if ctx.operation is not Operation.EXPORT or not isinstance(response, Response):
            await self._write(self._record(ctx, _records_shown(ctx, response)))
        elif self._is_required:  # before the first row; how many there are was counted
            await self._write(self._record(ctx, ctx.total))
        elif response.stream is not None:
            ctx.exported_rows = 0
            response.stream = self._until_sent(ctx, response.stream)

    async def _until_sent(
        self, ctx: Context, stream: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """The stream, whose end is recorded: whole, broken off, or left by its client."""
        is_begun = False
        try:
            async with aclosing(stream):
                async for chunk in stream:
                    is_begun = True
                    yield chunk
        finally:
            if is_begun:
                record = self._record(ctx, ctx.exported_rows)
                ctx.runtime.tasks.start(partial(self._write, record), "audit")

    async def _write(self, record: ReadAuditRecord) -> None:
        if not await self.deliver_in_time(record) and self._is_required:
            raise AccessNotRecorded()

    def _record(self, ctx: Context, count: int | None) -> ReadAuditRecord:
        auth, model = ctx.auth, _model_of(ctx)
        agent = ctx.header("user-agent")
        return ReadAuditRecord(
            **self.caller_values(ctx),
            model=None if model is None else model.name,
            operation=ctx.operation.value,
            record_id=ctx.resource_id or ctx.params.get("key") or None,
            record_count=count,
            roles=[] if auth is None else [str(role) for role in auth.roles],
            session_id=(auth.session_id or None) if auth is not None else None,
            auth_method=(auth.auth_method or None) if auth is not None else None,
            client_ip=ctx.client_ip or None,
            user_agent=None if agent is None else agent[:_MOST_LETTERS],
        )


def _model_of(ctx: Context) -> ModelMeta | None:
    """The model of the request; a search and a file have none."""
    return ctx.model


def _records_shown(ctx: Context, response: Any) -> int | None:
    """How many records the answer shows; None for an answer about one, which is named by its id."""
    if ctx.operation.value in _OF_ONE:
        return None
    for records in (ctx._result, ctx.rows):
        if isinstance(records, Page | list | tuple):
            return len(records)
    data = response.data if isinstance(response, Response) else None
    return len(data) if isinstance(data, list) else None


def audit_reads(
    sink: AuditSink | None = None, required: bool = False, delivery: str | None = None
) -> AuditReads:
    """Tell a sink of every answer that shows records: reads, lists, searches, exports, files, histories.

    With `required` the record is written before the answer; if it cannot be, the answer is 503 and shows
    nothing. Without a sink, records go to the table `read_audit_log`.
    """
    return AuditReads(sink, required, delivery)


# `db.audit_action`: a record of every action that was done.


class AuditAction(AuditEntry):
    """Tells a sink of every action that was done."""

    name = "db.audit_action"
    docs = describe_nothing
    homes: ClassVar = {"response": ANYWHERE, ACTION: ANYWHERE}
    acts_for = frozenset({Operation.ACTION})
    record = ActionAuditRecord

    def __init__(self, sink: Any, include_body: Any) -> None:
        super().__init__(sink, None)
        self._names = names_in(include_body)
        if None in self._names:
            self.mistakes.append(f"include_body={include_body!r} is not a list of names")

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return self if operation is Operation.ACTION else None

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return (Piece(seat.step, self.make, rank=_OUTERMOST),)

    def problems(self, seat: Seat) -> Iterator[str]:
        for action in seat.actions if seat.is_action else ():
            known = _names_of(getattr(action, "request", None))
            for name in self._names if known else ():
                if name not in known:
                    yield f"include_body: the body has no {name!r}{did_you_mean(name, known)}"

    async def __call__(self, ctx: Context, next: Next) -> None:
        await next()
        action, response = ctx.action, ctx.response
        if action is None or response is None or status_of(response) >= 400:
            return
        # The action is done, whatever becomes of its record.
        record = ActionAuditRecord(
            **self.caller_values(ctx),
            action=action.name,
            method=action.method,
            path=action.path,
            params=dict(ctx.params),
            status=status_of(response),
            body=self._body(ctx),
        )
        await self.deliver_in_time(record)

    def _body(self, ctx: Context) -> dict[str, Any] | None:
        """The fields of the body that were asked for, as they are in JSON."""
        if not self._names:
            return None
        body: Any = ctx._body
        if body is None and ctx.raw_body:
            body = _parse(ctx.raw_body)
        values = {name: _field(body, name) for name in self._names}
        plain: dict[str, Any] = msgspec.json.decode(ctx.runtime.encode(values))
        return plain


def _parse(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return None  # the handler takes another form


def _field(body: Any, name: str) -> Any:
    return body.get(name) if isinstance(body, Mapping) else getattr(body, name, None)


def _names_of(request: Any) -> list[str]:
    """The fields of the type of a body, as far as it has any."""
    if is_dataclass(request):
        return [field.name for field in fields(request)]
    names: Iterable[str] = getattr(request, "model_fields", ()) or getattr(request, "__annotations__", ())
    return list(names)


def audit_action(sink: AuditSink | None = None, include_body: Sequence[str] = ()) -> AuditAction:
    """Tell a sink of every action that was done: which, by whom, with which parameters in its path.

    Of the body a record has the fields in `include_body` alone. Without a sink, records go to the table
    `action_audit_log`. In `middleware=` it is for that action, on the pipeline for all.
    """
    return AuditAction(sink, include_body)


# `db.audit_log`: a record of every committed write, whatever made it.


_OPERATIONS = {
    ChangeKind.CREATE: Operation.CREATE,
    ChangeKind.UPDATE: Operation.UPDATE,
    ChangeKind.DELETE: Operation.DELETE,
    ChangeKind.RESTORE: Operation.UPDATE,
}
_OF_REQUESTS = frozenset({Source.REQUEST, Source.ACTION, Source.PROVISION})
# Nobody wrote these rows: a rule or the time did. The request that set it off is named by its id.
_BY_NOBODY = frozenset({Source.CASCADE, Source.SET_NULL, Source.SWEEP, Source.RETENTION, Source.ERASURE})


class AuditLog(ListeningEntry, AuditEntry):
    """Tells a sink of every write to its models."""

    name = "db.audit_log"
    docs = describe_nothing
    homes: ClassVar = {"db": ANYWHERE}
    acts_for = frozenset({Operation.CREATE, Operation.UPDATE, Operation.DELETE})
    traits = Trait.ACTS_WITHOUT_ROUTES  # it is told of the writes of code, too
    hears_backends = False
    needs_rows = True
    record = AuditRecord

    def __init__(self, sink: Any, delivery: Any, *, changes: Any, exclude: Any, requests_only: Any) -> None:
        super().__init__(sink, delivery)
        self._with_changes = changes
        self._requests_only = requests_only
        self._exclude = names_in(exclude)
        self._models: dict[str, _AuditedModel] = {}
        self.keeps = replace(self.keeps, beside_rows=self.delivery is SinkDelivery.TRANSACTION)
        for name, value in (("changes", changes), ("requests_only", requests_only)):
            if not isinstance(value, bool):
                self.mistakes.append(f"{name}={value!r} is neither True nor False")
        if None in self._exclude:
            self.mistakes.append(f"exclude={exclude!r} is not a list of fields")

    def problems(self, seat: Seat) -> Iterable[str]:
        models = [meta for meta in seat.models if not meta.is_internal]
        for meta in seat.models if seat.is_named else ():
            if meta.options.query is not None:
                yield f"{meta.name} is a query, so nothing writes it"
            elif meta.options.backend is not None:
                yield f"{meta.name} has a backend, whose writes share no transaction with the audit trail"
            elif meta.is_internal:
                yield f"{meta.name} is a table of the framework, which is not audited"
        for name in self._exclude:
            if models and not any(find_field(meta, name) for meta in models):
                known = {field for meta in models for field in meta.by_name}
                yield f"exclude: no audited model has a field {name!r}{did_you_mean(name, known)}"

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        """None: the write seam tells of every write, those of requests too."""
        operations = self.acts_for if seat.operations is None else seat.operations
        kinds = {kind for kind, operation in _OPERATIONS.items() if operation in operations}
        for meta in seat.models:
            audited = self._models.get(meta.name)
            known = audited.kinds if audited is not None and audited.meta is meta else frozenset()
            self._models[meta.name] = _AuditedModel(meta, self._exclude, kinds | known)
        return ()

    def listener(self, store: Store) -> ChangeListener:
        """Rows of a table follow from the write; another sink is told of it."""
        in_table = type(self.sink) is TableSink and self.delivery is SinkDelivery.TRANSACTION
        return TrailRows(self, self.sink, store.adapter.dialect) if in_table else self

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        records = list(self.records(changes, caller()))
        if records:
            await self.courier.deliver(records, tx)

    def records(self, changes: Sequence[Change], who: Caller) -> Iterator[AuditRecord]:
        """What is told of these changes, made by this caller."""
        for change in changes:
            audited = self._models.get(change.meta.name)
            if audited is None or change.operation not in audited.kinds:
                continue
            if self._requests_only and change.source not in _OF_REQUESTS:
                continue
            result, fields = audited.describe(change, self._with_changes)
            yield AuditRecord(
                **self.common_values(),
                model=change.meta.name,
                operation=str(change.operation),
                resource_id=change.id or "",
                actor=None if change.source in _BY_NOBODY else who.actor_id,
                tenant_id=who.tenant_id,
                request_id=who.request_id,
                trace_id=who.trace_id,
                source=str(change.source),
                reason=who.reason,
                result=result,
                changes=fields,
            )


@dataclass(frozen=True)
class TrailRows(FollowUp):
    """The records of an entry as rows of their table, in the database of the rows that they tell of."""

    entry: AuditLog
    sink: TableSink
    dialect: Dialect

    needs_exact_types = True

    def follow(self, changes: Sequence[Change], who: Caller) -> Statements:
        """Add the records of these changes."""
        records = list(self.entry.records(changes, who))
        for start in range(0, len(records), AT_ONCE):
            yield self.sink.statement(records[start : start + AT_ONCE], self.dialect)


class _AuditedModel:
    """What a record tells of the rows of one model."""

    def __init__(self, meta: ModelMeta, exclude: Sequence[str], kinds: Iterable[ChangeKind]) -> None:
        excluded = [field for name in exclude if (field := find_field(meta, name)) is not None]
        self.meta = meta
        self.kinds = frozenset(kinds)
        self._redaction = Redaction(meta)
        self._differences = Differences(meta, [field.name for field in excluded])
        self._excluded = frozenset(field.api for field in excluded)

    def describe(
        self, change: Change, with_changes: bool
    ) -> tuple[dict[str, Any] | None, dict[str, FieldChange] | None]:
        """The record as it is after the write (of a delete, as it was), and what the write changed."""
        shown = change.before if change.operation is ChangeKind.DELETE else change.after
        if change.source is Source.ERASURE:  # the values before are what is being erased
            return (None if change.after is None else self._values_as_json(change.after)), {}
        fields = None
        if with_changes:
            difference = self._differences.of(change)
            fields = {n: FieldChange(from_=old, to=new) for n, (old, new) in difference.items()}
        content = msgspec.json.encode((None if shown is None else self._values(shown), fields))
        plain: tuple[dict[str, Any] | None, dict[str, FieldChange] | None] = _decode(content)
        return plain

    def _values_as_json(self, row: Row) -> dict[str, Any]:
        values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self._values(row)))
        return values

    def _values(self, row: Row) -> dict[str, Any]:
        values = self._redaction(row)
        for name in self._excluded:
            values.pop(name, None)
        return values


# Values as they are in responses, whatever Python has for them.
_decode = msgspec.json.Decoder(tuple[dict[str, Any] | None, dict[str, FieldChange] | None]).decode


def audit_log(
    sink: AuditSink | None = None,
    changes: bool = False,
    exclude: Sequence[str] = (),
    delivery: str | None = None,
    requests_only: bool = False,
) -> AuditLog:
    """Tell a sink of every committed write to the models: by requests, code, runs, cascades and sweeps.

    With `changes` a record says what each field was and is. Secret fields are in no record, nor those in
    `exclude`. Without a sink, records go to the table `audit_log`.
    """
    return AuditLog(sink, delivery, changes=changes, exclude=exclude, requests_only=requests_only)
