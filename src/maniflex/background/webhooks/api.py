"""`server.webhooks`: events that are posted to URLs, of code and of the callers of the API.

The deliveries are rows that the router makes in the transaction in which it hands events on; a worker sends
them. `send` declares an endpoint in code, `enable` lets callers have endpoints of their own over REST.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import ClassVar

from maniflex._callables import explain_arguments
from maniflex._json import decode
from maniflex._service import Service
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.feed.api import Events
from maniflex.background.feed.capture import EventWriter
from maniflex.background.metrics import Labels
from maniflex.background.parameters import PACKAGE
from maniflex.background.webhooks.endpoint import TIMEOUT, Destination, declare_endpoint, pattern_problems
from maniflex.background.webhooks.model import (
    BodyFormat,
    EndpointStatus,
    Ordering,
    Signing,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
)
from maniflex.background.webhooks.sender import PRUNE_AT_ONCE, Sender, WebhookPruner, WebhookWorker
from maniflex.background.webhooks.store import Disabled, StoredEndpoint, WebhookStore, taker_of
from maniflex.db.port import Tx
from maniflex.db.write_seam import after_commit_once
from maniflex.encryption.keyring import Keyring
from maniflex.errors import DatabaseError, DeclarationError
from maniflex.events.event import Event
from maniflex.model.base import Model
from maniflex.sql.statement import Dialect, Sql, schema_statements

DISABLED = "webhook.endpoint_disabled"  # the type of the event that tells of it
DISABLE_AFTER = timedelta(days=5)
SEALED_AS = "webhook_endpoint.secret"  # what sealed texts are bound to, with the id of the endpoint
UNSERVED = "unserved"
_TOUCH_EVERY = timedelta(minutes=1)
_MOST_ENDPOINTS = 20


class Webhooks(DeclaredPart):
    """Declares endpoints, sends events to them, and looks after what is on its way."""

    too_late: ClassVar = "the server is sealed; webhooks are declared before it starts"
    too_early: ClassVar = "webhooks are used once the server is started"
    not_used: ClassVar = (
        "webhooks are not in use: server.webhooks.send(url, pattern, secret=...), service.webhook(...), or"
        " server.webhooks.enable(events=[...]) before the start"
    )
    store: WebhookStore  # from the moment the server is sealed, as the rest down to `sender`
    sender: Sender

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events
        self._declared: dict[str, Destination] = {}
        self._problems: list[str] = []
        self._has_begun = False
        self._touched_at: datetime | None = None
        self._worker: WebhookWorker | None = None
        self.keys = Keyring()
        self.disable_after = DISABLE_AFTER

    # -- declaring

    @explain_arguments("server.webhooks.send")
    def send(
        self,
        url: str,
        *patterns: str,
        secret: str | None,
        name: str = "",
        timeout: timedelta | float = TIMEOUT,
        headers: dict[str, str] | None = None,
        format: str = BodyFormat.STANDARD,
        ordering: str = Ordering.RECORD,
        signing: str = Signing.HMAC,
        legacy_signature: bool = False,
        allow_private: bool = False,
    ) -> None:
        """Post every event of these patterns to the URL, signed with the secret; None says unsigned.

        The URL and the name make out the endpoint: another one begins with the events from then on.
        """
        self.require_open()
        where = f"webhooks.send({url!r})"
        problems = pattern_problems(list(patterns))
        endpoint, more = declare_endpoint(
            url,
            patterns,
            secret,
            name=f"send {name}",
            timeout=timeout,
            headers=headers,
            format=format,
            ordering=ordering,
            signing=signing,
            legacy_signature=legacy_signature,
            allow_private=allow_private,
            description=name or None,
        )
        if endpoint is not None and endpoint.id in self._declared:
            problems.append("two endpoints have this URL; name= tells them apart")
        self._problems += [f"{where}: {problem}" for problem in (*problems, *more)]
        self._use()
        if endpoint is not None and not problems:
            self._declared[endpoint.id] = endpoint

    def take(self, endpoint: Destination) -> None:
        """Take the endpoint of a service.webhook; several of one URL are one endpoint."""
        if endpoint.id not in self._declared:
            self.require_open()
            self._use()
            self._declared[endpoint.id] = endpoint
        elif self._declared[endpoint.id] != endpoint:
            self._problems.append(
                f"service.webhook({endpoint.url!r}): it is declared twice, with other options"
            )

    def _use(self) -> None:
        self._enabled = True
        self._events.use_feed()

    # -- being wired

    def models(self) -> Sequence[type[Model]]:
        return (WebhookEndpoint, WebhookDelivery, WebhookAttempt) if self.is_used else ()

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        return schema_statements(PACKAGE, "webhooks", dialect) if self.is_used else ()

    def problems(self) -> list[str]:
        if not self.is_used:
            return []
        try:
            import maniflex._outbound_http  # noqa: F401  # it needs the extra
        except DeclarationError as missing:
            return [*self._problems, str(missing)]
        return list(self._problems)

    def attach(self, environment: Environment) -> None:
        super().attach(environment)
        self._has_begun, self._touched_at, self._worker = False, None, None
        if not self.is_used:
            return
        self.store = WebhookStore(environment.adapter)
        self._events.store.takers.append(taker_of(self.store, self._note_made))
        self._events.on_routed.append(self.wake)
        self.sender = Sender(
            self.store,
            self._events.store,
            self,
            environment.clock,
            environment.logger,
            environment.metrics,
            concurrency=environment.config.webhook_concurrency,
            disable_after=self.disable_after,
        )
        environment.metrics.gauge("webhooks_pending", self._count_pending)

    def services(self) -> Sequence[Service]:
        if not self.is_used:
            return ()
        environment = self.require_sealed()
        config, clock, logger = environment.config, environment.clock, environment.logger
        interval, grace = config.event_poll_interval, config.shutdown_timeout
        self._worker = WebhookWorker(self.sender, clock, interval, logger, grace, self._refresh)
        return [self._worker, WebhookPruner(self._prune, clock, logger)]

    @property
    def writer(self) -> EventWriter:
        """What writes the events of service.webhook."""
        return self._events.writer

    async def prepare(self) -> None:
        """Write the endpoints of code, so that they are told of all that is published after this start."""
        if self.is_used:
            with suppress(DatabaseError):  # migrations that are to come make the tables
                await self._begin()

    async def close(self) -> None:
        """Close the connections to endpoints."""
        if self._environment is not None and self.is_used:
            await self.sender.clients.close()

    async def _begin(self) -> None:
        if self._has_begun:
            return
        now = self.require_sealed().clock.now()
        for endpoint in self._declared.values():
            await self.store.serve(endpoint, now)
        self._touched_at, self._has_begun = now, True

    async def _refresh(self) -> None:
        """Say now and then that this process has the code of its endpoints."""
        await self._begin()
        now = self.require_sealed().clock.now()
        if self._declared and self._touched_at is not None and now - self._touched_at >= _TOUCH_EVERY:
            await self.store.touch_declared(self._declared, now)
            self._touched_at = now

    async def _prune(self) -> int:
        """Remove what is old, and give up endpoints whose code is gone."""
        environment = self.require_sealed()
        now = environment.clock.now()
        for id in await self.store.forgotten(now - self.disable_after):
            async with environment.adapter.transaction() as tx:
                await self.sender.disable(tx, id, UNSERVED, now)
        keep = environment.config.webhook_retention
        return await self.store.prune(now - keep, PRUNE_AT_ONCE) if keep else 0

    def wake(self) -> None:
        """There may be deliveries."""
        if self._worker is not None:
            self._worker.wake()

    def _note_made(self, tx: Tx) -> None:
        after_commit_once(tx, self.wake)

    # -- what the sender asks

    async def find_endpoint(self, id: str) -> Destination | None:
        """The endpoint with its secrets; None where that is not known here."""
        if id in self._declared:
            return self._declared[id]
        stored = await self.store.find(id)
        if stored is None or stored.is_declared or stored.status != EndpointStatus.ENABLED:
            return None
        return self.opened(stored)

    def opened(self, stored: StoredEndpoint) -> Destination:
        """An endpoint of a client, as a value."""
        now = self.require_sealed().clock.now()
        secrets = [stored.secret]
        if stored.old_until is not None and stored.old_until > now:
            secrets.append(stored.old_secret)
        return Destination(
            stored.id,
            stored.url,
            stored.patterns,
            None,
            BodyFormat(stored.format),
            Ordering(stored.ordering),
            Signing(stored.signing),
            stored.timeout,
            {} if stored.headers is None else decode(self.open_text(stored.headers, stored.id)),
            tuple(self.open_text(one, stored.id) for one in secrets if one is not None),
            actor_id=stored.actor_id,
            tenant_id=stored.tenant_id,
            is_declared=False,
        )

    def seal_text(self, text: str, id: str) -> str:
        """A secret of an endpoint as it is stored."""
        return self.keys.seal_text(text, SEALED_AS, id)

    def open_text(self, stored: str, id: str) -> str:
        """A stored secret as it is."""
        return self.keys.open_text(stored, SEALED_AS, id)

    async def view(self, endpoint: Destination, event: Event) -> Event | None:
        """The event as the owner of the endpoint may see it; of an endpoint of code, that is code."""
        return event if endpoint.is_declared else None

    async def tell_disabled(self, tx: Tx, id: str, endpoint: Disabled, reason: str) -> None:
        """Publish that an endpoint was disabled."""
        await self._events.publish(
            DISABLED,
            {"id": id, "reason": reason},
            subject=f"webhook_endpoint/{id}",
            tenant_id=endpoint.tenant_id,
            actor_id=endpoint.actor_id,
            tx=tx,
        )

    # -- operating

    async def drain(self) -> int:
        """Route all that is committed and send all that is due; how many attempts were made."""
        self.require_sealed()
        await self._begin()
        await self._events.route_all()
        return await self.sender.drain()

    # -- numbers

    async def _count_pending(self) -> list[tuple[Labels, float]]:
        return [((), float(await self.store.pending_count()))]
