"""Durable work: types that nobody takes, schedules, dead letters, leases, retention (T161 to T170, T177)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta

from maniflex.background.feed.model import BRIDGE, EventGroup
from maniflex.background.feed.store import OF_GROUP, GroupStanding
from maniflex.background.outbox.handlers import TIMEOUT, MessageHandler
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.schedules.model import Schedule
from maniflex.background.schedules.store import ScheduleStore
from maniflex.background.webhooks.model import WebhookEndpoint
from maniflex.doctor.check import (
    DatabaseCheck,
    DeclarationCheck,
    LivingProcesses,
    OpenDatabase,
    Problem,
    Severity,
    Subject,
    at_place,
    place_of_function,
    read_living,
    tables_over,
)
from maniflex.model.base import Model
from maniflex.schema.read import read_columns
from maniflex.sql.statement import Sql

SHORTEST_LEASE = timedelta(seconds=5)
LATE = timedelta(minutes=1)
MANY_FINISHED = 1_000_000
UNSERVED = timedelta(days=1)
STANDS_STILL = timedelta(minutes=10)
_SHOWN = 20


async def untaken_work(database: OpenDatabase) -> AsyncIterator[Problem]:
    """Runs and messages that no living process takes; with none alive, those without a handler here."""
    takers = await _Takers.read(database)
    for type, count, oldest in await _due_runs(database):
        if not takers.take_runs(type):
            yield Problem(
                where=f"runs of {type}",
                why=f"{count:,} due since {oldest:%Y-%m-%d %H:%M} UTC, and {takers.why_no_run(type)}",
                fix=takers.how_to_take(f"@server.work.handler({type!r})", takers.has_run_handler(type)),
                about=(type,),
            )
    for kind, count, oldest in await _waiting_messages(database):
        if not takers.take_messages(kind):
            yield Problem(
                where=f"messages of {kind}",
                why=f"{count:,} wait since {oldest:%Y-%m-%d %H:%M} UTC, and {takers.why_no_message(kind)}",
                fix=takers.how_to_take(_declaration(kind), takers.has_message_handler(kind)),
                about=(kind,),
            )


class _Takers:
    """Who takes work: the living processes, or this application while there are none."""

    def __init__(self, subject: Subject, living: LivingProcesses) -> None:
        self._subject, self.living = subject, living

    @classmethod
    async def read(cls, database: OpenDatabase) -> _Takers:
        return cls(database.subject, await read_living(database))

    def has_run_handler(self, type: str) -> bool:
        return self._subject.work.handlers.get(type) is not None

    def has_message_handler(self, kind: str) -> bool:
        if kind.startswith(OF_GROUP):
            return self._subject.events.has_group(kind.removeprefix(OF_GROUP))
        handlers = self._subject.outbox.handlers
        return not handlers or handlers.of(kind) is not None

    def take_runs(self, type: str) -> bool:
        return self.living.take_runs(type) if self.living.alive else self.has_run_handler(type)

    def take_messages(self, kind: str) -> bool:
        return self.living.take_messages(kind) if self.living.alive else self.has_message_handler(kind)

    def why_no_run(self, type: str) -> str:
        if self.living.alive:
            return self.living.no_taker(type)
        return "no process is alive, and this application has no handler of the type"

    def why_no_message(self, kind: str) -> str:
        if self.living.alive:
            return f"no living process takes {kind}"
        return "no process is alive, and this application has no handler of the kind"

    def how_to_take(self, declaration: str, is_declared: bool) -> str:
        if is_declared:
            return "maniflex worker app:server with the types, or start the release that has the handler"
        return f"{declaration}, or maniflex worker of the application that has it"


def _declaration(kind: str) -> str:
    """What declares a handler of messages of this kind."""
    if kind.startswith(OF_GROUP):
        return f"@server.events.subscribe(…, group={kind.removeprefix(OF_GROUP)!r})"
    return f"@server.outbox.handler({kind!r})"


async def _due_runs(database: OpenDatabase) -> list[tuple[str, int, datetime]]:
    work = database.subject.work
    if not database.is_default or not work.is_used or not await _has_table(database, WorkflowRun):
        return []
    return (await work.engine.store.depth(work.clock.now()))[:_SHOWN]


async def _waiting_messages(database: OpenDatabase) -> list[tuple[str, int, datetime]]:
    outbox = database.subject.outbox
    if not database.is_default or not outbox.is_used or not await _has_table(database, OutboxMessage):
        return []
    return (await outbox.store.depth())[:_SHOWN]


async def _has_table(database: OpenDatabase, model: type[Model]) -> bool:
    return bool(await read_columns(database.run, database.subject.stores[model].sql))


_BROKEN = """
SELECT id, name, last_error FROM schedules
 WHERE status = 'inactive' AND last_error IS NOT NULL ORDER BY name, id LIMIT 20
"""


async def broken_schedules(database: OpenDatabase) -> AsyncIterator[Problem]:
    for id, name, error in await database.run.fetch(Sql(_BROKEN)) if await _has_schedules(database) else ():
        yield Problem(
            where=f"schedule {name}",
            why=f"an error made it inactive, so it does not fire any more: {error}",
            fix=f"mend it, then await server.schedules.activate({id!r})",
            about=(name,),
        )


async def _has_schedules(database: OpenDatabase) -> bool:
    is_used = database.is_default and database.subject.schedules.is_used
    return is_used and await _has_table(database, Schedule)


async def late_schedules(database: OpenDatabase) -> AsyncIterator[Problem]:
    if not await _has_schedules(database):
        return
    now = database.subject.work.clock.now()
    count, since = await ScheduleStore(database.adapter).overdue(now - LATE)
    if count and since is not None:
        living = await read_living(database)
        who = "no living process does it"
        if living.fire_schedules:
            who = f"a living process on {', '.join(living.hosts)} fires schedules, but falls behind"
        yield Problem(
            where=f"{count:,} schedules",
            why=f"they should have fired since {since:%Y-%m-%d %H:%M} UTC, and {who}",
            fix="look at the log of that process, and at its loop: maniflex processes app:server"
            if living.fire_schedules
            else "maniflex scheduler app:server, or maniflex run app:server without --no-work",
            about=("schedules",),
        )


async def dead_letters(database: OpenDatabase) -> AsyncIterator[Problem]:
    outbox = database.subject.outbox
    if not database.is_default or not outbox.is_used or not await _has_table(database, OutboxMessage):
        return
    count = await outbox.store.dead()
    if count:
        yield Problem(
            where="outbox",
            why=f"{count:,} messages were given up and will not be delivered",
            fix="mend the reason (maniflex outbox list app:server --status dead), then"
            " maniflex outbox redrive app:server --all",
            about=("outbox",),
        )


async def unserved_groups(database: OpenDatabase) -> AsyncIterator[Problem]:
    """Groups of events, and bridges, whose code no process has had for a day."""
    now = database.subject.work.clock.now()
    for group in await _groups(database):
        if group.served_at is None or now - group.served_at > UNSERVED:
            since = "ever" if group.served_at is None else f"since {group.served_at:%Y-%m-%d %H:%M} UTC"
            waiting = group.behind if group.kind == BRIDGE else group.waiting
            rest = ", and no event is removed that it has not passed" if group.kind == BRIDGE else ""
            yield Problem(
                where=f"events: {group.kind} {group.name}",
                why=f"no process has served it {since}; {waiting:,} events wait for it{rest}",
                fix=f"start the release that has it, or maniflex events forget app:server {group.name}",
                about=(group.name,),
            )


async def standing_bridges(database: OpenDatabase) -> AsyncIterator[Problem]:
    """Bridges that are served and do not get on."""
    now = database.subject.work.clock.now()
    for group in await _groups(database):
        is_served = group.served_at is not None and now - group.served_at <= UNSERVED
        if (
            group.kind == BRIDGE
            and is_served
            and group.since is not None
            and now - group.since > STANDS_STILL
        ):
            why = "it is paused" if group.paused else "its broker is away, or refuses what it is sent"
            yield Problem(
                where=f"events: bridge {group.name}",
                why=f"{group.behind:,} events wait for it since {group.since:%Y-%m-%d %H:%M} UTC: {why}",
                fix=f"maniflex events resume app:server {group.name}"
                if group.paused
                else "look at the log of the process that leads it, and at the broker",
                about=(group.name,),
            )


async def _groups(database: OpenDatabase) -> list[GroupStanding]:
    events = database.subject.events
    if not database.is_default or not events.is_used or not await _has_table(database, EventGroup):
        return []
    return await events.store.standings()


async def late_work(database: OpenDatabase) -> AsyncIterator[Problem]:
    """Due runs and messages that have takers, of whom there are none, or too few."""
    now, takers = database.subject.work.clock.now(), await _Takers.read(database)
    due = [one for one in await _due_runs(database) if takers.take_runs(one[0])]
    waiting = [one for one in await _waiting_messages(database) if takers.take_messages(one[0])]
    alive = len(takers.living.alive)
    who = f"the {alive} living processes are too few" if alive else "no living process takes them"
    for what, rows in (("runs", due), ("messages", waiting)):
        oldest = min((moment for _, _, moment in rows), default=now)
        if now - oldest > LATE:
            total = sum(count for _, count, _ in rows)
            yield Problem(
                where=what,
                why=f"the oldest of {total:,} due {what} waits since {oldest:%Y-%m-%d %H:%M} UTC: {who}",
                fix="one more maniflex worker app:server" if alive else "maniflex worker app:server",
                about=(what,),
            )


def short_leases(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    if len(subject.work.handlers) and config.work_lease < SHORTEST_LEASE:
        yield _short_lease(
            f"work_lease={config.work_lease.total_seconds():g}", "Server(work_lease=30)", "work_lease"
        )
    for handler in subject.work.handlers:
        if handler.lease is not None and handler.lease < SHORTEST_LEASE:
            where = at_place(f"handler {handler.type}", place_of_function(handler.fn))
            yield _short_lease(where, f"@server.work.handler({handler.type!r}, lease=30)", handler.type)


def _short_lease(where: str, fix: str, name: str) -> Problem:
    return Problem(
        where=where,
        why="a pause of a few seconds, for a slow disk or a busy machine, lets another worker take the run:"
        " it is done twice",
        fix=fix,
        about=(name,),
    )


def long_handlers(subject: Subject) -> Iterator[Problem]:
    grace = subject.config.shutdown_timeout
    own = [handler for handler in subject.work.handlers if not handler.internal]
    handlers = [(h.type, h.timeout, h.fn) for h in own if h.timeout is not None]
    handlers += [(h.kind, h.timeout, h.fn) for h in subject.outbox.handlers if _is_own_handler(h)]
    for name, timeout, fn in handlers:
        if timeout > grace:
            yield Problem(
                where=at_place(f"handler {name}", place_of_function(fn)),
                why=f"it may take {timeout}, and a process that stops waits {grace} (shutdown_timeout), so a"
                " release cuts it off and it is done again",
                fix=f"Server(shutdown_timeout={timeout.total_seconds():g}), and as much grace of the"
                " orchestrator",
                about=(name,),
            )


def _is_own_handler(handler: MessageHandler) -> bool:
    """Whether the application said how long it may take; the framework's own hand back what they have."""
    return handler.timeout != TIMEOUT and not handler.kind.startswith("maniflex.")


async def endless_retention(database: OpenDatabase) -> AsyncIterator[Problem]:
    config, subject = database.subject.config, database.subject
    endless = [
        (name, model, what)
        for name, model, what, is_used in (
            ("work_retention", WorkflowRun, "runs", subject.work.is_used),
            ("outbox_retention", OutboxMessage, "messages", subject.outbox.is_used),
        )
        if is_used and not getattr(config, name) and database.is_default
    ]
    for name, model, what in endless:
        if await tables_over(database.run, [subject.stores[model].sql], MANY_FINISHED):
            yield Problem(
                where=f"{name}=0",
                why=f"finished {what} are kept for good, and there are more than {MANY_FINISHED:,} of them:"
                " backups and the disk grow without end",
                fix=f"Server({name}=timedelta(days=30))",
                about=(name,),
            )


def open_webhook_secrets(subject: Subject) -> Iterator[Problem]:
    store = subject.stores.get(WebhookEndpoint)
    if store is None or store.meta.options.headless or subject.runtime.keys.is_declared:
        return
    yield Problem(
        where="webhook_endpoint.secret",
        why="the secrets and headers of webhook endpoints are kept as they are: whoever reads a backup can"
        " sign in the name of this application",
        fix='server.set_key_provider(EnvKeyProvider()), with a key "default"',
        about=("webhook_endpoint",),
    )


CHECKS = (
    DeclarationCheck("T166", Severity.WARNING, "a lease of less than five seconds", short_leases),
    DeclarationCheck(
        "T167", Severity.WARNING, "a handler that may take longer than `shutdown_timeout`", long_handlers
    ),
    DeclarationCheck(
        "T177", Severity.WARNING, "secrets of webhook endpoints without a key provider", open_webhook_secrets
    ),
)
DATABASE_CHECKS = (
    DatabaseCheck(
        "T161", Severity.ERROR, "runs or messages that wait and that no living process takes", untaken_work
    ),
    DatabaseCheck("T162", Severity.ERROR, "schedules that an error made inactive", broken_schedules),
    DatabaseCheck(
        "T163", Severity.ERROR, "schedules that are late, because nobody fires them", late_schedules
    ),
    DatabaseCheck("T164", Severity.WARNING, "messages that were given up", dead_letters),
    DatabaseCheck("T165", Severity.WARNING, "runs or messages due for more than a minute", late_work),
    DatabaseCheck(
        "T168",
        Severity.WARNING,
        "retention off with more than a million finished runs or messages",
        endless_retention,
    ),
    DatabaseCheck(
        "T169", Severity.WARNING, "a group of events that no process has served for a day", unserved_groups
    ),
    DatabaseCheck("T170", Severity.WARNING, "a bridge to a broker that stands still", standing_bridges),
)
