"""`db.audit_reads`: a record of every answer that shows records, and to whom."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar

from maniflex.audit.records import ReadAuditRecord
from maniflex.audit.sinks import AuditSink, Delivery
from maniflex.errors import Unavailable
from maniflex.middleware.db.audit_entry import AuditEntry
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context, Page
from maniflex.pipeline.entry import ANYWHERE, Piece, Seat
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware, Next
from maniflex.pipeline.response import Response, status_of

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
            self.delivery = Delivery.TRANSACTION
        if required and self.delivery is Delivery.BACKGROUND:
            self.mistakes.append('required=True waits for the sink, which delivery="background" does not')
        self._is_required = required or self.delivery is Delivery.TRANSACTION

    def _default_delivery(self) -> Delivery:
        return Delivery.BACKGROUND

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
