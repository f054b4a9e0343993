"""What the audit entries have in common: a sink, a way of delivery, and who acts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from maniflex._clock import Clock
from maniflex._ids import new_id
from maniflex.audit.records import AnyRecord
from maniflex.audit.sinks import LIMIT, Delivery, RecordCourier
from maniflex.audit.tables import TABLES, AuditRow, TableSink
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry


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
            self.delivery = self.delivery if delivery is None else Delivery(delivery)
        except ValueError:
            self.mistakes.append(f"delivery={delivery!r} is none of {', '.join(Delivery)}")
        self.tables = (self.table,) if isinstance(self.sink, TableSink) else ()

    @property
    def table(self) -> type[AuditRow]:
        """Where a `TableSink` keeps its records."""
        return TABLES[self.record]

    def _default_delivery(self) -> Delivery:
        return Delivery.TRANSACTION if isinstance(self.sink, TableSink) else Delivery.OUTBOX

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
        """The same, and who asks."""
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
    """The names of an argument that is one or a list of them; None stands for what is no name."""
    if isinstance(value, str):
        return [value or None]
    if not isinstance(value, Iterable):
        return [None]
    return [name if isinstance(name, str) and name else None for name in value]
