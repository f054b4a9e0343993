"""Schedules over REST: the routes of their model, checked, and a few of their own; for admins only.

An admin with a tenant manages the schedules of that tenant, and schedules what clients may submit; an
operator, who has none, manages all.

A server mounts `ScheduleRoutes`. Beside the usual routes at `/schedules` there are `activate`,
`deactivate`, `status` and `run` below a schedule, the list of due schedules, and deleting many at once; PUT
changes a schedule as PATCH does. Their firings are read at `/schedule_firing`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from maniflex._json import encode
from maniflex.background.commands import SCHEDULE, CallerReach, commands_of
from maniflex.background.declaring import switch_problems
from maniflex.background.runs.handlers import excesses
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.definition import CHANGEABLE, Fits, Models
from maniflex.background.schedules.model import Schedule, ScheduleFiring, Status
from maniflex.background_api.part_routes import (
    actor_of,
    add_options,
    bind_to_caller,
    command_endpoint,
    reach_of,
    require_identity,
    schedule_payload,
)
from maniflex.errors import Fatal, Forbidden, InvalidQuery, InvalidSchedule, RequestError, ValidationFailed
from maniflex.features.actions import Action
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.pipeline.answer import answer
from maniflex.pipeline.binding import bind
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.exchange import OPERATES
from maniflex.pipeline.in_process import in_process_context
from maniflex.pipeline.model_routes import private_endpoints
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response, status_of
from maniflex.pipeline.routes import Endpoint, RouteBuilder, RouteDocs
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.steps.db import Database
from maniflex.pipeline.steps.response import Respond
from maniflex.pipeline.steps.validate import Validate

_TARGET = ("kind", "target")
_SAYS_WHAT = {*_TARGET, "payload"}
_MODELS: frozenset[type[Model]] = frozenset({Schedule, ScheduleFiring})


class TenantsOwn:
    """Leaves an admin's tenant its schedules and their firings, and operators all; others are refused."""

    __name__ = "tenants_own"

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    async def __call__(self, ctx: Context, next: Next) -> None:
        if ctx.operation is not Operation.OPTIONS:  # which shows no schedule
            match reach_of(ctx, self._schedules.admin_role):
                case CallerReach.OWN:
                    raise Forbidden()
                case CallerReach.TENANT as reach:
                    bind_to_caller(ctx.query.force, require_identity(ctx), reach)
        await next()


class ScheduleRoutes:
    """The REST routes of schedules."""

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules
        self._guard = TenantsOwn(schedules)

    def options(self) -> Mapping[type[Model], ModelOptions]:
        keep: Mapping[str, Any] = {"auth": self._guard, "service": self._keep}
        headless = not self._schedules.routes
        return {
            Schedule: ModelOptions(middleware=keep, headless=headless),
            ScheduleFiring: ModelOptions(middleware={"auth": self._guard}, headless=headless),
        }

    def replace_routes(self, routes: RouteBuilder, usual: list[Endpoint]) -> list[Endpoint]:
        if not (self._schedules.is_used and self._schedules.routes and Schedule in routes.runtime.stores):
            return usual
        remaining = [_with_codes(e) for e in usual if not _is_replaced(e)]
        meta = routes.runtime.models[Schedule]
        puts = [
            replace(e, method="PUT", about=PUT) for e in remaining if e.model is meta and e.method == "PATCH"
        ]
        own = _ScheduleEndpoints(self._schedules, routes).endpoints()
        return add_options(routes, [*remaining, *puts, *own], _MODELS)

    def private_endpoints(self, routes: RouteBuilder) -> dict[str, Endpoint]:
        """What operators do in the panel, on no path."""
        usual = {e.method: e for e in private_endpoints(routes, routes.runtime.models[Schedule])}
        commands = _ScheduleEndpoints(self._schedules, routes).commands()
        writes = {"create": "POST", "update": "PATCH", "delete": "DELETE"}
        return commands | {f"schedule.{name}": usual[method] for name, method in writes.items()}

    async def _keep(self, ctx: Context, next: Next) -> None:
        """Check what a schedule says, and stamp when it is due."""
        if "fires" in ctx.state:
            await next()
            return
        if ctx.operation is Operation.CREATE:
            actor = actor_of(ctx)
            values = {name: getattr(ctx.record, name) for name in (*CHANGEABLE, "tenant_id")}
            self._check_target(ctx, values)
            self._check_attempts(ctx, ctx.record, values)
            values["payload"] = self._payload(values)
            ctx.set_field("payload", values["payload"])
            next_run_at = self._schedules.new({**values, "actor_id": actor})["next_run_at"]
            ctx.set_field("next_run_at", next_run_at)
            for name in ("actor_id", "created_by", "updated_by"):
                ctx.set_field(name, actor)
            await next()
        elif ctx.operation is Operation.UPDATE:
            async with ctx.transaction():
                before = await ctx.lock_for_update(Schedule, ctx.resource_id)
                client_changes = {name: v for name, v in (ctx.changes or {}).items() if name in CHANGEABLE}
                if _SAYS_WHAT & client_changes.keys():
                    values = {name: client_changes.get(name, getattr(before, name)) for name in _SAYS_WHAT}
                    self._check_target(ctx, values)
                    if "payload" in client_changes or _is_elsewhere(before, client_changes):
                        client_changes["payload"] = self._payload(values)
                        ctx.set_field("payload", client_changes["payload"])
                self._check_attempts(ctx, before, client_changes)
                _keep_private_payload(before, client_changes)
                changes = {**client_changes, **_network_change(before, client_changes)}
                if any(
                    changes.get(name, getattr(before, name)) != getattr(before, name) for name in _SAYS_WHAT
                ):
                    # Who says what it does answers for it: nobody lets another person's schedule act.
                    changes["actor_id"] = actor_of(ctx)
                for name, value in self._schedules.changed_fields(before, changes).items():
                    if name not in client_changes:
                        ctx.set_field(name, value)
                ctx.set_field("updated_by", actor_of(ctx))
                await next()
        else:
            await next()
            return
        ctx.after_commit(self._schedules.wake)

    def _check_target(self, ctx: Context, values: Mapping[str, Any]) -> None:
        """Refuse a target that this caller may not name; one with a tenant names what it could submit."""
        schedules, kind, target = self._schedules, values["kind"], values["target"]
        schedules.check_client_target(kind, target)
        if kind != "run" or reach_of(ctx, schedules.admin_role) is CallerReach.ALL:
            return
        work = schedules.work
        # In the panel a role is asked for beside the tenant, and it submits there what is not hidden.
        is_hidden = target in work.handlers.hidden_types()
        if is_hidden or not (ctx.scope.get(OPERATES) or work.access.is_public(target, work.handlers)):
            raise InvalidSchedule("target", "there is no such type of run")

    def _check_attempts(self, ctx: Context, schedule: Any, changes: Mapping[str, Any]) -> None:
        """Refuse a caller with a tenant more attempts than the handler has, as when a run is submitted."""
        kind, target, attempts = (changes.get(n, getattr(schedule, n)) for n in (*_TARGET, "attempts"))
        if kind != "run" or not {*_TARGET, "attempts"} & changes.keys():
            return
        if reach_of(ctx, self._schedules.admin_role) is not CallerReach.ALL:
            options: Any = {"priority": 0, "max_attempts": attempts, "timeout": None}
            for _, why in excesses(self._schedules.work.handlers, target, **options):
                raise InvalidSchedule("attempts", why)

    def _payload(self, values: Mapping[str, Any]) -> Any:
        """The payload as a client may say it."""
        handler = self._schedules.work.handlers.get(values["target"]) if values["kind"] == "run" else None
        try:
            return schedule_payload(values["payload"], handler)
        except ValidationFailed as failed:
            details: Any = failed.details
            raise InvalidSchedule(details[0]["field"], details[0]["message"]) from None


class _ScheduleEndpoints:
    """What there is beside the usual routes, behind the same rules as they."""

    def __init__(self, schedules: Schedules, routes: RouteBuilder) -> None:
        self._schedules = schedules
        self._routes = routes
        self._store = store = routes.runtime.stores[Schedule]
        self._meta = store.meta
        serializer = routes.runtime.serializers[Schedule]
        self._db = Database(store, serializer, routes.runtime)
        self._validate = Validate(store)
        self._respond = Respond(serializer, routes.computed.get(Schedule, ()), etags=False)

    def endpoints(self) -> Iterator[Endpoint]:
        yield from self._listing()
        yield from self.commands().values()
        yield self._status_endpoint()
        yield from self._deleting()

    def commands(self) -> dict[str, Endpoint]:
        """The commands by their keys; making active or inactive is an update like any other."""
        answer = self._respond.answer_record
        steps: dict[str, tuple[dict[str, Default], Default]] = {
            "run": ({"deserialize": _firing, "db": self._run}, _answer_started),
            "pause": (self._update_steps(_set_status("inactive")), answer),
            "resume": (self._update_steps(_set_status("active")), answer),
        }
        return {
            one.key: command_endpoint(self._routes, one, Schedule, *steps[one.name])
            for one in commands_of(SCHEDULE)
            if one.route is not None
        }

    def _update_steps(self, read: Default) -> dict[str, Default]:
        return {"deserialize": read, "validate": self._validate.update, "db": self._db.update}

    def _listing(self) -> Iterator[Endpoint]:
        for method, operation, about in (
            ("GET", Operation.LIST, DUE),
            ("HEAD", Operation.HEAD, DUE_HEAD),
        ):
            yield self._endpoint(
                method,
                "/due",
                operation,
                defaults={"deserialize": self._select_due, "db": self._db.list},
                respond=self._respond.answer_list,
                about=about,
            )

    def _status_endpoint(self) -> Endpoint:
        return self._endpoint(
            "PUT",
            "/{id}/status",
            Operation.UPDATE,
            defaults=self._update_steps(_status_in_body),
            respond=self._respond.answer_record,
            about=STATUS,
        )

    def _deleting(self) -> Iterator[Endpoint]:
        for method, below, read, about in (
            ("POST", "/delete", _ids_in_body, DELETE_MANY),
            ("DELETE", "", _ids_in_query, DELETE),
        ):
            yield self._endpoint(
                method,
                below,
                Operation.DELETE,
                defaults={"deserialize": read, "db": self._delete},
                respond=_answer_deleted,
                about=about,
            )
        # A database step of the application's own leaves no trace of a delete; it is trusted.
        own = self._routes.composer.replaces("db", self._meta, Operation.DELETE)
        yield self._endpoint(
            "DELETE",
            "/{id}",
            Operation.DELETE,
            defaults={"db": self._delete_named},
            respond=self._respond.answer_empty if own else self._respond.answer_deleted,
            about=DELETE_ONE,
        )

    def _endpoint(
        self,
        method: str,
        below: str,
        operation: Operation,
        *,
        defaults: dict[str, Default],
        respond: Default,
        about: RouteDocs,
    ) -> Endpoint:
        return self._routes.endpoint(
            method,
            f"/{self._meta.table}{below}",
            operation,
            model=self._meta,
            defaults=defaults,
            respond=respond,
            about=about,
        )

    def _select_due(self, ctx: Context) -> None:
        query = ctx.query
        query.add_filter("status", "active")
        query.add_filter("next_run_at", self._schedules.now(), "lte")
        if not query.sorts:
            query.add_sort("next_run_at")
            query.add_sort("id")

    async def _run(self, ctx: Context) -> None:
        async with ctx.transaction():
            await self._store.read(ctx.resource_id, scope=ctx.forced)
            run = await self._schedules.run_now(ctx.resource_id)
        ctx.result = {"run_id": run.id, "schedule_id": ctx.resource_id}

    async def _delete(self, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            query = ctx.current_query().with_filter("id", ctx.state.ids, "in").with_(limit=None)
            rows, _ = await self._store.page(self._store.listing(query), counted=False, tx=tx)
            ids = [self._store.record(row).id for row in rows]
            ctx.result = {"deleted": await self._schedules.delete_many(ids)}

    async def _delete_named(self, ctx: Context) -> None:
        """Delete the one schedule of the path, or all of those it lists."""
        if "," not in ctx.resource_id:
            await self._db.delete(ctx)
            return
        ctx.deleted = True
        async with ctx.transaction() as tx:
            for id in dict.fromkeys(_listed_ids(ctx.resource_id)):
                await self._store.delete(id, scope=ctx.forced, tx=tx)


def _set_status(status: str) -> Default:
    """Writes the body of a change ourselves; the rest is a change like any other."""

    def read(ctx: Context) -> None:
        ctx.set_field("status", status)

    return read


def _firing(ctx: Context) -> None:
    ctx.state.fires = True  # an update to its rules, but it changes no field


async def _ids_in_body(ctx: Context) -> None:
    ctx.state.ids = (await ctx.bind_json(Ids)).ids


def _ids_in_query(ctx: Context) -> None:
    ctx.state.ids = _listed_ids(ctx.query_param("ids"))


def _listed_ids(text: str) -> list[str]:
    ids = [one.strip() for one in text.split(",") if one.strip()]
    if not 0 < len(ids) <= MOST_DELETED:
        raise InvalidQuery(f"ids: name 1 to {MOST_DELETED} schedules, with commas between them")
    return ids


async def _status_in_body(ctx: Context) -> None:
    ctx.set_field("status", (await ctx.bind_json(NewStatus)).status)


def _answer_started(ctx: Context) -> None:
    if ctx.response is None:
        ctx.response = Response(202, ctx.result)


def _answer_deleted(ctx: Context) -> None:
    if ctx.response is None:
        ctx.response = Response(200, ctx.result)


def _network_change(before: Schedule, client_changes: Mapping[str, Any]) -> dict[str, Any]:
    """Code opened the inner network to one address; a client that names another does not keep that."""
    return {"allow_private": False} if before.allow_private and _is_elsewhere(before, client_changes) else {}


def _keep_private_payload(before: Schedule, client_changes: Mapping[str, Any]) -> None:
    """Refuse a client that would have code's way into the inner network carry a payload of its own."""
    is_changed = _is_changed(before, client_changes, ("payload",))
    if before.allow_private and is_changed and not _is_elsewhere(before, client_changes):
        raise InvalidSchedule("payload", "only code says what is sent to an address that is not public")


def _is_elsewhere(before: Schedule, client_changes: Mapping[str, Any]) -> bool:
    return _is_changed(before, client_changes, _TARGET)


def _is_changed(before: Schedule, changes: Mapping[str, Any], names: Iterable[str]) -> bool:
    return any(changes.get(name, getattr(before, name)) != getattr(before, name) for name in names)


def _with_codes(endpoint: Endpoint) -> Endpoint:
    """A route that writes a schedule, described with the refusal that only schedules have."""
    is_schedule = endpoint.model is not None and endpoint.model.cls is Schedule
    if not is_schedule or endpoint.operation not in (Operation.CREATE, Operation.UPDATE):
        return endpoint
    return replace(endpoint, about=RouteDocs(codes=CODES))


def _is_replaced(endpoint: Endpoint) -> bool:
    """Writing of history, and the methods we say ourselves."""
    if endpoint.model is None or endpoint.model.cls not in _MODELS:
        return False
    if endpoint.model.cls is ScheduleFiring:
        return endpoint.method not in ("GET", "HEAD")
    item = endpoint.path.endswith("/{id}")
    return endpoint.method == "OPTIONS" or (endpoint.method == "DELETE" and item)


# What the routes of schedules take and answer, and what the API description says of each.


MOST_DELETED = 1000


@dataclass
class Ids:
    """The schedules to delete."""

    ids: Annotated[list[str], Field(min_length=1, max_length=MOST_DELETED)]


@dataclass
class NewStatus:
    """What a schedule shall be."""

    status: Status


@dataclass
class Deleted:
    """How many schedules are gone."""

    deleted: int


DUE = RouteDocs(
    name="list_due_schedules",
    summary="List the schedules that are due",
    description="The active schedules whose next time has come.",
    answer_texts={200: "A page of schedules."},
    grammar=("filter", "sort", "page", "limit", "select"),
    response=list[Schedule],
)
DUE_HEAD = replace(DUE.of_head(), name="head_due_schedules")
CODES = (InvalidSchedule.code,)
_ONE = {200: "The schedule as it is now."}
PUT = RouteDocs(
    name="put_schedule",
    summary="Change a schedule",
    description="As PATCH does: fields that are left out stay as they are.",
    request_schema={"$ref": "#/components/schemas/ScheduleUpdate"},
    body_text="The fields to change, with their new values.",
    response=Schedule,
    answer_texts=_ONE,
    errors=(404, 409),
    codes=CODES,
)
STATUS = RouteDocs(
    name="put_schedule_status",
    summary="Make a schedule active or inactive",
    description="As `activate` and `deactivate` do, by what the body says.",
    request=NewStatus,
    body_text="What the schedule shall be.",
    response=Schedule,
    answer_texts=_ONE,
    errors=(404,),
    codes=CODES,
)
_IDS = f"The ids of 1 to {MOST_DELETED:,} schedules, with commas between them."
DELETE = RouteDocs(
    name="delete_schedules",
    summary="Delete the listed schedules",
    description="Deletes those of the schedules that there are.",
    parameters=(
        {"name": "ids", "in": "query", "required": True, "description": _IDS, "schema": {"type": "string"}},
    ),
    codes=("INVALID_QUERY",),
    response=Deleted,
    answer_texts={200: "How many were deleted."},
)
DELETE_ONE = RouteDocs(
    name="delete_schedule",
    summary="Delete one schedule, or several with commas between their ids",
    description="Deletes all that the path names or, when one of them is not there, none.",
    status=204,
    answer_texts={204: "They are deleted."},
    errors=(404,),
)
DELETE_MANY = RouteDocs(
    name="delete_many_schedules",
    summary="Delete many schedules",
    description="Deletes those of the schedules that there are.",
    request=Ids,
    body_text=f"The ids of 1 to {MOST_DELETED:,} schedules.",
    response=Deleted,
    answer_texts={200: "How many were deleted."},
)


# Actions as targets of schedules: which there are, what they take, and calling them in this
# process.


def schedulable(actions: Sequence[Action]) -> dict[str, Fits]:
    """The actions a schedule may call, by name: no parameter in the path, and no other of the name."""
    names = [action.name for action in actions]
    callable = (a for a in actions if "{" not in a.path and names.count(a.name) == 1)
    return {action.name: _PayloadCheck(action) for action in callable}


def open_to_clients(actions: Sequence[Action]) -> frozenset[str]:
    """The names of the actions that a schedule made over REST may call, past their auth step."""
    return frozenset(action.name for action in actions if action.schedulable)


def schedulable_problems(actions: Sequence[Action]) -> list[str]:
    """Actions that are declared schedulable in a way that makes no sense, or that no schedule can call."""
    callable_names = schedulable(actions)
    problem = "a schedule calls an action by its name, which no other has, and without parameters in its path"
    unclear = [
        f"action {a.method} {a.path}: {flaw}"
        for a in actions
        for flaw in switch_problems(schedulable=a.schedulable)
    ]
    return unclear + [
        f"action {a.method} {a.path}: it is schedulable, but {problem}"
        for a in actions
        if a.schedulable is True and a.name not in callable_names
    ]


class _PayloadCheck:
    """Refuses a payload that an action would refuse at every call."""

    def __init__(self, action: Action) -> None:
        self._name = action.name
        self._request = action.request

    def __call__(self, payload: Any, models: Models | None) -> None:
        is_model = isinstance(self._request, type) and issubclass(self._request, Model)
        if self._request is None or (is_model and models is None):
            return
        if payload is None:
            raise InvalidSchedule("payload", f"the action {self._name!r} needs one")
        try:
            bind(encode(payload, "payload").encode(), self._request)
        except RequestError as error:
            field, message = _first(error)
            raise InvalidSchedule(".".join(filter(None, ("payload", field))), message) from None


def _first(error: RequestError) -> tuple[str, str]:
    details: Any = error.details or [{}]
    return details[0].get("field", ""), details[0].get("message", error.message)


class ActionCaller:
    """Calls actions in this process, in the name of a schedule's actor or, where it has none, of `schedule`.

    That identity needs no auth step to be believed. It has no roles.
    """

    def __init__(self, runtime: Runtime, endpoints: Sequence[Endpoint]) -> None:
        self._runtime = runtime
        self._endpoints = {
            e.about.name: replace(e, main=e.behind_auth)
            for e in endpoints
            if e.behind_auth is not None and e.about is not None
        }

    async def __call__(self, name: str, payload: Any, *, actor_id: str | None, tenant_id: str | None) -> Any:
        endpoint = self._endpoints.get(name)
        if endpoint is None or "{" in endpoint.path:
            raise Fatal(f"there is no action {name!r} to call")
        ctx = self._context(endpoint, payload)
        ctx.auth = AuthInfo(
            user_id=actor_id or "schedule",
            tenant_id=tenant_id or "",
            identity_type="service_account",
            auth_method="in-process",
        )
        response = await answer(endpoint, ctx)
        status = status_of(response)
        if status >= 500:
            raise RuntimeError(f"the action {name!r} answered {status}")
        if status >= 400:
            raise Fatal(f"the action {name!r} answered {status}: {_error_text(response)}")
        return response.data if isinstance(response, Response) else None

    def _context(self, endpoint: Endpoint, payload: Any) -> Context:
        ctx = in_process_context(
            Context,
            self._runtime,
            Operation.ACTION,
            method=endpoint.method,
            path=endpoint.path,
            headers=[(b"content-type", b"application/json")],
            body=b"" if payload is None else encode(payload, "payload").encode(),
            request_id="schedule",
        )
        ctx.authenticated = ctx.csrf_exempt = True
        return ctx


def _error_text(response: Any) -> str:
    error = getattr(response, "error", None) or {}
    return f"{error.get('code', '')} {error.get('message', '')}".strip()
