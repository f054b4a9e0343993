"""`server.events`: events that leave with the transaction that made them, and whoever takes them.

`publish` stores an event in the open transaction; writes of models that emit store theirs. The router gives
them positions after the commit and makes the deliveries of the groups, which `subscribe` declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from maniflex._callables import explain_arguments
from maniflex._caller import caller
from maniflex._ids import new_id
from maniflex._json import decode
from maniflex._names import did_you_mean
from maniflex._service import Service
from maniflex._settings import is_source
from maniflex.background.declaring import as_duration, duration_problems, role_problems, switch_problems
from maniflex.background.environment import DeclaredPart, Environment, begin_at_start
from maniflex.background.feed.bridges import Bridge, BusKeeper, BusUse
from maniflex.background.feed.capture import (
    EventRows,
    EventWriter,
    ModelEvents,
    emit_problems,
    read_emit,
    read_kinds,
    strip_secrets,
)
from maniflex.background.feed.described import (
    DescribedType,
    EventType,
    TypeFamily,
    describe_types,
)
from maniflex.background.feed.entry import EmitWrites
from maniflex.background.feed.groups import Group, GroupRelay, GroupWorker, draft_of
from maniflex.background.feed.model import (
    BRIDGE,
    HANDLER,
    TAKER,
    EventGroup,
    EventPosition,
    LoggedEvent,
)
from maniflex.background.feed.numbers import FeedNumbers
from maniflex.background.feed.revocations import Revocations
from maniflex.background.feed.router import EventListener, EventPruner, EventRouter, FeedReader
from maniflex.background.feed.scope_digests import ScopeDigests
from maniflex.background.feed.store import FeedStore, GroupStanding, GroupState
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.handlers import TIMEOUT, MessageHandler
from maniflex.background.parameters import PACKAGE
from maniflex.background.payload_types import PayloadType
from maniflex.db.current import current_tx
from maniflex.db.port import Executor, Tx
from maniflex.db.store import Store
from maniflex.db.write_seam import after_commit_once
from maniflex.errors import (
    Conflict,
    CursorGone,
    DatabaseError,
    DeclarationError,
    NotFound,
    TransactionError,
    ValidationFailed,
)
from maniflex.events.emit import Emit
from maniflex.events.event import CONTROL, DEFAULT_SOURCE, Event, encode_data, header_problems
from maniflex.events.patterns import matcher, read_patterns, type_problem
from maniflex.events.port import STARTS, Bus, Pause, group_problem, option_problems, pause_of
from maniflex.model.base import Model
from maniflex.model.registry import Registry
from maniflex.sql.statement import Dialect, Sql, schema_statements

F = TypeVar("F", bound=Callable[..., Any])
AUDIENCES = ("tenant", "actor", "everyone", "nobody")
_UNSAID: Any = object()
MOST_READ = 1000
SERVED_EVERY = timedelta(minutes=10)  # a group's row says so of those that have its code


class Events(DeclaredPart):
    """Declares who emits and who subscribes, publishes events, and reads the feed."""

    too_late = "the server is sealed; events are declared before it starts"
    too_early = "events are used once the server is started"
    not_used = (
        "the feed of events is not in use: let a model emit (events=True), subscribe, or call"
        " server.events.enable() before the start"
    )
    store: FeedStore  # from the moment the server is sealed, as `writer`
    writer: EventWriter

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self.admin_role, self.routes = "admin", True
        self._own_source: str | None = None
        self._groups: dict[str, Group] = {}
        self._types: dict[str, EventType] = {}
        self._families: dict[str, TypeFamily] = {}  # by prefix
        self._emitters: list[tuple[Any, Emit]] = []  # a model class or name, and how it emits
        self._entries: list[EmitWrites] = []
        self._uses: dict[str, BusUse] = {}
        self._by_class: dict[type[Model], list[Emit]] = {}
        self._problems: list[str] = []
        self._relays: dict[str, GroupRelay] = {}
        self._workers: dict[str, GroupWorker] = {}
        self._bridges: list[Bridge] = []
        self._router: EventRouter | None = None
        self._reader: FeedReader | None = None
        self._paused: frozenset[str] = frozenset()
        self._has_begun = False
        self.digests = ScopeDigests()
        self._served_at: datetime | None = None
        self._model_problems: list[str] = []
        self.on_routed: list[Callable[[], None]] = []  # told when events may have new positions
        self.revocations = Revocations()

    # -- declaring

    @explain_arguments("server.events.enable")
    def enable(self, *, source: str | None = None, admin_role: str = "admin", routes: bool = True) -> None:
        """Use the feed even where nothing else asks for it, and say who sees it over REST."""
        self.require_open()
        self._own_source, self.admin_role, self.routes = source, admin_role, routes
        self._enabled = True

    @explain_arguments("server.events.emit")
    def emit(
        self,
        *models: type[Model] | str,
        operations: Any = None,
        type: str | Callable[[str, dict[str, Any]], str] | None = None,
        subject: str | Callable[[str, dict[str, Any]], str] | None = None,
        tenant: str | None = None,
        schema_version: int = 0,
        data: Any = "record",
        fields: Sequence[str] | None = None,
        scope: Sequence[str] = (),
    ) -> None:
        """Make an event of every write of these models, whoever makes it."""
        self.require_open()
        options = Emit(
            operations=operations,
            type=type,
            subject=subject,
            tenant=tenant,
            schema_version=schema_version,
            data=data,
            fields=fields,
            scope=tuple(scope),
        )
        if not models:
            self._problems.append("events.emit: it names no model")
        self._emitters += [(model, options) for model in models]

    @explain_arguments("server.events.declare")
    def declare(
        self,
        type: str,
        payload: Any = None,
        *,
        title: str = "",
        description: str = "",
        audience: Any = "tenant",
        example: Any = None,
    ) -> None:
        """Declare a type of your own: its data are checked where it is published; clients may hear of it."""
        self.require_open()
        where = f"events.declare({type!r})"
        if (problem := type_problem(type)) is not None:
            self._problems.append(f"{where}: it {problem}")
        elif type in self._types:
            self._problems.append(f"{where}: it is declared twice")
        elif not (audience in AUDIENCES or callable(audience)):
            self._problems.append(
                f"{where}: audience={audience!r} is none of {', '.join(AUDIENCES)} and no function"
            )
        else:
            payload_type = None if payload is None else PayloadType(payload)
            self._types[type] = EventType(type, payload_type, title, description, audience, example)

    @explain_arguments("server.events.subscribe")
    def subscribe(
        self,
        *patterns: str,
        group: str | None = None,
        concurrency: int = 1,
        max_retry: int = 3,
        backoff: Pause | None = None,
        timeout: timedelta | float = TIMEOUT,
        dead_letter: str | None = None,
        payload: Any = None,
        once: bool = False,
        start: str = "now",
        ordered: bool = True,
        scoped: bool = False,
    ) -> Callable[[F], F]:
        """Hand events of these patterns to the function below, durably, as the group of its name.

        Every group gets every matching event at least once; replicas of a group share them. Events of one key
        come one after another. With `once`, the function runs in a transaction that also remembers the event,
        so what it writes to this database happens once.
        """

        def decorate(fn: F) -> F:
            self.require_open()
            name = group if group is not None else getattr(fn, "__name__", "")
            texts, problems = read_patterns(patterns)
            if not patterns:
                problems.append("it names no pattern, such as 'order.*'")
            problems += option_problems(name, concurrency, max_retry, backoff, dead_letter, start)
            problems += duration_problems(timeout=timeout)
            problems += switch_problems(once=once, ordered=ordered, scoped=scoped)
            if name in self._groups:
                problems.append("another function subscribes as this group")
            self._problems += [f"events.subscribe, group {name!r}: {problem}" for problem in problems]
            if not problems:
                handler = MessageHandler.of(name, fn, timeout=as_duration(timeout, "timeout"), scoped=scoped)
                self._groups[name] = Group(
                    name,
                    tuple(texts),
                    handler,
                    concurrency,
                    max_retry + 1,
                    pause_of(backoff),
                    dead_letter,
                    None if payload is None else PayloadType(payload),
                    once,
                    start,
                    ordered,
                )
            return fn

        return decorate

    def has_group(self, name: str) -> bool:
        """Whether a function here subscribes as this group, or a bridge here is called so."""
        return name in self._groups or name in self._uses

    @property
    def subscribers(self) -> list[Callable[..., Any]]:
        """The functions that handle events here."""
        return [group.handler.fn for group in self._groups.values()]

    @explain_arguments("server.events.use")
    def use(
        self,
        bus: Bus,
        *,
        publish: Sequence[str] = ("*",),
        ingest: Sequence[str] = (),
        group: str | None = None,
        start: str = "now",
    ) -> None:
        """Copy the feed to a broker, and take events of others from it.

        Events that match `publish` are published in the order of their positions; those of others that match
        `ingest` enter the feed, each once. `group` names the bridge.
        """
        self.require_open()
        name = f"bridge-{_name_of_bus(bus)}" if group is None else group
        publish_patterns, problems = read_patterns(publish)
        ingest_patterns, more = read_patterns(ingest)
        problems += more
        if not callable(getattr(bus, "publish_many", None)):
            problems.append(f"{bus!r} is no bus")
        if (problem := group_problem(name)) is not None:
            problems.append(f"group={name!r} {problem}")
        if start not in STARTS:
            problems.append(f"start={start!r} is neither 'now' nor 'beginning'")
        if name in self._uses or name in self._groups:
            problems.append("another bridge or group has this name")
        self._problems += [f"events.use, group {name!r}: {problem}" for problem in problems]
        if not problems:
            self._uses[name] = BusUse(bus, name, tuple(publish_patterns), tuple(ingest_patterns), start)

    def note_entries(self, uses: Sequence[tuple[Any, Any]]) -> None:
        """Find the entries `service.emit`."""
        self._entries = list(
            {id(entry): entry for entry, _ in uses if isinstance(entry, EmitWrites)}.values()
        )
        for entry in self._entries:
            if entry.bus is not None and all(use.bus is not entry.bus for use in self._uses.values()):
                self.use(entry.bus)

    def note_models(self, registry: Registry) -> None:
        """Find the models that say `events=` of themselves, and those that `emit` names."""
        self._by_class = {}
        by_name = {cls.__name__: cls for cls, _ in registry.options()}
        self._model_problems = []
        for cls, options in registry.options():
            if options.events:
                try:
                    self._by_class.setdefault(cls, []).append(read_emit(options.events))
                except DeclarationError as problem:
                    self._model_problems.append(f"{cls.__name__}: {problem}")
        for model, emit in self._emitters:
            name = model if isinstance(model, str) else getattr(model, "__name__", repr(model))
            found_cls = by_name.get(name)
            if found_cls is None or not (isinstance(model, str) or model is found_cls):
                hint = did_you_mean(name, by_name)
                self._model_problems.append(f"events.emit: no model named {name!r} is registered{hint}")
            else:
                self._by_class.setdefault(found_cls, []).append(emit)

    def use_feed(self) -> None:
        """Have the feed, for a part that takes events."""
        self.require_open()
        self._enabled = True

    def take_family(self, family: TypeFamily) -> None:
        """Have the feed for events of these types."""
        self._enabled = True
        self._families[family.prefix] = family

    def find_type(self, event: Event) -> EventType | None:
        """What is said of the type of an event: by the application, or of the families of its own events."""
        event_type = self._types.get(event.type)
        if event_type is None and event.source in self.own_sources:
            family = self._families.get(event.type.partition(".")[0])
            event_type = None if family is None else family.find_type(event)
        return event_type

    def described_types(self) -> list[DescribedType]:
        """What is known of the types that this application publishes, by their names."""
        stores = self.require_sealed().stores
        metas = {store.meta.name: store.meta for store in stores.values()}
        emits = [
            (stores[cls].meta, options, read_kinds(options.operations)[0])
            for cls, own_emits in self._by_class.items()
            for options in own_emits
        ]
        emits += [
            (metas[name], entry.options, kinds)
            for entry in self._entries
            for name, kinds in entry.kinds.items()
        ]
        return describe_types(self._types.values(), emits, self._families.values())

    @property
    def types(self) -> Mapping[str, EventType]:
        """The types that the application declares."""
        return self._types

    @property
    def own_sources(self) -> frozenset[str]:
        """What events of this application have as their source."""
        return frozenset({self.source, *(e.source for e in self._entries if e.source is not None)})

    def makes_own_data(self, model: type[Model]) -> bool:
        """Whether a function of the application makes the data of a model's events."""
        emits = [*self._by_class.get(model, ()), *(entry.options for entry in self._entries)]
        return any(callable(emit.data) for emit in emits)

    @property
    def is_used(self) -> bool:
        return self._enabled or bool(
            self._groups or self._by_class or self._types or self._uses or self._entries
        )

    @property
    def uses_outbox(self) -> bool:
        """Whether deliveries to groups need the tables of the outbox."""
        return self.is_used

    def models(self) -> Sequence[type[Model]]:
        return (LoggedEvent, EventPosition, EventGroup) if self.is_used else ()

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        return schema_statements(PACKAGE, "feed", dialect) if self.is_used else ()

    def problems(self) -> list[str]:
        options = [*role_problems(self.admin_role), *switch_problems(routes=self.routes)]
        if self._own_source is not None:
            source: Any = self._own_source
            problem = is_source(source) if isinstance(source, str) and source else f"{source!r} is no text"
            options += [f"source: {problem}"] if problem else []
        return [*self._problems, *self._model_problems, *(f"events.enable: {one}" for one in options)]

    def capture_problems(self, stores: Mapping[type[Model], Store], adapter: Any) -> list[str]:
        """The mistakes of models that emit, once they can be read."""
        problems = []
        for cls, emits in self._by_class.items():
            store = stores.get(cls)
            if store is None:
                continue
            for options in emits:
                problems += [f"{cls.__name__}: events: {one}" for one in emit_problems(store.meta, options)]
            if store.adapter is not adapter:
                problems.append(
                    f"{cls.__name__}: events: it is in another database than the feed, so its rows and"
                    " their events share no transaction"
                )
            kinds = [kind for options in emits for kind in read_kinds(options.operations)[0]]
            kinds += [kind for entry in self._entries for kind in entry.kinds.get(store.meta.name, ())]
            if len(kinds) != len(set(kinds)):
                problems.append(f"{cls.__name__}: events: two declarations emit for one operation")
        return problems

    # -- being wired

    def attach(self, environment: Environment) -> None:
        super().attach(environment)
        self._relays, self._workers, self._router, self._reader = {}, {}, None, None
        self._paused, self._has_begun, self.on_routed = frozenset(), False, []
        self.digests = ScopeDigests()
        if not self.is_used:
            return
        config = environment.config
        self.store = FeedStore(environment.adapter)
        self.source = self._own_source or config.event_source or _source_of(config.service_name)
        feed = self.writer = EventWriter(
            self.store,
            self.source,
            config.event_max_size,
            config.path_prefix,
            environment.clock.now,
            self._wake,
            lambda: self._router is not None and self._router.started is not None,
            self.digests,
            lambda type, number: environment.metrics.add("events_published_total", number, type=type),
        )
        for cls, emits in self._by_class.items():
            store = environment.stores[cls]
            for options in emits:
                events = ModelEvents(store.meta, options, read_kinds(options.operations)[0])
                store.seam.listen(EventRows(events, feed))
        for entry in self._entries:
            entry.writer = feed
        for group in self._groups.values():
            self._relays[group.name] = GroupRelay(
                group, self.store, self._outbox.store, environment, self.source
            )
        self.revocations.attach(feed)
        numbers = FeedNumbers(self.store, environment.clock, self._groups, list(self._uses.values()))
        numbers.add_to(environment.metrics)

    def services(self) -> Sequence[Service]:
        if not self.is_used:
            return ()
        environment = self.require_sealed()
        config, clock, logger = environment.config, environment.clock, environment.logger
        router = self.make_router()
        self._workers = {
            name: relay.worker(lambda name=name: name in self._paused)  # type: ignore[misc]
            for name, relay in self._relays.items()
        }
        own_sources = self.own_sources
        self._bridges = [
            Bridge(
                use,
                self.store,
                own_sources,
                clock,
                config.event_poll_interval,
                config.work_lease,
                logger,
                environment.metrics,
            )
            for use in self._uses.values()
            if use.publish and not use.is_in_process
        ]
        keepers = [
            BusKeeper(use, self.store, own_sources, self._follow, clock, logger, self._wake)
            for use in self._uses.values()
        ]
        services: list[Service] = [router, *self._workers.values(), *keepers, *self._bridges]
        if config.event_retention:
            services.append(EventPruner(self.store, config.event_retention, clock, logger))
        return services

    def make_router(self) -> EventRouter:
        """What gives events their positions in this process."""
        environment = self.require_sealed()
        router = self._router = EventRouter(
            self.store,
            self._begin,
            environment.clock,
            environment.config.event_poll_interval,
            environment.logger,
            environment.metrics,
        )
        router.on_routed, router.on_paused = self._wake_takers, self._note_pauses
        return router

    @property
    def has_router(self) -> bool:
        """Whether this process gives positions."""
        return self._router is not None

    async def prepare(self) -> None:
        """Begin new groups at this start, so that they miss nothing of what is published after it."""
        if self.is_used:
            await begin_at_start("events", self._begin, self.require_sealed().logger)

    async def _begin(self) -> None:
        """Make the row of positions, once, and say now and then which groups this process serves."""
        environment = self.require_sealed()
        now = environment.clock.now()
        if self._has_begun:
            names = [*self._groups, *self._uses, *(taker.name for taker in self.store.takers)]
            if names and not (self._served_at and abs(now - self._served_at) < SERVED_EVERY):
                await self.store.note_served(names, now)
                self._served_at = now
            return
        await self.store.begin(now)
        if any(emit.scope for emits in self._by_class.values() for emit in emits):
            self.digests.key = await self.store.scope_key()
        known_names = {group.name for group in await self.store.groups()}
        own_names = {*self._groups, *self._uses, *(taker.name for taker in self.store.takers)}
        if not own_names <= known_names:  # they begin behind what was committed before
            await self._route_all()
        last_gone = (await self.store.position()).pruned
        positions = {group.name: group.position for group in await self.store.groups()}
        for use in self._uses.values():
            if use.publish and not use.is_in_process:
                if 0 < positions.get(use.name, 0) < last_gone:
                    environment.logger.error(
                        "events: bridge %s stood at %d, and events up to %d are not kept any more, as no"
                        " process had its code for so long; it goes on with the first that is kept",
                        *(use.name, positions[use.name], last_gone),
                    )
                await self.store.serve_group(
                    use.name, BRIDGE, use.publish, ordered=True, from_now=use.start == "now", now=now
                )
        for group in self._groups.values():
            await self.store.serve_group(
                group.name,
                HANDLER,
                group.patterns,
                ordered=group.ordered,
                from_now=group.start == "now",
                now=now,
            )
        for taker in self.store.takers:
            await self.store.serve_group(taker.name, TAKER, (), ordered=False, from_now=True, now=now)
        await self._learn_pauses()
        self._has_begun, self._served_at = True, now

    async def route_all(self) -> None:
        """Give positions to all that is committed, and make its deliveries."""
        self.require_sealed()
        await self._begin()
        await self._route_all()

    async def _route_all(self) -> None:
        while await self.store.is_behind():
            await self.store.route(self.require_sealed().clock.now())

    async def _learn_pauses(self) -> None:
        _, paused_groups = await self.store.look()
        self._note_pauses(paused_groups)

    def _note_pauses(self, names: frozenset[str]) -> None:
        """These groups are paused; those that were and are not go on."""
        resumed_names, self._paused = self._paused - names, names
        for name in resumed_names & self._workers.keys():
            self._workers[name].wake()

    def _wake(self) -> None:
        """An event is committed."""
        if self._router is not None:
            self._router.note_event()

    def _wake_takers(self) -> None:
        """There may be deliveries, and events with new positions."""
        for taker in (*self._workers.values(), *self._bridges):
            taker.wake()
        if self._reader is not None:
            self._reader.wake()
        for call in self.on_routed:
            call()

    # -- publishing

    async def publish(
        self,
        type: str,
        data: Any = None,
        *,
        subject: str | None = None,
        key: str | None = None,
        tenant_id: str | None = _UNSAID,
        actor_id: str | None = _UNSAID,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
        tx: Tx | None = None,
        outside_transaction: bool = False,
    ) -> Event:
        """Store an event in the open transaction, or the one handed over; it leaves when that commits.

        An `id` that was published before makes no second event: the first is given back.
        """
        clock = self.require_sealed().clock
        who = caller()
        values: dict[str, Any] = {} if id is None else {"id": id}
        event = Event(
            type,
            self._checked_data(type, data),
            source=self.source,
            subject=subject,
            time=clock.now(),
            key=key,
            tenant_id=who.tenant_id if tenant_id is _UNSAID else tenant_id,
            actor_id=who.actor_id if actor_id is _UNSAID else actor_id,
            traceparent=who.traceparent,
            headers=dict(headers or {}),
            **values,
        )
        [logged_event] = await self.publish_many([event], tx=tx, outside_transaction=outside_transaction)
        return logged_event

    async def publish_many(
        self, events: Sequence[Event], *, tx: Tx | None = None, outside_transaction: bool = False
    ) -> list[Event]:
        """Store several events of this application, in this order."""
        environment = self.require_sealed()
        own_events = [self._own(event) for event in events]
        producer_tx = self._producer_tx(tx, outside_transaction)
        if not own_events:
            return []
        run = producer_tx or environment.adapter
        rows = await run.write(self.store.append_many([draft_of(e, self.source) for e in own_events]))
        added_ids = {id for (id,) in rows}
        logged_events = [
            event if event.id in added_ids else await self._first_of(run, event) for event in own_events
        ]
        if self.writer.notifies:
            await self.store.notify(run)
        for event in own_events:
            environment.metrics.add("events_published_total", type=self._metric_type(event.type))
        if producer_tx is None:
            self._wake()
        else:
            after_commit_once(producer_tx, self._wake)
        return logged_events

    async def _first_of(self, run: Executor, event: Event) -> Event:
        """The event that has this id already, or this one where another source has a row of that id."""
        first_event = await self.store.find(run, self.source, event.id)
        if first_event is not None:
            return first_event
        draft = draft_of(event, self.source)._replace(id=new_id())
        rows = await run.write(self.store.append(draft))
        return event if rows else await self.store.find(run, self.source, event.id) or event

    def _own(self, event: Event) -> Event:
        """The event as one of this application; too large ones are refused."""
        environment = self.require_sealed()
        config = environment.config
        problems = header_problems(event.headers) if event.headers else []
        if problems:
            details = [{"field": name, "message": f"{name} {message}"} for name, message in problems]
            raise ValidationFailed("the headers of the event are not valid", details)
        text = "" if event.data is None else encode_data(strip_secrets(event.data, environment.stores))
        if len(text) > config.event_max_size:
            message = (
                f"data are larger than event_max_size allows: {len(text)} bytes of {config.event_max_size}"
            )
            raise ValidationFailed(f"the event {message}", [{"field": "data", "message": message}])
        return replace(event, source=self.source, data=decode(text) if text else None)

    def _checked_data(self, type: str, data: Any) -> Any:
        event_type = self._types.get(type)
        plain = strip_secrets(data, self.require_sealed().stores)
        if event_type is None or event_type.payload is None:
            return plain
        try:
            event_type.payload.read(encode_data(plain))
        except ValidationError as error:
            errors = error.errors(include_url=False, include_input=False, include_context=False)
            details = [
                {"field": ".".join(map(str, ("data", *e["loc"]))), "message": e["msg"]} for e in errors
            ]
            raise ValidationFailed(f"the data of {type} are not what it declares", details) from None
        return plain

    def _producer_tx(self, tx: Tx | None, outside_transaction: bool) -> Tx | None:
        producer_tx = tx or current_tx(self.require_sealed().adapter)
        if producer_tx is None and not outside_transaction:
            raise TransactionError(
                "TX_REQUIRED",
                "an event is published inside the transaction of what it tells about:"
                " `async with server.transaction():`; outside_transaction=True says that there is none",
            )
        return producer_tx

    def _metric_type(self, type: str) -> str:
        return type if type in self._types else "other"

    # -- reading

    async def position(self) -> str:
        """The cursor of the last event that has a position."""
        self.require_sealed()
        position = await self._position()
        return f"{position.epoch}:{position.last}"

    async def _position(self) -> Any:
        position = await self.store.position()
        if not position.epoch:
            await self.store.begin(self.require_sealed().clock.now())
            position = await self.store.position()
        return position

    async def read(
        self, after: str | None = None, patterns: Sequence[str] = ("*",), limit: int = 100
    ) -> list[Event]:
        """Events behind a cursor, or all that are kept, in order; `CursorGone` where that cannot be."""
        self.require_sealed()
        texts = _check_patterns(patterns)
        at = 0 if after is None else await self.position_of(after)
        events: list[Event] = []
        wants = matcher(texts)
        while len(events) < limit:
            batch = await self.store.read(at, MOST_READ)
            events += [
                one.event for one in batch if wants(one.event.type) and not one.event.type.startswith(CONTROL)
            ]
            if len(batch) < MOST_READ:
                break
            at = batch[-1].event.position or at
        return events[:limit]

    async def position_of(self, cursor: str) -> int:
        """The position that a cursor stands for; `CursorGone` where the feed cannot go on from it."""
        position = await self._position()
        epoch, _, digits = cursor.partition(":")
        if epoch != position.epoch or not digits.isdecimal() or len(digits) > 20:
            raise CursorGone()
        place = int(digits)
        if place > position.last or place < position.pruned:
            raise CursorGone()
        return place

    def listen(self, *patterns: str) -> EventListener:
        """An async iterator over the events of this moment on, for code of this process."""
        self.require_sealed()
        texts, problems = read_patterns(patterns or ("*",))
        if problems:
            raise DeclarationError(*(f"events.listen: {problem}" for problem in problems))
        return EventListener(texts, self._follow)

    async def _follow(self) -> FeedReader:
        if self._reader is None:
            environment = self.require_sealed()
            self._reader = FeedReader(
                self.store, environment.clock, environment.config.event_poll_interval, environment.logger
            )
            await self._reader.start()
        return self._reader

    async def close(self) -> None:
        """Stop following the feed."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.stop()

    async def latest(self, patterns: Sequence[str] = ("*",), limit: int = 50) -> list[Event]:
        """The last events of these patterns, in their order."""
        self.require_sealed()
        wants = matcher(_check_patterns(patterns))
        return [one.event for one in await self.store.read_latest(wants, limit)]

    # -- operating

    def now(self) -> datetime:
        """What the clock of the server says."""
        return self.require_sealed().clock.now()

    async def standings(self) -> list[GroupStanding]:
        """How the groups stand: how far behind they are, and what waits for them."""
        self.require_sealed()
        return await self.store.standings()

    async def group_state(self, name: str) -> GroupState:
        """A group as it is stored; `NotFound` where there is none."""
        for group in await self.store.groups():
            if group.name == name:
                return group
        raise NotFound(f"there is no group {name}")

    async def pause(self, name: str) -> bool:
        """Hand nothing to the functions of a group until it is resumed."""
        return await self._set_paused(name, True)

    async def resume(self, name: str) -> bool:
        """Hand events to the functions of a group again."""
        return await self._set_paused(name, False)

    async def _set_paused(self, name: str, paused: bool) -> bool:
        environment = self.require_sealed()
        is_there = await self.store.pause(name, paused, environment.clock.now())
        open_tx = current_tx(environment.adapter)
        if open_tx is None:
            await self._learn_pauses()
        else:
            after_commit_once(open_tx, self._wake)  # the router learns of it
        return is_there

    async def forget(self, name: str) -> bool:
        """End a group and its deliveries."""
        self.require_sealed()
        return await self.store.forget(name)

    async def replay(
        self,
        group: str,
        after: str | None = None,
        since: datetime | None = None,
        until: str | None = None,
    ) -> int:
        """Hand events that are kept to a group again, with the ids they had; how many."""
        environment = self.require_sealed()
        state = await self.group_state(group)
        if state.kind != HANDLER:
            raise Conflict(f"{group} is a {state.kind}, which has no deliveries of the feed to make again")
        if after is not None and since is None:
            start = await self.position_of(after)
        elif since is not None and after is None:
            start = await self.store.first_since(since)
        else:
            message = "say either after=, a cursor, or since=, a moment"
            raise ValidationFailed(message, [{"field": "after", "message": message}])
        end = (await self._position()).last if until is None else await self.position_of(until)
        return await self.store.replay(state, start, end, since, environment.clock.now())

    async def erase(self, subject: str, *, tx: Tx | None = None) -> int:
        """Take the data out of all events about a subject; how many."""
        environment = self.require_sealed()
        run = tx or current_tx(environment.adapter) or environment.adapter
        return await self.store.erase(run, subject, environment.clock.now())

    async def renew(self) -> str:
        """Begin a new epoch, as after a restored backup: cursors of before are continued by nobody."""
        return await self.store.renew(self.require_sealed().clock.now())

    async def drain(self) -> int:
        """Route and deliver all that is due; how many deliveries were handled."""
        if current_tx(self.require_sealed().adapter) is not None:
            raise DatabaseError("drain() inside a transaction would deliver what may be rolled back")
        await self._begin()
        await self._learn_pauses()
        total = 0
        while True:
            await self._route_all()
            count = 0
            for name, relay in self._relays.items():
                if name not in self._paused:
                    count += await relay.drainer().drain()
            total += count
            if not count and not await self.store.is_behind():  # a dead letter may have come
                self._wake_takers()
                return total


def _name_of_bus(bus: Any) -> str:
    """What a bridge to it is called: redis, nats …"""
    return type(bus).__name__.removesuffix("Bus").lower()


def _source_of(service_name: str) -> str:
    return f"/{quote(service_name)}" if service_name else DEFAULT_SOURCE


def _check_patterns(patterns: Sequence[str]) -> list[str]:
    """The patterns, or a refusal that names those that are none."""
    texts, problems = read_patterns(patterns)
    if problems:
        raise ValidationFailed(
            "; ".join(problems), [{"field": "patterns", "message": one} for one in problems]
        )
    return texts
