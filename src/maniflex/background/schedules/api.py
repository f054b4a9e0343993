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
from maniflex._json import is_unreadable
from maniflex._service import Service
from maniflex.background.declaring import role_problems, switch_problems
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.metrics import Labels
from maniflex.background.parameters import PACKAGE
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import WorkflowRun
from maniflex.background.runs.run import Run
from maniflex.background.schedules.definition import (
    DeclaredSchedules,
    Fits,
    KnownTargets,
    ScopeNeeds,
    check_target,
    fields_of_change,
    fields_of_new,
    of_tenant,
)
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.background.schedules.scheduler import Scheduler
from maniflex.background.schedules.store import Due, Firing, FiringPruner, ScheduleStore
from maniflex.background.schedules.targets import CallAction, register, submit
from maniflex.config import Config
from maniflex.db.current import current_tx, executor, transaction
from maniflex.db.records import Records
from maniflex.errors import Fatal, InvalidSchedule, NotFound
from maniflex.model.base import Model
from maniflex.sql.statement import Dialect, Sql, schema_statements

LIST_LIMIT = 100
MOST_LISTED = 1000


class Schedules(DeclaredPart):
    """The schedules of one server."""

    too_late = "the server is sealed; declare schedules before it starts, or `await create(...)`"
    too_early = "schedules begin when the server is sealed"
    not_used = "schedules are not in use: declare one or call server.schedules.enable() before the start"
    store: ScheduleStore  # from the moment the server is sealed

    def __init__(self, work: Work, config: Config) -> None:
        super().__init__()
        self.work = work
        self._config = config
        self._declared = DeclaredSchedules(work.handlers)
        self._problems: builtins.list[str] = []
        self._role: str | None = None
        self.routes = True
        self._call: CallAction | None = None
        self._actions: Mapping[str, Fits] | None = None
        self._open_actions: frozenset[str] = frozenset()
        self._scope_needs = ScopeNeeds()
        self._schedulers: builtins.list[Scheduler] = []

    # -- declaring

    def enable(self, *, admin_role: str | None = None, routes: bool = True) -> None:
        """Have schedules even where the code declares none; with `routes`, `admin_role` manages them."""
        self.require_open()
        option_problems = [
            *(() if admin_role is None else role_problems(admin_role)),
            *switch_problems(routes=routes),
        ]
        self._problems += [f"schedules.enable: {problem}" for problem in option_problems]
        self._role, self.routes = admin_role, routes
        self._use()

    def _use(self) -> None:
        if not self._enabled:
            self._enabled = True
            register(self.work, self._config, lambda: self._call, self._may_reach_private)

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
        tenant_id: str | None = None,
        actor_id: str | None = None,
    ) -> None:
        """Declare a schedule, stored when the server starts; `active` counts only when it is new.

        Its target is one of `run` (a type), `action` (a name) and `url`. `policy` is about due times
        that no scheduler was there for: `once` fires the latest, `all` each of them, `skip` none.
        Its runs are of `tenant_id` and act in the name of `actor_id`; its name is unique within the tenant.
        """
        self.require_open()
        self._use()
        status = "active" if active else "inactive"
        options = {"payload": payload, "policy": policy, "attempts": attempts, "allow_private": allow_private}
        owner = {"tenant_id": tenant_id or None, "actor_id": actor_id or None}
        try:
            target = _target(run, action, url)
        except InvalidSchedule as error:
            self._problems.append(f"schedule {name!r}: {error}")
            return
        definition = {"name": name, "cron": cron, "timezone": timezone, **target, **options, **owner}
        self._declared.add({**definition, "status": status})

    def know_actions(self, actions: Mapping[str, Fits], open_to_clients: frozenset[str]) -> None:
        """Set the actions there are; a schedule of any other is refused from here on."""
        self._actions = dict(actions)
        self._open_actions = open_to_clients

    def know_scopes(self, needs: ScopeNeeds) -> None:
        """Set what scope rules must know of the caller of a run, to refuse schedules that do not say it."""
        self._scope_needs = needs

    def check_client_target(self, kind: str, target: str) -> None:
        """Refuse a target that is not a client's to name: what code keeps to itself, code schedules."""
        handler = self.work.handlers.get(target) if kind == "run" else None
        if handler is not None and handler.internal:
            raise InvalidSchedule("target", f"{target!r} is submitted by the server alone")
        # Without its auth step an action has no guard but the decision to let schedules call it.
        if kind == "action" and target in (self._actions or ()) and target not in self._open_actions:
            raise InvalidSchedule("target", f"the action {target!r} is not declared schedulable")

    def call_actions(self, call: CallAction) -> None:
        """Set the function that calls actions; without it the runs of such schedules fail."""
        self._call = call

    # -- being wired

    def models(self) -> Sequence[type[Model]]:
        return (Schedule, ScheduleFiring) if self.is_used else ()

    def schema(self, dialect: Dialect) -> Sequence[Sql]:
        return schema_statements(PACKAGE, "schedules", dialect) if self.is_used else ()

    def problems(self) -> builtins.list[str]:
        targets = KnownTargets(self.work.handlers, self._actions, scopes=self._scope_needs)
        return [*self._problems, *self._declared.problems(targets)]

    def attach(self, environment: Environment) -> None:
        super().attach(environment)
        self.store = ScheduleStore(environment.adapter)
        self._schedulers.clear()
        if self.is_used:
            environment.metrics.gauge("schedules_due", self._due_count)
            environment.metrics.gauge("schedules_oldest_due_seconds", self._oldest)

    def services(self) -> Sequence[Service]:
        if not self.is_used:
            return ()
        return (self.scheduler(), FiringPruner(self.require_sealed(), self.store))

    def scheduler(
        self, *, grace: timedelta | None = None, batch: int | None = None, catch_up: int | None = None
    ) -> Scheduler:
        """A scheduler; there may be any number of them. `grace` is how late `skip` may still fire."""
        environment = self.require_sealed()
        options = {"batch": batch, "catch_up": catch_up}
        sizes = {name: size for name, size in options.items() if size is not None}
        scheduler = Scheduler(environment, self.store, grace=grace, prepare=self.declare, **sizes)
        self._schedulers.append(scheduler)
        return scheduler

    async def declare(self) -> None:
        """Bring the stored schedules up to the declared ones; a scheduler does it when it starts."""
        logger = self.require_sealed().logger
        await self._declared.store(self._records(), insert=self._insert, update=self.update, logger=logger)

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
        tenant_id: str | None = None,
        actor_id: str | None = None,
    ) -> Schedule:
        """Store a schedule; options are those of `add`. `Conflict` when its tenant has one of this name.

        Inside a request it is its caller's and of the caller's tenant, unless `tenant_id` or `actor_id`
        say otherwise.
        """
        status = "active" if active else "inactive"
        options = {"payload": payload, "policy": policy, "attempts": attempts, "allow_private": allow_private}
        definition = {"name": name, "cron": cron, "timezone": timezone, **_target(run, action, url)}
        if tenant_id is None and actor_id is None:
            actor_id, tenant_id = caller()[:2]
        owner = {"tenant_id": tenant_id or None, "actor_id": actor_id or None}
        return await self._insert({**definition, **options, **owner, "status": status})

    async def _insert(self, definition: Mapping[str, Any]) -> Schedule:
        who = caller().actor_id
        schedule = await self._records().create(**self.new(definition), created_by=who, updated_by=who)
        self.wake()
        return schedule

    def new(self, definition: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a new schedule, or `InvalidSchedule`."""
        return fields_of_new(definition, self.now(), self._known_targets())

    def changed_fields(self, before: Schedule, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The fields a change writes, or `InvalidSchedule`."""
        return fields_of_change(before, changes, self.now(), self._known_targets())

    def _known_targets(self) -> KnownTargets:
        models = {cls: store.meta for cls, store in self.require_sealed().stores.items()}
        return KnownTargets(self.work.handlers, self._actions, models, self._scope_needs)

    async def get(self, id_or_name: str, *, tenant_id: str | None = None) -> Schedule:
        """The schedule of that id or name; `NotFound` when there is none.

        With `tenant_id` it is one of that tenant; an empty text means those without a tenant. Otherwise any
        schedule is found by its id, and by its name one of the caller's tenant, else one without a tenant.
        """
        by_id: builtins.list[Any] = [("id", "eq", id_or_name)]
        by_name: builtins.list[Any] = [("name", "eq", id_or_name)]
        if tenant_id is not None:
            searches = [[*by_id, of_tenant(tenant_id)], [*by_name, of_tenant(tenant_id)]]
        else:
            tenants = dict.fromkeys((caller().tenant_id or None, None))
            searches = [by_id, *([*by_name, of_tenant(tenant)] for tenant in tenants)]
        for filters in searches:
            if schedules := await self._records().list(filters, limit=1):
                return schedules[0]
        raise NotFound("schedule not found")

    async def list(
        self,
        *,
        status: str | None = None,
        kind: str | None = None,
        tenant_id: str | None = None,
        limit: int = LIST_LIMIT,
        page: int = 1,
    ) -> builtins.list[Schedule]:
        """Schedules by name: of all tenants, of one, or with an empty `tenant_id` those without a tenant."""
        equal = {"status": status, "kind": kind}
        filters: builtins.list[Any] = [(name, "eq", text) for name, text in equal.items() if text is not None]
        if tenant_id is not None:
            filters.append(of_tenant(tenant_id))
        return await self._records().list(filters, sorts=["name", "id"], limit=_check_limit(limit), page=page)

    async def due(self, limit: int = LIST_LIMIT) -> builtins.list[Schedule]:
        """Active schedules whose time has come, the longest due first."""
        filters = [("status", "eq", "active"), ("next_run_at", "lte", self.now())]
        return await self._records().list(filters, sorts=["next_run_at", "id"], limit=_check_limit(limit))

    async def firings(
        self, id_or_name: str, limit: int = LIST_LIMIT, *, tenant_id: str | None = None
    ) -> builtins.list[ScheduleFiring]:
        """The firings of a schedule, the latest first."""
        filters = [("schedule_id", "eq", (await self.get(id_or_name, tenant_id=tenant_id)).id)]
        records = Records[ScheduleFiring](self.require_sealed().stores[ScheduleFiring])
        return await records.list(filters, sorts=["due_at:desc", "id:desc"], limit=_check_limit(limit))

    async def firing_of(self, run_id: str) -> ScheduleFiring | None:
        """The firing a run came from, which knows the due time; None when it came from none."""
        records = Records[ScheduleFiring](self.require_sealed().stores[ScheduleFiring])
        firings = await records.list([("run_id", "eq", run_id)], limit=1)
        return firings[0] if firings else None

    async def update(self, id_or_name: str, *, tenant_id: str | None = None, **changes: Any) -> Schedule:
        """Change a schedule; it is due anew only when its cron, its zone or its status changes.

        `tenant_id` says which one is meant, as for `get`; a schedule stays with its tenant.
        """
        column_changes = _column_changes(changes)
        schedule = await self.get(id_or_name, tenant_id=tenant_id)
        environment = self.require_sealed()
        async with transaction(environment.adapter) as tx:
            # Under the lock a scheduler takes, so that neither overwrites what the other decided.
            rows = environment.stores[Schedule]
            before = rows.record(await rows.lock(schedule.id, tx=tx))
            assert isinstance(before, Schedule)
            new_values = self.changed_fields(before, column_changes)
            if not new_values:
                return before
            by = {"updated_by": caller().actor_id}
            after = await Records[Schedule](rows, tx).update(schedule.id, new_values | by)
        self.wake()
        return after

    async def activate(self, id_or_name: str, *, tenant_id: str | None = None) -> Schedule:
        """Let it be due again from now on; what it missed meanwhile is not made up for."""
        return await self.update(id_or_name, tenant_id=tenant_id, status="active")

    async def deactivate(self, id_or_name: str, *, tenant_id: str | None = None) -> Schedule:
        """Let it rest; it keeps its name and its history."""
        return await self.update(id_or_name, tenant_id=tenant_id, status="inactive")

    async def delete(self, *ids_or_names: str, tenant_id: str | None = None) -> int:
        """Remove schedules, all or none; their firings stay until they are old. How many there were."""
        environment = self.require_sealed()
        async with transaction(environment.adapter):
            ids = [(await self.get(one, tenant_id=tenant_id)).id for one in ids_or_names]
            return len(await self.store.remove(executor(environment.adapter), ids))

    async def delete_many(self, ids: Sequence[str]) -> int:
        """Remove those of the schedules that are there; how many that were."""
        environment = self.require_sealed()
        return len(await self.store.remove(executor(environment.adapter), list(dict.fromkeys(ids))))

    async def run_now(self, id_or_name: str, *, tenant_id: str | None = None) -> WorkflowRun:
        """Fire it once outside its times, also when it is inactive; its next due time stays."""
        environment = self.require_sealed()
        schedule = await self.get(id_or_name, tenant_id=tenant_id)
        check_target(schedule.kind, schedule.target)  # a row of an older version may say anything
        if is_unreadable(schedule.payload):
            raise InvalidSchedule("payload", "what is stored cannot be read; give it another one")
        now = environment.clock.now()
        due = Due(*(getattr(schedule, name) for name in Due.__slots__))
        async with transaction(environment.adapter) as tx:
            [firing] = await self.store.fire(tx, [(due, Firing(now))], now, manual=True)
            [(_, run_id)] = pairs = await submit(environment.runs, [firing], tx)
            await self.store.link_runs(tx, pairs)
            await self.store.touch(tx, schedule.id, now)
            return await Records[WorkflowRun](environment.stores[WorkflowRun], tx).read(run_id)

    # -- small things

    def now(self) -> datetime:
        """The time by which schedules are due."""
        return self.require_sealed().clock.now()

    async def _may_reach_private(self, run: Run) -> bool:
        """Whether the stored schedule allows it; the payload of a run comes from its submitter."""
        environment = self.require_sealed()
        async with transaction(environment.adapter) as tx:  # a replica may not know the firing yet
            firings = await Records[ScheduleFiring](environment.stores[ScheduleFiring], tx).list(
                [("run_id", "eq", run.id)], limit=1
            )
            if not firings:
                raise Fatal("no schedule was fired as this run")
            rows = Records[Schedule](environment.stores[Schedule], tx)
            schedules = await rows.list([("id", "eq", firings[0].schedule_id)], limit=1)
        return any(
            schedule.allow_private and schedule.target == run.payload["target"] for schedule in schedules
        )

    def wake(self) -> None:
        """A due time may have come nearer: this process's schedulers look when it is committed."""
        tx = current_tx(self.require_sealed().adapter)
        for scheduler in self._schedulers:
            if tx is None:
                scheduler.wake()
            else:
                tx.after_commit(scheduler.wake)

    def _records(self) -> Records[Schedule]:
        return Records(self.require_sealed().stores[Schedule])

    async def _due_count(self) -> builtins.list[tuple[Labels, float]]:
        environment = self.require_sealed()
        return [((), float((await self.store.overdue(environment.clock.now()))[0]))]

    async def _oldest(self) -> builtins.list[tuple[Labels, float]]:
        environment = self.require_sealed()
        now = environment.clock.now()
        _, since = await self.store.overdue(now)
        return [((), 0.0 if since is None else (now - since).total_seconds())]


def _target(run: str | None, action: str | None, url: str | None) -> dict[str, Any]:
    targets = [(k, v) for k, v in (("run", run), ("action", action), ("url", url)) if v is not None]
    if len(targets) != 1:
        raise InvalidSchedule("target", "a schedule has one target: run=, action= or url=")
    return {"kind": targets[0][0], "target": targets[0][1]}


def _column_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes by the names of columns, where they came by the names `add` takes."""
    targets = {name: changes[name] for name in ("run", "action", "url") if name in changes}
    rest = {name: value for name, value in changes.items() if name not in (*targets, "active")}
    if targets:
        rest.update(_target(*(targets.get(name) for name in ("run", "action", "url"))))
    if "active" in changes:
        rest["status"] = "active" if changes["active"] else "inactive"
    return rest


def _check_limit(limit: Any) -> int:
    if type(limit) is not int or not 1 <= limit <= MOST_LISTED:
        raise InvalidSchedule("limit", f"it is a whole number from 1 to {MOST_LISTED}")
    return limit
