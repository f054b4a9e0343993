"""`db.audit_log`: a record of every committed write, whatever made it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from maniflex._caller import Source, caller
from maniflex._names import did_you_mean
from maniflex.audit.records import AuditRecord, FieldChange
from maniflex.audit.sinks import AuditSink, Delivery
from maniflex.db.changes import Change, ChangeKind
from maniflex.db.port import Row, Tx
from maniflex.db.redacted import Differences, Redaction
from maniflex.middleware.db.audit_entry import AuditEntry, names_in
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.entry import ANYWHERE, Piece, Seat
from maniflex.pipeline.entry_docs import describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.query.query import find_field

_OPERATIONS = {
    ChangeKind.CREATE: Operation.CREATE,
    ChangeKind.UPDATE: Operation.UPDATE,
    ChangeKind.DELETE: Operation.DELETE,
    ChangeKind.RESTORE: Operation.UPDATE,
}
_OF_REQUESTS = frozenset({Source.REQUEST, Source.ACTION, Source.PROVISION})
# Nobody wrote these rows: a rule or the time did. The request that set it off is named by its id.
_BY_NOBODY = frozenset({Source.CASCADE, Source.SET_NULL, Source.SWEEP, Source.RETENTION, Source.ERASURE})


class AuditLog(AuditEntry):
    """Tells a sink of every write to its models."""

    name = "db.audit_log"
    docs = describe_nothing
    homes: ClassVar = {"db": ANYWHERE}
    acts_for = frozenset({Operation.CREATE, Operation.UPDATE, Operation.DELETE})
    listens = True
    listens_to_backends = False
    needs_routes = False  # it is told of the writes of code, too
    record = AuditRecord

    def __init__(self, sink: Any, delivery: Any, *, changes: Any, exclude: Any, requests_only: Any) -> None:
        super().__init__(sink, delivery)
        self._with_changes = changes
        self._requests_only = requests_only
        self._exclude = names_in(exclude)
        self._models: dict[str, _AuditedModel] = {}
        self.beside_rows = self.delivery is Delivery.TRANSACTION
        for name, value in (("changes", changes), ("requests_only", requests_only)):
            if not isinstance(value, bool):
                self.mistakes.append(f"{name}={value!r} is neither True nor False")
        if None in self._exclude:
            self.mistakes.append(f"exclude={exclude!r} is not a list of fields")

    @property
    def needs_rows(self) -> bool:
        return True

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

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        records = list(self._records(changes))
        if records:
            await self.courier.deliver(records, tx)

    def _records(self, changes: Sequence[Change]) -> Iterator[AuditRecord]:
        who = caller()
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
                operation=change.operation.value,
                resource_id=change.id or "",
                actor=None if change.source in _BY_NOBODY else who.actor_id,
                tenant_id=who.tenant_id,
                request_id=who.request_id,
                trace_id=who.trace_id,
                source=change.source.value,
                reason=who.reason,
                result=result,
                changes=fields,
            )


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
        fields = None
        if with_changes:
            difference = self._differences.of(change)
            fields = {n: FieldChange(from_=old, to=new) for n, (old, new) in difference.items()}
        content = msgspec.json.encode((None if shown is None else self._values(shown), fields))
        plain: tuple[dict[str, Any] | None, dict[str, FieldChange] | None] = _decode(content)
        return plain

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
