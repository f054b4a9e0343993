"""Schedules over REST: the routes of their model, checked, and a few of their own; for admins only.

`ScheduleFace` is what a server mounts. Beside the usual routes at `/schedules` there are `activate`,
`deactivate` and `run` below a schedule, the list of what is due, and deleting many at once; what
came of them is read at `/schedule_firing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from maniflex.background.jsons import encode
from maniflex.background.schedules.definition import CHANGEABLE, Fits, Models
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.background.schedules.schedules import Schedules
from maniflex.control.face import Site
from maniflex.control.guard import identified
from maniflex.errors import Fatal, Forbidden, InvalidQuery, InvalidSchedule, RequestError
from maniflex.features.actions import Action
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.pipeline.about import About
from maniflex.pipeline.binding import bind
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import AsgiScope, AuthInfo, Context
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response, status_of
from maniflex.pipeline.run import run
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.steps.db import Database
from maniflex.pipeline.steps.response import Respond
from maniflex.pipeline.steps.validate import Validate

MOST_DELETED = 1000
_TARGET = ("kind", "target")
_SAYS_WHAT = {*_TARGET, "payload"}


@dataclass
class Ids:
    """The schedules to delete."""

    ids: Annotated[list[str], Field(min_length=1, max_length=MOST_DELETED)]


@dataclass
class Deleted:
    """How many schedules are gone."""

    deleted: int


@dataclass
class Started:
    """The run that a schedule was fired as."""

    run_id: str
    schedule_id: str


_DUE = About(
    name="list_due_schedules",
    summary="List the schedules that are due",
    grammar=("filter", "sort", "page", "limit", "select"),
    response=list[Schedule],
)
_DUE_HEAD = replace(_DUE.of_head(), name="head_due_schedules")
_ACTIVATE = About(name="activate_schedule", summary="Make a schedule active", response=Schedule)
_DEACTIVATE = About(name="deactivate_schedule", summary="Make a schedule inactive", response=Schedule)
_RUN = About(name="run_schedule", summary="Fire a schedule now", response=Started, status=202)
_DELETE = About(
    name="delete_schedules", summary="Delete the listed schedules", query={"ids": str}, response=Deleted
)
_DELETE_MANY = About(
    name="delete_many_schedules", summary="Delete many schedules", request=Ids, response=Deleted
)


class ScheduleFace:
    """The REST routes of schedules."""

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules
        self._guard = AdminsOnly(schedules)

    def options(self) -> Mapping[type[Model], ModelOptions]:
        if not self._schedules.routes:
            return dict.fromkeys((Schedule, ScheduleFiring), ModelOptions(headless=True))
        keep: Mapping[str, Any] = {"auth": self._guard, "service": self._keep}
        return {
            Schedule: ModelOptions(middleware=keep),
            ScheduleFiring: ModelOptions(middleware={"auth": self._guard}),
        }

    def mounted(self, site: Site, usual: list[Endpoint]) -> list[Endpoint]:
        if not (self._schedules.used and self._schedules.routes and Schedule in site.runtime.stores):
            return usual
        kept = [e for e in usual if not _replaced(e)]
        return [*kept, *_Routes(self._schedules, site).endpoints()]

    async def _keep(self, ctx: Context, next: Next) -> None:
        """Check what a schedule says, and stamp when it is due."""
        if "fires" in ctx.state:
            await next()
            return
        if ctx.operation is Operation.CREATE:
            said = {name: getattr(ctx.record, name) for name in CHANGEABLE}
            self._refuse_internal(said["kind"], said["target"])
            ctx.set_field("next_run_at", self._schedules.new(said)["next_run_at"])
            await next()
        elif ctx.operation is Operation.UPDATE:
            async with ctx.transaction():
                before = await ctx.lock_for_update(Schedule, ctx.resource_id)
                given = {name: v for name, v in (ctx.changes or {}).items() if name in CHANGEABLE}
                if _SAYS_WHAT & given.keys():
                    self._refuse_internal(*(given.get(name, getattr(before, name)) for name in _TARGET))
                changes = {**given, **_closed(before, given)}
                for name, value in self._schedules.changed(before, changes).items():
                    if name not in given:
                        ctx.set_field(name, value)
                await next()
        else:
            await next()
            return
        ctx.after_commit(self._schedules.wake)

    def _refuse_internal(self, kind: str, target: str) -> None:
        """What clients may not submit they may not have submitted either."""
        handler = self._schedules.work.handlers.get(target) if kind == "run" else None
        if handler is not None and handler.internal:
            raise InvalidSchedule("target", f"{target!r} is submitted by the server alone")


class _Routes:
    """What there is beside the usual routes, behind the same rules as they."""

    def __init__(self, schedules: Schedules, site: Site) -> None:
        self._schedules = schedules
        self._site = site
        self._store = store = site.runtime.stores[Schedule]
        self._meta = store.meta
        wire = site.runtime.wires[Schedule]
        self._db = Database(store, wire, site.runtime)
        self._validate = Validate(store)
        self._respond = Respond(wire, site.computed.get(Schedule, ()), etags=False)

    def endpoints(self) -> Iterator[Endpoint]:
        base = f"/{self._meta.table}"
        listing: dict[str, Default] = {"deserialize": self._due, "db": self._db.list}
        for method, operation, about in (("GET", Operation.LIST, _DUE), ("HEAD", Operation.HEAD, _DUE_HEAD)):
            yield self._site.endpoint(
                self._meta, method, f"{base}/due", operation, listing, self._respond.listed, about
            )
        yield self._site.options(self._meta, f"{base}/due", "GET, HEAD, OPTIONS")
        for name, status, about in (
            ("activate", "active", _ACTIVATE),
            ("deactivate", "inactive", _DEACTIVATE),
        ):
            path = f"{base}/{{id}}/{name}"
            yield self._site.endpoint(
                self._meta, "POST", path, Operation.UPDATE, self._becoming(status), self._respond.found, about
            )
        steps: dict[str, Default] = {"deserialize": _firing, "db": self._run}
        yield self._site.endpoint(
            self._meta, "POST", f"{base}/{{id}}/run", Operation.UPDATE, steps, _started, _RUN
        )
        for method, path, read, about in (
            ("POST", f"{base}/delete", _ids_in_body, _DELETE_MANY),
            ("DELETE", base, _ids_in_query, _DELETE),
        ):
            steps = {"deserialize": read, "db": self._delete}
            yield self._site.endpoint(self._meta, method, path, Operation.DELETE, steps, _deleted, about)
        yield self._site.options(self._meta, base, "DELETE, GET, HEAD, OPTIONS, POST")
        yield self._site.options(self._meta, f"{base}/delete", "OPTIONS, POST")
        firings = self._site.runtime.models[ScheduleFiring]
        for path in (f"/{firings.table}", f"/{firings.table}/{{id}}"):
            yield self._site.options(firings, path, "GET, HEAD, OPTIONS")

    def _becoming(self, status: str) -> dict[str, Default]:
        """A change like any other, whose body we write ourselves."""

        def body(ctx: Context) -> None:
            ctx.set_field("status", status)

        return {"deserialize": body, "validate": self._validate.update, "db": self._db.update}

    def _due(self, ctx: Context) -> None:
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
            query = ctx.query.copy()
            query.add_filter("id", ctx.state.ids, "in")
            query.limit = None
            rows, _ = await self._store.page(query, tx=tx)
            ids = [self._store.record(row).id for row in rows]
            ctx.result = {"deleted": await self._schedules.delete_many(ids)}


def _firing(ctx: Context) -> None:
    ctx.state.fires = True  # an update to its rules, but it changes no field


async def _ids_in_body(ctx: Context) -> None:
    ctx.state.ids = (await ctx.bind_json(Ids)).ids


def _ids_in_query(ctx: Context) -> None:
    ids = [one.strip() for one in ctx.query_param("ids").split(",") if one.strip()]
    if not 0 < len(ids) <= MOST_DELETED:
        raise InvalidQuery(f"ids: name 1 to {MOST_DELETED} schedules, with commas between them")
    ctx.state.ids = ids


def _started(ctx: Context) -> None:
    if ctx.response is None:
        ctx.response = Response(202, ctx.result)


def _deleted(ctx: Context) -> None:
    if ctx.response is None:
        ctx.response = Response(200, ctx.result)


class AdminsOnly:
    """Lets only callers with the role that manages schedules pass."""

    __name__ = "admins_only"

    def __init__(self, schedules: Schedules) -> None:
        self._schedules = schedules

    async def __call__(self, ctx: Context, next: Next) -> None:
        if ctx.operation is not Operation.OPTIONS:
            identified(ctx)
            if not ctx.has_role(self._schedules.admin_role):
                raise Forbidden()
        await next()


def _closed(before: Schedule, given: Mapping[str, Any]) -> dict[str, Any]:
    """Code opened the inner network to one address; a client that names another does not keep that."""
    elsewhere = any(given.get(name, getattr(before, name)) != getattr(before, name) for name in _TARGET)
    return {"allow_private": False} if before.allow_private and elsewhere else {}


def _replaced(endpoint: Endpoint) -> bool:
    """Writing of history, and the methods we say ourselves."""
    if endpoint.model is None or endpoint.model.cls not in (Schedule, ScheduleFiring):
        return False
    if endpoint.model.cls is ScheduleFiring:
        return endpoint.method not in ("GET", "HEAD")
    return endpoint.method == "OPTIONS" and endpoint.path == f"/{endpoint.model.table}"


def schedulable(actions: Iterable[Action]) -> dict[str, Fits]:
    """The actions a schedule may call, by name: no parameter in the path, and no other of the name."""
    names = [action.name for action in actions]
    callable = (a for a in actions if "{" not in a.path and names.count(a.name) == 1)
    return {action.name: _Body(action) for action in callable}


class _Body:
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
            bind(encode(payload, "payload").encode(), self._request, models or {})
        except RequestError as error:
            field, message = _first(error)
            raise InvalidSchedule(".".join(filter(None, ("payload", field))), message) from None


def _first(error: RequestError) -> tuple[str, str]:
    details: Any = error.details or [{}]
    return details[0].get("field", ""), details[0].get("message", error.message)


class ActionCaller:
    """Calls actions in this process as the identity `schedule`, which needs no auth step to be believed."""

    def __init__(self, runtime: Runtime, endpoints: Sequence[Endpoint]) -> None:
        self._runtime = runtime
        self._endpoints = {
            e.about.name: replace(e, main=e.behind_auth)
            for e in endpoints
            if e.behind_auth is not None and e.about is not None
        }

    async def __call__(self, name: str, payload: Any) -> Any:
        endpoint = self._endpoints.get(name)
        if endpoint is None or "{" in endpoint.path:
            raise Fatal(f"there is no action {name!r} to call")
        response = await run(endpoint, self._context(endpoint, payload))
        status = status_of(response)
        if status >= 500:
            raise RuntimeError(f"the action {name!r} answered {status}")
        if status >= 400:
            raise Fatal(f"the action {name!r} answered {status}: {_said(response)}")
        return response.data if isinstance(response, Response) else None

    def _context(self, endpoint: Endpoint, payload: Any) -> Context:
        content = b"" if payload is None else encode(payload, "payload").encode()
        scope: AsgiScope = {
            "type": "http",
            "method": endpoint.method,
            "path": endpoint.path,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        ctx = Context(self._runtime, scope, receive, Operation.ACTION, "schedule")
        ctx.auth = AuthInfo(user_id="schedule", identity_type="service_account", auth_method="in-process")
        return ctx


def _said(response: Any) -> str:
    error = getattr(response, "error", None) or {}
    return f"{error.get('code', '')} {error.get('message', '')}".strip()
