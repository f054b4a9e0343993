"""`server.webhooks`: events that are posted to URLs, of code and of the callers of the API.

The deliveries are rows that the router makes in the transaction in which it hands events on; a worker sends
them. `send` declares an endpoint in code, `enable` lets callers have endpoints of their own over REST.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from maniflex._callables import explain_arguments
from maniflex._ids import new_id
from maniflex._json import decode
from maniflex._outbound import address_problem, url_problem
from maniflex._service import Service
from maniflex._webhook_signatures import new_key_pair, new_secret
from maniflex.background.declaring import as_duration, duration_problems, role_problems, switch_problems
from maniflex.background.environment import DeclaredPart, Environment, begin_at_start
from maniflex.background.feed.api import Events
from maniflex.background.feed.audience import Audience
from maniflex.background.feed.capture import EventWriter
from maniflex.background.feed.described import DescribedType
from maniflex.background.metrics import Labels
from maniflex.background.parameters import PACKAGE
from maniflex.background.webhooks.attempt import AttemptOutcome, make_request
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
from maniflex.db.current import transaction
from maniflex.db.port import Tx
from maniflex.db.write_seam import after_commit_once
from maniflex.encryption.keyring import Keyring
from maniflex.errors import DeclarationError, NotFound
from maniflex.events.event import CONTROL, Event
from maniflex.events.patterns import covers, matcher, read_patterns
from maniflex.model.base import Model
from maniflex.pipeline.context import AuthInfo
from maniflex.pipeline.routes import RouteBuilder
from maniflex.sql.statement import Dialect, Sql, schema_statements

PING = "webhook.ping"
SIGNS_ALONG = timedelta(hours=24)
REPLAYED_AT_ONCE = 500
DISABLED = "webhook.endpoint_disabled"  # the type of the event that tells of it
DISABLE_AFTER = timedelta(days=5)
SEALED_AS = "webhook_endpoint.secret"  # what sealed_secret texts are bound to, with the id of the endpoint
UNSERVED, BY_HAND = "unserved", "by hand"  # reasons why an endpoint is disabled
_TOUCH_EVERY = timedelta(minutes=1)
_MOST_ENDPOINTS = 20


@dataclass(frozen=True, slots=True)
class Offer:
    """What callers may have over REST."""

    events: tuple[str, ...]
    role: str | None
    view_roles: tuple[str, ...]
    admin_role: str
    max_endpoints: int
    allow_http: bool
    allow_private: bool
    legacy_signature: bool
    routes: bool


class Webhooks(DeclaredPart):
    """Declares endpoints, sends events to them, and looks after what is on its way."""

    too_late: ClassVar = "the server is sealed; webhooks are declared before it starts"
    too_early: ClassVar = "webhooks are used once the server is started"
    not_used: ClassVar = (
        "webhooks are not in use: server.webhooks.send(url, pattern, secret=...), service.webhook(...), or"
        " server.webhooks.enable(events=[...]) before the start"
    )
    store: WebhookStore  # from the moment the server is sealed_secret, as the rest down to `sender`
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
        self.offer: Offer | None = None
        self.audience: Audience | None = None  # once the routes of the models are known
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

    @explain_arguments("server.webhooks.enable")
    def enable(
        self,
        events: Sequence[str],
        *,
        role: str | None = None,
        view_roles: str | Sequence[str] = (),
        admin_role: str = "admin",
        max_endpoints: int = _MOST_ENDPOINTS,
        allow_http: bool = False,
        allow_private: bool = False,
        legacy_signature: bool = False,
        disable_after: timedelta | float = DISABLE_AFTER,
        routes: bool = True,
    ) -> None:
        """Let callers have endpoints of their own over REST, for events of these patterns alone.

        With a `role`, callers who have it; their endpoints are told what callers with `view_roles` see, and
        without any what everybody sees. `max_endpoints` counts per tenant, or per caller who has none.
        """
        self.require_open()
        texts, problems = read_patterns(tuple(events))
        if not texts and not problems:
            problems.append("events=[] offers nothing")
        problems += role_problems(admin_role)
        if role is not None:
            problems += [text.replace("admin_role", "role") for text in role_problems(role)]
        roles = (view_roles,) if isinstance(view_roles, str) else tuple(view_roles)
        problems += [text.replace("admin_role", "view_roles") for one in roles for text in role_problems(one)]
        if roles and role is None:
            problems.append("view_roles= without role= would show everybody what is for these roles")
        problems += switch_problems(
            allow_http=allow_http,
            allow_private=allow_private,
            legacy_signature=legacy_signature,
            routes=routes,
        )
        problems += duration_problems(disable_after=disable_after)
        if type(max_endpoints) is not int or max_endpoints < 1:
            problems.append("max_endpoints is a number above zero")
        self._problems += [f"webhooks.enable: {problem}" for problem in problems]
        self._use()
        if problems:
            return
        self.disable_after = as_duration(disable_after, "disable_after")
        self.offer = Offer(
            tuple(texts),
            role,
            roles,
            admin_role,
            max_endpoints,
            allow_http,
            allow_private,
            legacy_signature,
            routes,
        )

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
    def operator_role(self) -> str:
        """The role of people who operate the endpoints of code."""
        return self._events.admin_role

    @property
    def writer(self) -> EventWriter:
        """What writes the events of service.webhook."""
        return self._events.writer

    async def prepare(self) -> None:
        """Write the endpoints of code, so that they are told of all that is published after this start."""
        if self.is_used:
            await begin_at_start("webhooks", self._begin, self.require_sealed().logger)

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
        row = await self.store.find(id)
        if self.offer is None:  # nobody here says who may see what
            return None
        if row is None or row.is_declared or row.status != EndpointStatus.ENABLED:
            return None
        return self.open_endpoint(row)

    def open_endpoint(self, row: StoredEndpoint) -> Destination:
        """An endpoint of a client, as a value."""
        now = self.require_sealed().clock.now()
        secrets = [row.secret]
        if row.old_until is not None and row.old_until > now:
            secrets.append(row.old_secret)
        return Destination(
            row.id,
            row.url,
            row.patterns,
            None,
            BodyFormat(row.format),
            Ordering(row.ordering),
            Signing(row.signing),
            row.timeout,
            {} if row.headers is None else decode(self.open_text(row.headers, row.id)),
            tuple(self.open_text(one, row.id) for one in secrets if one is not None),
            legacy_signature=self.offer is not None and self.offer.legacy_signature,
            allow_private=self.offer is not None and self.offer.allow_private,
            actor_id=row.actor_id,
            tenant_id=row.tenant_id,
            is_declared=False,
        )

    def seal_text(self, text: str, id: str) -> str:
        """A secret of an endpoint for its row: sealed, where the application has a key provider."""
        key_id = self.key_id
        return text if key_id is None else self.keys.seal_text_under(key_id, text, SEALED_AS, id)

    @property
    def key_id(self) -> str | None:
        """The key that secrets are sealed under; None where they are kept as they are."""
        return self.keys.framework_key

    def open_text(self, row: str, id: str) -> str:
        """A secret of a row, opened."""
        return self.keys.open_text(row, SEALED_AS, id)

    async def view(
        self, endpoint: Destination, event: Event, digests: Mapping[str, str] | None = None
    ) -> Event | None:
        """The event as the owner of the endpoint may see it; of an endpoint of code, that is code."""
        if endpoint.is_declared:
            return event
        if self.audience is None or (endpoint.tenant_id or None) != (event.tenant_id or None):
            return None
        auth = AuthInfo(
            endpoint.actor_id or "",
            roles=[] if self.offer is None else list(self.offer.view_roles),
            tenant_id=endpoint.tenant_id or "",
            identity_type="service_account",
            auth_method="webhook",
        )
        return await self.audience.view(auth, event, digests)

    def judge_by(self, routes: RouteBuilder) -> None:
        """The models have their routes: events are judged by them."""
        if self.offer is not None:
            self.audience = Audience(
                routes, self._events, routes.runtime.clock.now, member_role=self.offer.role
            )

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

    def offered_types(self) -> list[DescribedType]:
        """What is known of the types that callers can subscribe to, and may be told of."""
        if self.offer is None:
            return []
        wants = matcher(self.offer.events)
        return [
            one
            for one in self._events.described_types()
            if wants(one.type) and (one.model is not None or one.audience != "nobody")
        ]

    # -- operating

    def now(self) -> datetime:
        """The time by the server's clock."""
        return self.require_sealed().clock.now()

    def problems_of(self, url: str | None, patterns: Sequence[str] | None) -> list[dict[str, str]]:
        """What is wrong with a URL and patterns that a client says."""
        assert self.offer is not None
        details: list[dict[str, str]] = []
        if url is not None and (problem := self._url_problem(url)) is not None:
            details.append({"field": "url", **problem})
        if patterns is None:
            return details
        details += [
            {"field": "patterns", "code": "bad_pattern", "message": text}
            for text in pattern_problems(patterns)
        ]
        for place, pattern in enumerate(patterns if not details else ()):
            if not any(covers(one, pattern) for one in self.offer.events):
                message = f"{pattern} is not offered; there is {', '.join(self.offer.events)}"
                details.append({"field": f"patterns[{place}]", "code": "not_offered", "message": message})
        return details

    def _url_problem(self, url: str) -> dict[str, str] | None:
        assert self.offer is not None
        if problem := url_problem(url):
            return {"code": "url", "message": problem}
        if not self.offer.allow_http and not url.lower().startswith("https:"):
            return {"code": "https", "message": "a URL begins with https://"}
        if not self.offer.allow_private and (problem := address_problem(url)):
            return {"code": "not_public", "message": problem}
        return None

    async def rotate(self, tx: Tx, row: StoredEndpoint) -> tuple[str, str | None]:
        """Give an endpoint another secret, and a public key of it; the one before signs along for a day."""
        now = self.require_sealed().clock.now()
        secret, public_key = new_key(Signing(row.signing))
        sealed_secret = self.seal_text(secret, row.id)
        await self.store.set_secret(tx, row.id, sealed_secret, public_key, now + SIGNS_ALONG, now)
        return secret, public_key

    async def test(self, endpoint: Destination) -> AttemptOutcome:
        """Send `webhook.ping`; what came back."""
        now = self.require_sealed().clock.now()
        id = new_id()
        ping = Event(PING, {"endpoint_id": endpoint.id}, id=id, time=now)
        return await self.sender.post(endpoint, make_request(endpoint, id, ping, now))

    async def replay(
        self,
        id: str,
        since: datetime,
        until: datetime | None = None,
        patterns: Sequence[str] | None = None,
    ) -> int:
        """Deliver what is kept of the feed to an endpoint again, with the ids it had; how many events."""
        environment = self.require_sealed()
        row = await self.store.find(id)
        if row is None:
            raise NotFound()
        wants = matcher(tuple(patterns) if patterns is not None else row.patterns)
        own = matcher(row.patterns)
        feed, now = self._events.store, environment.clock.now()
        position, count = await feed.first_since(since), 0
        while events := await feed.read(position, REPLAYED_AT_ONCE):
            deliveries = [
                (one.row_id, one.event.type, id)
                for one in events
                if one.event.time >= since
                and (until is None or one.event.time < until)
                and not one.event.type.startswith(CONTROL)
                and wants(one.event.type)
                and own(one.event.type)
                and (row.is_declared or (row.tenant_id or None) == (one.event.tenant_id or None))
            ]
            async with self._writing() as tx:
                count += await self.store.make(tx, deliveries, now)
            position = events[-1].event.position or position
        return count

    async def recover(self, id: str, since: datetime) -> int:
        """Send what failed or was cancelled since then; how many."""
        async with self._writing() as tx:
            return await self.store.recover(tx, id, since, self.now())

    async def resend(self, id: str) -> bool:
        """Send a settled delivery once more; False where it waits already."""
        async with self._writing() as tx:
            return await self.store.resend(tx, id, self.now())

    async def enable_endpoint(self, id: str) -> bool:
        """Tell a disabled endpoint of events again; False where it was enabled."""
        async with self._writing() as tx:
            return await self.store.enable(tx, id, self.now())

    async def disable_endpoint(self, id: str) -> bool:
        """Tell an endpoint of nothing any more, and cancel what waits for it; False where it was disabled."""
        async with self._writing() as tx:
            endpoint = await self.store.disable(tx, id, BY_HAND, self.now())
            if endpoint is not None:
                await self.tell_disabled(tx, id, endpoint, BY_HAND)
        return endpoint is not None

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[Tx]:
        """The open transaction or one of its own; there may be deliveries once it is committed."""
        async with transaction(self.require_sealed().adapter) as tx:
            yield tx
            after_commit_once(tx, self.wake)

    async def drain(self) -> int:
        """Route all that is committed and send all that is due; how many attempts were made."""
        self.require_sealed()
        await self._begin()
        await self._events.route_all()
        return await self.sender.drain()

    # -- numbers

    async def _count_pending(self) -> list[tuple[Labels, float]]:
        return [((), float(await self.store.pending_count()))]


def new_key(signing: Signing) -> tuple[str, str | None]:
    """A fresh secret, or a private key with its public one."""
    return new_key_pair() if signing is Signing.ED25519 else (new_secret(), None)
