"""`server.schedules`: what happens again and again, declared in code or made while the server runs.

>>> server.schedules.add("nightly", cron="0 2 * * *", timezone="Europe/Berlin", run="report.daily.v1")
>>> await server.schedules.create("hourly", cron="@hourly", url="https://example.com/ping")
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from maniflex._caller import caller
from maniflex._names import did_you_mean
from maniflex._service import Service
from maniflex.background.declaring import role_problems, switch_problems
from maniflex.background.metrics import Labels
from maniflex.background.parts import Parts
from maniflex.background.runs.client import Work
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.runs.run import Run
from maniflex.background.runs.store import schema
from maniflex.background.schedules.definition import (
    SAID,
    Fits,
    Known,
    check,
    check_firing,
    check_target,
    created,
    revised,
)
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.background.schedules.plan import Firing
from maniflex.background.schedules.scheduler import Pruner, Scheduler
from maniflex.background.schedules.store import Due, ScheduleStore
from maniflex.background.schedules.targets import CallAction, register, submit
from maniflex.config import Config
from maniflex.db.current import current_tx, executor, transaction
from maniflex.db.records import Records
from maniflex.errors import ConstraintViolation, DeclarationError, Fatal, InvalidSchedule, NotFound
from maniflex.model.base import Model
from maniflex.model.unreadable import is_unreadable
from maniflex.sql.statement import Dialect, Sql

LIST_LIMIT = 100
MOST_LISTED = 1000


class Schedules:
    """The schedules of one server."""

    def __init__(self, work: Work, config: Config) -> None:
        self.work = work
        self._config = config
        self._declared: dict[str, dict[str, Any]] = {}
        self._problems: builtins.list[str] = []
        self._used = False
        self._role: str | None = None
        self.routes = True
        self._call: CallAction | None = None
        self._actions: Mapping[str, Fits] | None = None
        self._open_actions: frozenset[str] = frozenset()
        self._attached: tuple[Parts, ScheduleStore] | None = None
        self._schedulers: builtins.list[Scheduler] = []

    # -- declaring

    def enable(self, *, admin_role: str | None = None, routes: bool = True) -> None:
        """Have schedules even where the code declares none; say who manages them over REST, if anybody."""
        self._open()
        said = [*(() if admin_role is None else role_problems(admin_role)), *switch_problems(routes=routes)]
        self._problems += [f"schedules.enable: {problem}" for problem in said]
        self._role, self.routes = admin_role, routes
        self._use()

    def _use(self) -> None:
        if not self._used:
            self._used = True
            register(self.work, self._config, lambda: self._call, self._allowed)

    @property
    def admin_role(self) -> str:
        """The role of those who manage schedules; that of durable runs unless told."""
        return self._role or self.work.access.admin_role

    def add(
        self,
        name: str,
        *,
        cron: str,
        timezone: str = "UTC",
        run: str | None = None,
        action: str | None = None,
        url: str | None = None,
        payload: Any = None,
        policy: str = "once",
        active: bool = True,
        attempts: int | None = None,
        allow_private: bool = False,
    ) -> None:
        """Declare a schedule, stored when the server starts; `active` counts only when it is new.

        Its target is one of `run` (a type), `action` (a name) and `url`. `policy` is about due times
        nobody was there for: `once` fires the latest, `all` each of them, `skip` none.
        """
        self._open()
        self._use()
        if name in self._declared:
            self._problems.append(f"schedule {name!r}: there is one of this name already")
            return
        status = "active" if active else "inactive"
        options = {"payload": payload, "policy": policy, "attempts": attempts, "allow_private": allow_private}
        try:
            target = _target(run, action, url)
        except InvalidSchedule as error:
            self._problems.append(f"schedule {name!r}: {error}")
            return
        said = {"name": name, "cron": cron, "timezone": timezone, **target, **options, "status": status}
        self._declared[name] = said

    def know_actions(self, actions: Mapping[str, Fits], open_to_clients: frozenset[str]) -> None:
        """The actions there are; a schedule of any other is refused from here on."""
        self._actions = dict(actions)
        self._open_actions = open_to_clients

    def check_client_target(self, kind: str, target: str) -> None:
        """Refuse a target that is not a client's to name: what code keeps to itself, code schedules."""
        handler = self.work.handlers.get(target) if kind == "run" else None
        if handler is not None and handler.internal:
            raise InvalidSchedule("target", f"{target!r} is submitted by the server alone")
        # Without its auth step an action has no guard but the decision to let schedules call it.
        if kind == "action" and target in (self._actions or ()) and target not in self._open_actions:
            raise InvalidSchedule("target", f"the action {target!r} is not declared schedulable")

    def call_actions(self, call: CallAction) -> None:
        """Who calls them; without it the runs of such schedules fail."""
        self._call = call

    def _open(self) -> None:
        if self._attached is not None:
            raise DeclarationError(
                "the server is sealed; declare schedules before it starts, or `await create(...)`"
            )

    # -- being wired

    @property
    def used(self) -> bool:
        return self._used

    def models(self) -> Sequence[type[Model]]:
        return (Schedule, ScheduleFiring) if self._used else ()

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        return schema("schedules", dialect) if self._used else ()

    def problems(self) -> builtins.list[str]:
        found = list(self._problems)
        known = Known(self.work.handlers, self._actions)
        for name, said in self._declared.items():
            try:
                check(said, known)
                check_firing(said, known)
            except InvalidSchedule as error:
                found.append(f"schedule {name!r}: {error}")
        return found

    def attach(self, parts: Parts) -> None:
        self._attached = (parts, ScheduleStore(parts.adapter))
        self._schedulers.clear()
        if self._used:
            parts.metrics.gauge("schedules_due", self._due_count)
            parts.metrics.gauge("schedules_oldest_due_seconds", self._oldest)

    def services(self) -> Sequence[Service]:
        if not self._used:
            return ()
        return (self.scheduler(), Pruner(*self._ready()))

    def scheduler(
        self, *, grace: timedelta | None = None, batch: int | None = None, catch_up: int | None = None
    ) -> Scheduler:
        """A scheduler; there may be any number of them. `grace` is how late `skip` may still fire."""
        parts, store = self._ready()
        given = {"batch": batch, "catch_up": catch_up}
        sizes = {name: size for name, size in given.items() if size is not None}
        made = Scheduler(parts, store, grace=grace, prepare=self.declare, **sizes)
        self._schedulers.append(made)
        return made

    async def declare(self) -> None:
        """Bring the stored schedules up to the declared ones; a scheduler does it when it starts."""
        if not self._declared:
            return
        self._warn_of_strangers()
        known = {s.name: s for s in await self._records().list([("name", "in", [*self._declared])])}
        for name, said in self._declared.items():
            if name in known:
                await self._adopt(known[name], said)
            elif not await self._stored(said):
                await self._adopt(await self.get(name), said)

    def _warn_of_strangers(self) -> None:
        """Another process may handle them, so it is no mistake for certain."""
        types = [handler.type for handler in self.work.handlers if not handler.internal]
        for name, said in self._declared.items():
            if said["kind"] == "run" and self.work.handlers.get(said["target"]) is None:
                self._ready()[0].logger.warning(
                    "schedule %r: no handler of this process takes runs of type %r%s",
                    name,
                    said["target"],
                    did_you_mean(said["target"], types),
                )

    async def _stored(self, said: Mapping[str, Any]) -> bool:
        try:
            await self._create(said)
        except ConstraintViolation:  # another process was faster
            return False
        return True

    async def _adopt(self, found: Schedule, said: Mapping[str, Any]) -> None:
        """Code decides what a schedule does; whether it is active is left to whoever runs the server."""
        changes = {key: said[key] for key in SAID if said[key] != getattr(found, key)}
        if found.last_error is not None:  # it was switched off for a mistake, and the code has none
            changes["status"] = "active"
        if changes:
            await self.update(found.id, **changes)

    # -- while the server runs

    async def create(
        self,
        name: str,
        *,
        cron: str,
        timezone: str = "UTC",
        run: str | None = None,
        action: str | None = None,
        url: str | None = None,
        payload: Any = None,
        policy: str = "once",
        active: bool = True,
        attempts: int | None = None,
        allow_private: bool = False,
    ) -> Schedule:
        """Store a schedule; options are those of `add`. `Conflict` when there is one of this name."""
        status = "active" if active else "inactive"
        options = {"payload": payload, "policy": policy, "attempts": attempts, "allow_private": allow_private}
        said = {"name": name, "cron": cron, "timezone": timezone, **_target(run, action, url), **options}
        return await self._create({**said, "status": status})

    async def _create(self, said: Mapping[str, Any]) -> Schedule:
        who = caller().actor_id
        made = await self._records().create(**self.new(said), created_by=who, updated_by=who)
        self.wake()
        return made

    def new(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a new schedule, or `InvalidSchedule`."""
        return created(said, self.now(), self._known())

    def changed(self, before: Schedule, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The fields a change writes, or `InvalidSchedule`."""
        return revised(before, changes, self.now(), self._known())

    def _known(self) -> Known:
        models = {cls: store.meta for cls, store in self._ready()[0].stores.items()}
        return Known(self.work.handlers, self._actions, models)

    async def get(self, id_or_name: str) -> Schedule:
        """The schedule of that id or name; `NotFound` when there is none."""
        found = await self._records().list([("id", "eq", id_or_name)], limit=1)
        found = found or await self._records().list([("name", "eq", id_or_name)], limit=1)
        if not found:
            raise NotFound("schedule not found")
        return found[0]

    async def list(
        self, *, status: str | None = None, kind: str | None = None, limit: int = LIST_LIMIT, page: int = 1
    ) -> builtins.list[Schedule]:
        """Schedules by name."""
        equal = {"status": status, "kind": kind}
        filters = [(name, "eq", value) for name, value in equal.items() if value is not None]
        return await self._records().list(filters, sorts="name", limit=_bounded(limit), page=page)

    async def due(self, limit: int = LIST_LIMIT) -> builtins.list[Schedule]:
        """Active schedules whose time has come, the longest due first."""
        filters = [("status", "eq", "active"), ("next_run_at", "lte", self.now())]
        return await self._records().list(filters, sorts=["next_run_at", "id"], limit=_bounded(limit))

    async def firings(self, id_or_name: str, limit: int = LIST_LIMIT) -> builtins.list[ScheduleFiring]:
        """What came of a schedule, the latest first."""
        filters = [("schedule_id", "eq", (await self.get(id_or_name)).id)]
        records = Records[ScheduleFiring](self._ready()[0].stores[ScheduleFiring])
        return await records.list(filters, sorts=["due_at:desc", "id:desc"], limit=_bounded(limit))

    async def firing_of(self, run_id: str) -> ScheduleFiring | None:
        """The firing a run came from, which knows the due time; None when it came from none."""
        records = Records[ScheduleFiring](self._ready()[0].stores[ScheduleFiring])
        found = await records.list([("run_id", "eq", run_id)], limit=1)
        return found[0] if found else None

    async def update(self, id_or_name: str, **changes: Any) -> Schedule:
        """Change a schedule; it is due anew only when its cron, its zone or its status changes."""
        given = _renamed(changes)
        found = await self.get(id_or_name)
        parts, _ = self._ready()
        async with transaction(parts.adapter) as tx:
            # Under the lock a scheduler takes, so that neither overwrites what the other decided.
            rows = parts.stores[Schedule]
            before = rows.record(await rows.lock(found.id, tx=tx))
            assert isinstance(before, Schedule)
            written = self.changed(before, given)
            if not written:
                return before
            by = {"updated_by": caller().actor_id}
            made = await Records[Schedule](rows, tx).update(found.id, written | by)
        self.wake()
        return made

    async def activate(self, id_or_name: str) -> Schedule:
        """Let it be due again from now on; what it missed meanwhile is not made up for."""
        return await self.update(id_or_name, status="active")

    async def deactivate(self, id_or_name: str) -> Schedule:
        """Let it rest; it keeps its name and its history."""
        return await self.update(id_or_name, status="inactive")

    async def delete(self, *ids_or_names: str) -> int:
        """Remove schedules, all or none; their firings stay until they are old. How many there were."""
        parts, store = self._ready()
        async with transaction(parts.adapter):
            ids = [(await self.get(one)).id for one in ids_or_names]
            return len(await store.remove(executor(parts.adapter), ids))

    async def delete_many(self, ids: Sequence[str]) -> int:
        """Remove those of the schedules that are there; how many that were."""
        parts, store = self._ready()
        return len(await store.remove(executor(parts.adapter), list(dict.fromkeys(ids))))

    async def run_now(self, id_or_name: str) -> WorkflowRun:
        """Fire it once outside its times, also when it is inactive; its next due time stays."""
        parts, store = self._ready()
        found = await self.get(id_or_name)
        check_target(found.kind, found.target)  # a row of an older version may say anything
        if is_unreadable(found.payload):
            raise InvalidSchedule("payload", "what is stored cannot be read; give it another one")
        now = parts.clock.now()
        due = Due(*(getattr(found, name) for name in Due.__slots__))
        async with transaction(parts.adapter) as tx:
            [fired] = await store.fire(tx, [(due, Firing(now))], now, manual=True)
            [(_, run_id)] = pairs = await submit(self.work, [fired], tx)
            await store.ran(tx, pairs)
            await store.touch(tx, found.id, now)
            return await Records[WorkflowRun](parts.stores[WorkflowRun], tx).read(run_id)

    # -- small things

    def now(self) -> datetime:
        """The time by which schedules are due."""
        return self._ready()[0].clock.now()

    async def _allowed(self, run: Run) -> bool:
        """By what is stored, because whoever submits a run writes its payload."""
        parts, _ = self._ready()
        async with transaction(parts.adapter) as tx:  # a replica may not know the firing yet
            fired = await Records[ScheduleFiring](parts.stores[ScheduleFiring], tx).list(
                [("run_id", "eq", run.id)], limit=1
            )
            if not fired:
                raise Fatal("no schedule was fired as this run")
            rows = Records[Schedule](parts.stores[Schedule], tx)
            found = await rows.list([("id", "eq", fired[0].schedule_id)], limit=1)
        return any(one.allow_private and one.target == run.payload["target"] for one in found)

    def wake(self) -> None:
        """A due time may have come nearer: this process's schedulers look when it is committed."""
        tx = current_tx(self._ready()[0].adapter)
        for scheduler in self._schedulers:
            if tx is None:
                scheduler.wake()
            else:
                tx.after_commit(scheduler.wake)

    def _records(self) -> Records[Schedule]:
        return Records(self._ready()[0].stores[Schedule])

    def _ready(self) -> tuple[Parts, ScheduleStore]:
        if self._attached is None:
            raise DeclarationError("schedules begin when the server is sealed")
        if not self._used:
            raise DeclarationError(
                "schedules are not in use: declare one or call server.schedules.enable() before the start"
            )
        return self._attached

    async def _due_count(self) -> builtins.list[tuple[Labels, float]]:
        parts, store = self._ready()
        return [((), float((await store.overdue(parts.clock.now()))[0]))]

    async def _oldest(self) -> builtins.list[tuple[Labels, float]]:
        parts, store = self._ready()
        now = parts.clock.now()
        _, since = await store.overdue(now)
        return [((), 0.0 if since is None else (now - since).total_seconds())]


def _target(run: str | None, action: str | None, url: str | None) -> dict[str, Any]:
    given = [(k, v) for k, v in (("run", run), ("action", action), ("url", url)) if v is not None]
    if len(given) != 1:
        raise InvalidSchedule("target", "a schedule has one target: run=, action= or url=")
    return {"kind": given[0][0], "target": given[0][1]}


def _renamed(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes by the names of columns, where they came by the names `add` takes."""
    targets = {name: changes[name] for name in ("run", "action", "url") if name in changes}
    rest = {name: value for name, value in changes.items() if name not in (*targets, "active")}
    if targets:
        rest.update(_target(*(targets.get(name) for name in ("run", "action", "url"))))
    if "active" in changes:
        rest["status"] = "active" if changes["active"] else "inactive"
    return rest


def _bounded(limit: Any) -> int:
    if type(limit) is not int or not 1 <= limit <= MOST_LISTED:
        raise InvalidSchedule("limit", f"it is a whole number from 1 to {MOST_LISTED}")
    return limit
