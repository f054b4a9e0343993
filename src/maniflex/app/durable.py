"""The durable parts of a server, declared together and brought to life together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from maniflex._service import Service
from maniflex.app.entry_tables import EntryTables
from maniflex.audit.delivery import AuditTrail
from maniflex.background.clock import HOLD_OFF, ClockKeeper, ServerClock, shared_clock
from maniflex.background.environment import Environment, Part
from maniflex.background.feed.api import Events
from maniflex.background.jobs.api import Jobs
from maniflex.background.metrics import Metrics, measure_replica
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.store import Inbox
from maniflex.background.processes.api import Processes
from maniflex.background.repair import Repair, Repairer, repair_messages, repair_runs, repair_schedules
from maniflex.background.retention import RetentionSweeps
from maniflex.background.runs.api import Work
from maniflex.background.runs.engine import RunEngine, open_store
from maniflex.background.scheduled_fields.api import Scheduled
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.definition import ScopeNeeds
from maniflex.background_api.audit import AuditRoutes
from maniflex.background_api.feed import FeedRoutes
from maniflex.background_api.outbox import OutboxRoutes
from maniflex.background_api.part_routes import PartRoutes
from maniflex.background_api.runs import JobRoutes, RunRoutes
from maniflex.background_api.schedules import (
    ActionCaller,
    ScheduleRoutes,
    open_to_clients,
    schedulable,
    schedulable_problems,
)
from maniflex.config import Config
from maniflex.encryption.keyring import Keyring
from maniflex.erasure.api import ERASURE_RUN, Erasures
from maniflex.features.actions import Action
from maniflex.files.api import Files
from maniflex.middleware.service.send_email import MailEntry
from maniflex.middleware.service.webhook import WebhookEntry
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.model.registry import Registry
from maniflex.pipeline.in_process import bind_run
from maniflex.pipeline.registration import Pipeline
from maniflex.pipeline.routes import Endpoint, RouteBuilder
from maniflex.pipeline.rules.scopes import ScopeRule
from maniflex.pipeline.runtime import Runtime
from maniflex.sql.statement import Dialect, Sql

if TYPE_CHECKING:
    from maniflex.background.feed.described import DescribedType
    from maniflex.background.feed.run_ends import EndFamily
    from maniflex.background.mail.api import Mail
    from maniflex.background.webhooks.api import Webhooks
    from maniflex.realtime.api import Realtime


class Durable:
    """All durable parts."""

    def __init__(self, config: Config) -> None:
        self.metrics = Metrics()
        self.work = Work()
        self.outbox = Outbox()
        self.events = Events(self.outbox)
        self.schedules = Schedules(self.work, config)
        self.scheduled = Scheduled(self.work)
        self.jobs = Jobs(self.work, self.schedules, self.events)
        self.processes = Processes(self.work, self.outbox, self.schedules)
        self.files = Files()
        self.entry_tables = EntryTables()
        self.erasure = Erasures(self.outbox, self.files)
        self.erasure.revokers = self.entry_tables.revokers
        self.erasure.forget_answers = self._forget_copies
        self._forget_opened: Callable[[], None] = lambda: None  # values of encrypted fields
        self.retention = RetentionSweeps(self._prune, self.erasure.erase_records)
        self.audit = AuditTrail(self.outbox)
        self._mail: Mail | None = None
        self._webhooks: Webhooks | None = None
        self._realtime: Realtime | None = None
        self._environment: Environment | None = None
        self.erasure.note_export = self.audit.note_export
        self.audit_routes = AuditRoutes(self.audit.routed_tables)
        self.part_routes: tuple[PartRoutes, ...] = (
            RunRoutes(self.work),
            OutboxRoutes(self.outbox),
            FeedRoutes(self.events),
            ScheduleRoutes(self.schedules),
            JobRoutes(self.jobs),
            self.audit_routes,
        )
        self.keeper: ClockKeeper | None = None
        self.repairer: Repairer | None = None
        self._action_problems: list[str] = []
        self._erases_by_runs = False
        self._ends: list[tuple[EndFamily, str | None]] = []  # kinds of ends, and where clients read of them

    def _all(self) -> Iterator[Part]:
        yield from (self.work, self.outbox, self.events, self.schedules, self.scheduled, self.retention)
        if self._webhooks is not None:
            yield self._webhooks
        yield self.jobs
        yield from (self.processes, self.files, self.erasure, self.entry_tables)
        if self._mail is not None:
            yield self._mail
        if self._realtime is not None:
            yield self._realtime

    @property
    def mail(self) -> Mail:
        """Mail, loaded when it is first asked for."""
        if self._mail is None:
            from maniflex.background.mail.api import Mail

            self._mail = Mail(self.outbox)
            if self._environment is not None:
                self._mail.attach(self._environment)
        return self._mail

    @property
    def webhooks(self) -> Webhooks:
        """Webhooks, loaded when they are first asked for."""
        if self._webhooks is None:
            from maniflex.background.webhooks.api import Webhooks
            from maniflex.background_api.webhooks import WebhookRoutes

            self._webhooks = Webhooks(self.events)
            self.part_routes = (*self.part_routes, WebhookRoutes(self._webhooks))
            if self._environment is not None:
                self._webhooks.attach(self._environment)
        return self._webhooks

    def posted_types(self) -> Sequence[DescribedType]:
        """The types of events that callers may have posted to URLs of theirs."""
        return () if self._webhooks is None else self._webhooks.offered_types()

    @property
    def used_webhooks(self) -> Webhooks | None:
        """Webhooks, where the application uses them."""
        webhooks = self._webhooks
        return webhooks if webhooks is not None and webhooks.is_used else None

    @property
    def realtime(self) -> Realtime:
        """Streams, loaded when they are first asked for."""
        if self._realtime is None:
            from maniflex.realtime.api import Realtime

            self._realtime = Realtime(self.events)
            if self._environment is not None:
                self._realtime.attach(self._environment)
        return self._realtime

    @property
    def hub(self) -> Realtime | None:
        """Streams, where the application has enabled them."""
        return self._realtime if self._realtime is not None and self._realtime.is_used else None

    def hub_services(self) -> list[Service]:
        """What streams need in a process that serves HTTP, whether or not it works in the background."""
        if self.hub is None:
            return []
        router = [] if self.events.has_router else [self.events.make_router()]
        return [*router, *self.hub.hub_services()]

    def bind_trails(self, routes: RouteBuilder) -> None:
        """The rules of the models are declared: those of trails are made of them."""
        self.audit_routes.prepare(routes)

    def judge_by(self, routes: RouteBuilder) -> None:
        """The rules of the models are sealed: webhooks are told what their routes would show."""
        if self._webhooks is not None:
            self._webhooks.judge_by(routes)
        if self.hub is not None:
            self.hub.judge_by(routes)

    async def prepare(self) -> None:
        """Write down who takes events, before anything is published."""
        if self._webhooks is not None:
            await self._webhooks.prepare()
        await self.events.prepare()

    async def _prune(self, until: Callable[[], bool]) -> Mapping[str, int]:
        """What a sweep of retention does beside records: ended holds, old versions and records of trails."""
        counts = Counter(await self.erasure.tidy(until))
        counts.update(await self.entry_tables.prune(until))
        return counts

    def note_declarations(
        self, registry: Registry, actions: Sequence[Action], pipeline: Pipeline, config: Config
    ) -> None:
        """Find the catalogue entries, which have tables, and tell schedules which actions they can call."""
        self.entry_tables.collect(pipeline, registry, actions, config.files_middleware)
        self.audit.collect(self.entry_tables.uses)
        self.events.note_models(registry)
        self.events.note_entries(self.entry_tables.uses)
        self._take_webhooks()
        self._take_ends(config.path_prefix)
        if self.events.is_used and not self.outbox.is_used:
            self.outbox.use()
        for entry in {id(entry): entry for entry, _ in self.entry_tables.uses}.values():
            if isinstance(entry, MailEntry):
                entry.use(self.mail)
        for fn in self.events.subscribers:
            if (bind_mail := getattr(fn, "bind_mail", None)) is not None:
                bind_mail(self.mail)
        self.schedules.know_actions(schedulable(actions), open_to_clients(actions))
        self.schedules.know_scopes(self._scope_needs())
        self._action_problems = schedulable_problems(actions)
        self.erasure.declare(registry, config)
        if self.erasure.is_used and self.work.is_used and not self._erases_by_runs:
            self._erases_by_runs = True
            self.work.add_internal(ERASURE_RUN, self.erasure.run_erasure)

    def _take_webhooks(self) -> None:
        """Have the endpoints of the service.webhook entries."""
        for entry, _ in self.entry_tables.uses:
            if isinstance(entry, WebhookEntry):
                entry.use(self.webhooks)

    def _take_ends(self, prefix: str) -> None:
        """Have events of runs and jobs that are over, where the application asks for them."""
        self._ends = []
        if not (self.work.publishes_ends or self.jobs.tells_feed):
            return
        from maniflex.background.feed.run_ends import JOB_ENDINGS, RUN_ENDINGS, EndFamily

        if self.work.publishes_ends:
            family = EndFamily(
                *("run", RUN_ENDINGS, lambda type: True, self._is_hidden_run),
                lambda: [handler.type for handler in self.work.handlers],
            )
            self._ends.append((family, f"{prefix}/workflow_run" if self.work.has_routes else None))
        if self.jobs.tells_feed:
            types = self.jobs.types
            family = EndFamily(
                "job", JOB_ENDINGS, types.__contains__, lambda type: type not in types, lambda: types
            )
            self._ends.append((family, None if self.jobs.status is None else f"{prefix}/job_statuses"))
        for family, _ in self._ends:
            self.events.take_family(family)

    def _is_hidden_run(self, type: str) -> bool:
        return type in self.work.handlers.hidden_types()

    def _publish_ends(self, runs: RunEngine, config: Config) -> None:
        """Have ends written as events by the transactions that settle the runs."""
        if not self._ends:
            return
        from maniflex.background.feed.run_ends import EndPublisher, FeedBus

        for family, path in self._ends:
            if family.prefix == "run" or self.jobs.uses_runs:
                publisher = EndPublisher(self.events, family, runs, config.event_max_size, path)
                runs.publishers.append(publisher)
            else:
                self.jobs.feed_bus = FeedBus(self.events, family)

    def _scope_needs(self) -> ScopeNeeds:
        """What the scope rules of the models, which bind scoped handlers, must know of a caller."""
        uses = [(entry, models) for entry, models in self.entry_tables.uses if models is None or models]
        rules = [entry for entry, _ in uses if isinstance(entry, ScopeRule)]
        return ScopeNeeds(
            tenant=any(rule.needs_tenant for rule in rules),
            identity=any(rule.needs_identity for rule in rules),
        )

    def models(self) -> Iterator[tuple[type[Model], ModelOptions | None]]:
        """The tables of the parts in use, with the options their routes need."""
        options = {
            model: own_options
            for part_routes in self.part_routes
            for model, own_options in part_routes.options().items()
        }
        for part in self._all():
            for model in part.models():
                yield model, options.get(model)

    def problems(self) -> list[str]:
        return [*self._action_problems, *(problem for part in self._all() for problem in part.problems())]

    def key_ids(self, keys: Keyring | None = None) -> dict[str, str]:
        """The handlers whose runs, messages and jobs are stored encrypted, each with its key id.

        With `keys`, also what the framework seals by itself wherever there is a provider.
        """
        framework_key = None if keys is None else keys.framework_key
        kinds = {
            "work handler": [(one.type, one.encrypted) for one in self.work.handlers],
            "outbox handler": [(one.kind, one.encrypted) for one in self.outbox.handlers],
            "job handler": [(one.type, one.encrypted) for one in self.jobs.handlers],
        }
        return {
            f"{what} {name!r}": key_id
            for what, pairs in kinds.items()
            for name, key_id in pairs
            if key_id is not None
        } | {name: framework_key for name in self._sealing_parts() if framework_key is not None}

    def _sealing_parts(self) -> Iterator[str]:
        """The parts in use that seal what they store."""
        if self._mail is not None and self._mail.is_used:
            yield "server.mail"
        if self._webhooks is not None and self._webhooks.offer is not None:
            yield "server.webhooks"

    def schema(self, dialect: Dialect) -> list[Sql]:
        return [sql for part in self._all() for sql in part.schema(dialect)]

    def attach(self, runtime: Runtime, endpoints: Sequence[Endpoint]) -> None:
        """The server is sealed: bring the parts to its database."""
        beat = runtime.config.work_lease / 3
        clock = shared_clock(runtime.clock, HOLD_OFF + beat)
        logger = runtime.background_logger
        runs = RunEngine(
            open_store(runtime.adapter, logged=runtime.config.work_events),
            self.work.handlers,
            clock=clock,
            config=runtime.config,
            logger=logger,
            stores=runtime.stores,
            metrics=self.metrics,
            bind_caller=partial(bind_run, runtime),
            keys=runtime.keys,
        )
        runs.tracing = runtime.tracing
        self._forget_opened = runtime.keys.opened.forget
        environment = Environment(
            runtime.adapter, clock, runtime.config, logger, runtime.stores, runs, self.metrics
        )
        self.keeper = ClockKeeper(clock, runtime.adapter, logger) if isinstance(clock, ServerClock) else None
        self.repairer = Repairer(environment, list(self._repairs(environment)))
        if self.keeper is not None:
            self.keeper.on_new_time = self.repairer.wake
        self.schedules.call_actions(ActionCaller(runtime, endpoints))
        self.files.use(runtime.file_desk)
        if runtime.request_numbers is not None:
            self.processes.requests = runtime.request_numbers.totals
        self._environment = environment
        if self._webhooks is not None:
            self._webhooks.keys = runtime.keys
        for part in self._all():
            part.attach(environment)
        self._publish_ends(runs, runtime.config)
        self.audit.attach(environment, runtime.tasks.start)
        measure_replica(self.metrics, getattr(runtime.adapter, "replica", None))

    def _repairs(self, environment: Environment) -> Iterator[tuple[str, Repair]]:
        if len(self.work.handlers):
            yield "runs", repair_runs(environment)
        if self.outbox.is_used:
            yield "messages", repair_messages(environment)
        if self.schedules.is_used:
            yield "schedules", repair_schedules(environment)

    def services(self) -> list[Service]:
        """Everything that works in the background of a serving process."""
        return [service for part in self._all() for service in part.services()]

    def _forget_copies(self) -> None:
        """Forget what this process remembers of records: kept answers, opened values."""
        self.entry_tables.forget_answers()
        self._forget_opened()

    async def close(self) -> None:
        """Write what was counted, and close the connections of external job queues and stores."""
        self._forget_opened()
        await self.events.close()
        if self._webhooks is not None:
            await self._webhooks.close()
        await self.processes.write_counts()
        await self.jobs.close()
        await self.entry_tables.close()

    async def learn_time(self) -> None:
        """Learn the database's time once, for a process that does no more than submit or sweep."""
        if self.keeper is not None and any(part.models() for part in self._all()):
            await self.keeper.tick()

    def with_helpers(self, services: Sequence[Service], role: str) -> list[Service]:
        """The services, after those that learn the database's time, repair impossible times and keep the row.

        A process that works also sweeps files and the tables of catalogue entries.
        """
        process_keeper = self.processes.keeper(services, role)
        if not services:
            return [process_keeper] if process_keeper is not None and role == "server" else []
        helpers = [one for one in (self.keeper, self.repairer, process_keeper) if one is not None]
        own = (*self.files.services(), *self.entry_tables.services())
        sweepers = [one for one in own if one not in services]
        return [*helpers, *services, *sweepers]


class WithDurableWork:
    """The parts of durable work as a server shows them."""

    _durable: Durable

    @property
    def work(self) -> Work:
        """Durable runs: handlers, submitting, asking after them."""
        return self._durable.work

    @property
    def jobs(self) -> Jobs:
        """Jobs: a queue, its handlers and the statuses of its jobs."""
        return self._durable.jobs

    @property
    def schedules(self) -> Schedules:
        """Cron schedules, kept in the database."""
        return self._durable.schedules

    @property
    def outbox(self) -> Outbox:
        """Messages that leave with the transaction that made them."""
        return self._durable.outbox

    @property
    def events(self) -> Events:
        """Events of writes and of your own, and whoever takes them."""
        return self._durable.events

    @property
    def inbox(self) -> Inbox:
        """Tells messages that came before from those that did not."""
        return self._durable.outbox.inbox

    @property
    def mail(self) -> Mail:
        """Mails that leave with the transaction they belong to."""
        return self._durable.mail

    @property
    def webhooks(self) -> Webhooks:
        """Events that are posted to URLs."""
        return self._durable.webhooks

    @property
    def realtime(self) -> Realtime:
        """Events for WebSocket and SSE clients."""
        return self._durable.realtime

    @property
    def scheduled(self) -> Scheduled:
        """Fields that change when their time has come."""
        return self._durable.scheduled

    @property
    def retention(self) -> RetentionSweeps:
        """Removes the records that their models keep no longer."""
        return self._durable.retention

    @property
    def erasure(self) -> Erasures:
        """Erases what is kept of a person."""
        return self._durable.erasure

    @property
    def files(self) -> Files:
        """Files: where they are kept, and storing, reading and removing them from code."""
        return self._durable.files

    @property
    def processes(self) -> Processes:
        """The processes of the application, what they did, and why a run waits."""
        return self._durable.processes

    @property
    def metrics(self) -> Metrics:
        """Numbers about durable work in this process."""
        return self._durable.metrics
