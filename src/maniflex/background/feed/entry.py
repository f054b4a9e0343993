"""`service.emit`: an event of every committed write that requests make to some models.

It is `server.events.emit` for requests alone, declared where other middleware of the db step is. Writes of
actions, runs and code make none, and neither does one that is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from maniflex._caller import Source
from maniflex._names import snake_case
from maniflex.background.feed.capture import (
    EventRows,
    EventWriter,
    ModelEvents,
    emit_problems,
    kinds_of_operations,
)
from maniflex.db.store import Store
from maniflex.db.write_seam import ChangeKind, ChangeListener
from maniflex.events.emit import Emit
from maniflex.events.port import Bus
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.entry import ANYWHERE, ListeningEntry, Piece, Seat, describe_nothing
from maniflex.pipeline.operation import Operation


class EmitWrites(ListeningEntry):
    """Makes events of what requests write."""

    name = "service.emit"
    docs = describe_nothing
    homes: ClassVar = {"db": ANYWHERE}
    acts_for = frozenset({Operation.CREATE, Operation.UPDATE, Operation.DELETE})
    hears_backends = False
    needs_rows = True
    writer: EventWriter  # from the moment the server is sealed

    def __init__(self, bus: Any, source: Any, options: Emit) -> None:
        super().__init__()
        self.bus: Bus | None = bus
        self.options = options
        self.source = source
        self.kinds: dict[str, frozenset[ChangeKind]] = {}  # by model
        if source is not None and (not isinstance(source, str) or not source):
            self.mistakes.append(f"source={source!r} is no text")
        if bus is not None and not callable(getattr(bus, "publish_many", None)):
            self.mistakes.append(f"bus={bus!r} is no bus")

    def problems(self, seat: Seat) -> Iterable[str]:
        for meta in seat.models:
            if not meta.is_internal and (seat.is_named or is_emitting_possible(meta)):
                yield from (f"{meta.name}: {problem}" for problem in emit_problems(meta, self.options))

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        """None: the write seam tells of the writes of requests."""
        operations = self.acts_for if seat.operations is None else seat.operations & self.acts_for
        for meta in seat.models:
            if not meta.is_internal and is_emitting_possible(meta):
                known = self.kinds.get(meta.name, frozenset())
                self.kinds[meta.name] = known | kinds_of_operations(operations)
        return ()

    def patterns(self, names: frozenset[str] | None) -> list[str]:
        """What the types of its events match, of the models with these names or of all."""
        if isinstance(self.options.type, str):
            return [f"{self.options.type}.*"]
        if names is None or callable(self.options.type):
            return ["*"]
        return [f"{snake_case(name)}.*" for name in sorted(names)]

    def listener(self, store: Store) -> ChangeListener:
        """What writes the events of one model."""
        events = ModelEvents(store.meta, self.options, self.kinds.get(store.meta.name, frozenset()))
        writer = self.writer if self.source is None else self.writer.of_source(self.source)
        return EventRows(events, writer, frozenset({Source.REQUEST}))


def is_emitting_possible(meta: ModelMeta) -> bool:
    """Whether writes of the model share a transaction with the feed."""
    return meta.options.query is None and meta.options.backend is None


def emit(
    bus: Bus | None = None,
    *,
    source: str | None = None,
    type: Any = None,
    subject: Any = None,
    tenant: str | None = None,
    schema_version: int = 0,
) -> EmitWrites:
    """Make an event of every committed write that requests make to the models: `order.created`.

    The event goes to the feed, and with `bus` to that bus, too. `type` and `subject` are texts, or functions
    of the operation and the record; `tenant` names the field that has the tenant.
    """
    options = Emit(type=type, subject=subject, tenant=tenant, schema_version=schema_version)
    return EmitWrites(bus, source, options)
