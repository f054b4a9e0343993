"""`service.webhook`: posts the record of each write that a request made, once it stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from maniflex._caller import Source
from maniflex._names import snake_case
from maniflex.background.feed.capture import EventRows, ModelEvents, kinds_of_operations
from maniflex.db.store import Store
from maniflex.db.write_seam import ChangeListener
from maniflex.events.emit import Emit
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.entry import ListeningEntry, Piece, Seat, describe_nothing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import At

if TYPE_CHECKING:
    from maniflex.background.webhooks.api import Webhooks
    from maniflex.background.webhooks.endpoint import Destination

_DEFAULT_TIMEOUT = 15


def webhook(
    url: str,
    secret: str | None,
    *,
    timeout: timedelta | float = _DEFAULT_TIMEOUT,
    headers: Mapping[str, str] | None = None,
    format: str = "standard",
    ordering: str = "record",
    signing: str = "hmac",
    legacy_signature: bool = False,
    allow_private: bool = False,
) -> WebhookEntry:
    """Post the record of each write of a request to the URL, signed; None as the secret says unsigned."""
    options = {
        "timeout": timeout,
        "headers": headers,
        "format": format,
        "ordering": ordering,
        "signing": signing,
        "legacy_signature": legacy_signature,
        "allow_private": allow_private,
    }
    return WebhookEntry(url, secret, options)


class WebhookEntry(ListeningEntry):
    """Makes an event of each write of a request, for its endpoint alone."""

    name = "service.webhook"
    homes: ClassVar = {"db": (At.AFTER,)}
    acts_for = frozenset(Operation(name) for name in Operation.WRITES)
    hears_backends = False
    needs_rows = True
    docs = describe_nothing

    def __init__(self, url: Any, secret: Any, options: Mapping[str, Any]) -> None:
        from maniflex.background.webhooks.endpoint import declare_endpoint

        super().__init__()
        self._operations: dict[str, frozenset[Operation]] = {}
        endpoint, problems = declare_endpoint(url, (), secret, name=self.name, **options)
        self.mistakes += problems
        self.endpoint: Destination | None = endpoint
        self._webhooks: Webhooks | None = None

    def use(self, webhooks: Webhooks) -> None:
        """Post to its endpoint with `server.webhooks`."""
        self._webhooks = webhooks
        if self.endpoint is not None and not self.mistakes:
            webhooks.take(self.endpoint)

    @property
    def label(self) -> str:
        return f"{self.name} {self.endpoint.url}" if self.endpoint is not None else self.name

    @property
    def terms(self) -> str:
        return ""

    def problems(self, seat: Seat) -> Iterable[str]:
        for meta in (meta for meta in seat.models if not meta.is_internal):
            if meta.options.query is not None and seat.is_named:
                yield f"{meta.name} is a query, so nothing writes it"
            elif meta.options.database is not None or meta.options.backend is not None:
                yield f"{meta.name} is not in the database of the feed, so no transaction has both"

    def pieces(self, seat: Seat) -> Sequence[Piece]:
        """None: the write seam tells of every write."""
        operations = self.acts_for if seat.operations is None else seat.operations & self.acts_for
        for meta in seat.models:
            self._operations[meta.name] = operations | self._operations.get(meta.name, frozenset())
        return ()

    def listener(self, store: Store) -> ChangeListener:
        """The events of a model's writes follow from them, each in its transaction."""
        assert self._webhooks is not None  # an entry of a server that is sealed
        return EventRows(self._events_of(store.meta), self._webhooks.writer, frozenset({Source.REQUEST}))

    def _events_of(self, meta: ModelMeta) -> ModelEvents:
        from maniflex.background.webhooks.endpoint import OF_ENTRY

        assert self.endpoint is not None  # an entry of a server that is sealed
        kinds = kinds_of_operations(self._operations.get(meta.name, frozenset()))
        type = f"{OF_ENTRY}{self.endpoint.id}.{snake_case(meta.name)}"
        return ModelEvents(meta, Emit(type=type), kinds)
