"""`db.audit_action`: a record of every action that was done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import msgspec

from maniflex._names import did_you_mean
from maniflex.audit.records import ActionAuditRecord
from maniflex.audit.sinks import AuditSink
from maniflex.middleware.db.audit_entry import AuditEntry, names_in
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import ANYWHERE, Piece, Seat
from maniflex.pipeline.entry_docs import describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware, Next
from maniflex.pipeline.response import status_of

_OUTERMOST = -100  # rank: what it sees is what is sent


class AuditAction(AuditEntry):
    """Tells a sink of every action that was done."""

    name = "db.audit_action"
    docs = describe_nothing
    homes: ClassVar = {"response": ANYWHERE}
    in_actions = True
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
