"""Which rows a request may see: the caller's own, those of an admin's tenant, or all for operators.

The condition is forced on the request, so it holds for lists, counts, single records, aggregates,
exports and writes alike. A row is the caller's by actor and by tenant; a caller without a tenant sees
rows without one. Hidden types, the texts of exceptions, stack traces and the names of workers are shown to
operators alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast
from urllib.parse import quote

from pydantic_core import PydanticSerializationError

from maniflex._json import BY_ATTRIBUTE, decode, encode
from maniflex._tables import PartialTable
from maniflex.background.commands import CallerReach, Command
from maniflex.background.feed.model import EventGroup, LoggedEvent
from maniflex.background.jobs.status import StatusModel
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.runs.api import Work
from maniflex.background.runs.handlers import CODES_WITH_TEXT, RunHandler
from maniflex.background.runs.model import WorkflowEvent, WorkflowRun
from maniflex.background.runs.outcomes import NO_HANDLER
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.errors import Forbidden, InvalidQuery, Unauthorized, UnusableScope, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, ModelOptions
from maniflex.pipeline.binding import binder
from maniflex.pipeline.chain import Default, Handler
from maniflex.pipeline.context import AuthInfo, Context, RequestQuery
from maniflex.pipeline.exchange import LOOKS, OPERATES
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.routes import Endpoint, RouteBuilder, RouteDocs
from maniflex.pipeline.steps.browse import PAGE
from maniflex.query.operators import Op
from maniflex.query.query import AnyOf, Compare, Filter

# Which rows a request may see: the caller's own, those of an admin's tenant, or all for operators.
#
# The condition is forced on the request, so it holds for lists, counts, single records, aggregates, exports
# and writes alike. A row is the caller's by actor and by tenant; a caller without a tenant sees rows
# without one. Hidden types, the texts of exceptions, stack traces and the names of workers are shown to
# operators alone.


_WORKER = "leased_by"  # names a machine and a process of the application


def bind_to_caller(bind: Callable[..., None], auth: AuthInfo, reach: CallerReach, path: str = "") -> None:
    """Leave the caller's own rows or, with the reach of a tenant, all rows of that tenant."""
    if reach is CallerReach.OWN:
        bind(f"{path}actor_id", auth.user_id)
    if auth.tenant_id:
        bind(f"{path}tenant_id", auth.tenant_id)
    else:
        bind(f"{path}tenant_id", op="is_null")


class Guard:
    """Binds requests for runs, or with `path` for records that belong to one."""

    __name__ = "own_runs"

    def __init__(self, work: Work, path: str = "") -> None:
        self._work = work
        self._path = path

    async def __call__(self, ctx: Context, next: Next) -> None:
        if ctx.operation is not Operation.OPTIONS:  # which shows no run
            reach = reach_of(ctx, self._work.access.admin_role)
            if reach is not CallerReach.ALL:
                self._bind(ctx, require_identity(ctx), reach)
        await next()

    def _bind(self, ctx: Context, auth: AuthInfo, reach: CallerReach) -> None:
        if any(map(_asks_for_worker, ctx.query.filters)):
            raise InvalidQuery(f"filter: {_WORKER} is for operators")
        # What has no such field itself is bound through the run it belongs to.
        bind = ctx.query.add_filter if self._path else ctx.query.force
        bind_to_caller(bind, auth, reach, self._path)
        is_own_list = reach is CallerReach.OWN and self._path and not ctx.resource_id
        if is_own_list and not any(map(_is_narrow, ctx.query.filters)):
            *others, actor, tenant = ctx.query.filters
            ctx.query.filters = (*others, replace(cast(Compare, actor), few=True), tenant)
        match_client_keys(ctx.query, _mark(auth))
        if (page := ctx.scope.get(PAGE)) is not None:  # of the panel, which has its filters beside the query
            page.filters = tuple(widen_key_filter(one, _mark(auth)) for one in page.filters)
        hidden_types = self._work.handlers.hidden_types()
        if hidden_types:
            bind(f"{self._path}type", hidden_types, "not_in")
        if not self._path:
            select_deciding_fields(ctx, ["last_error"], "error")
            select_deciding_fields(ctx, KEYS, "actor_id", "tenant_id")


def _asks_for_worker(item: Filter) -> bool:
    conditions = item.conditions if isinstance(item, AnyOf) else (item,)
    # The second field of a comparison is the condition's value.
    return any(_WORKER in (one.field.name, getattr(one.value, "name", None)) for one in conditions)


def _is_narrow(item: Filter) -> bool:
    """Whether a condition leaves the records of a few runs."""
    if not isinstance(item, Compare) or item.path:
        return False
    return item.field.name in ("id", "workflow_id") and item.op in (Op.EQ, Op.IN)


class HideInternals:
    """Leaves the texts of exceptions, the names of workers and the stored form of keys to operators."""

    __name__ = "no_traces"

    def __init__(self, work: Work) -> None:
        self._work = work

    async def __call__(self, ctx: Context, next: Next) -> None:
        await next()
        response = ctx.response
        if response is None or response.error is not None:
            return
        if is_operator(ctx, self._work.access.admin_role):
            return
        data = response.data
        own = _mark(ctx.auth)
        for record in data if isinstance(data, list) else [data]:
            if isinstance(record, dict):
                _hide_internals(record, own)
                drop_added_fields(ctx, record)


def _hide_internals(record: Any, own: str) -> None:
    if not isinstance(record, dict):
        return
    record.pop(_WORKER, None)
    hide_texts_of_run(record)
    hide_texts_of_event(record)
    record.update(client_keys(record, own))
    _hide_internals(record.get("workflow"), own)  # the run of an event, when it was asked for along with it


def _mark(auth: AuthInfo | None) -> str:
    return mark(auth.tenant_id, auth.user_id) if auth is not None else mark(None, None)


# What callers learn of failures: the code, and the text that a handler wrote for them.
#
# A handler speaks to the caller with `Fatal` and `run.retry_in`. The text of any other exception may
# quote a driver, a path or another caller's data: operators alone read it, together with stack traces and
# the names of workers.


_CODES = ("lease_expired", NO_HANDLER)  # what the engine writes in place of a text
_OF_WORKERS = ("worker", "trace")


def visible_text(text: Any, code: Any) -> str | None:
    """The text of a failure with this code if callers may read it; otherwise the code, if there is one."""
    if text in _CODES or code in CODES_WITH_TEXT:
        return str(text) if text is not None else None
    return str(code) if text is not None and isinstance(code, str) else None


def hide_texts_of_run(record: dict[str, Any]) -> None:
    """Leave of a run's failure what its owner may know."""
    error = record.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(error, dict):
        names = ("code", "message", "attempt") if code in CODES_WITH_TEXT else ("code", "attempt")
        record["error"] = {name: error[name] for name in names if name in error}
    if "last_error" in record:
        record["last_error"] = visible_text(record["last_error"], code)


def hide_texts_of_event(record: dict[str, Any]) -> None:
    """Leave of what happened to a run what its owner may know."""
    data = record.get("data")
    if not isinstance(data, dict):
        return
    visible = {name: value for name, value in data.items() if name not in _OF_WORKERS}
    if "error" in visible:
        visible["error"] = visible_text(visible["error"], visible.get("code"))
    record["data"] = visible


def hide_text_of_job(record: dict[str, Any]) -> None:
    """Leave of a job's failure what its owner may know."""
    if "error" in record:
        record["error"] = visible_text(record["error"], record.get("error_code"))


def select_deciding_fields(ctx: Context, asked: Collection[str], *deciding: str) -> None:
    """Add the `deciding` fields to a selection that has one of the `asked` fields, which depend on them."""
    select = ctx.query.select
    names = [] if select is None else [field.name for field in select]
    if select is None or not any(name in names for name in asked):
        return
    fields = (ctx.query.model.field(name) for name in deciding if name not in names)
    extra_fields: list[FieldMeta] = [field for field in fields if field is not None]
    ctx.query.select = (*select, *extra_fields)
    ctx.state.beside = (*ctx.state.get("beside", ()), *(field.name for field in extra_fields))


def drop_added_fields(ctx: Context, record: dict[str, Any]) -> None:
    """Remove the fields that `select_deciding_fields` added."""
    for name in ctx.state.get("beside", ()):
        record.pop(name, None)


# The keys of clients: each caller has its own, so two callers may use the same key for different runs.
#
# A key that came over REST is stored as `@tenant/actor:key`. Its caller never sees that: answers show the
# key as it was said, and filters by it find it. The admin role, who sees the keys of all, sees them as
# they are stored.


KEYS = ("idempotency_key", "group_key")
_WIDENED = PartialTable(
    {Op.EQ: Op.IN, Op.IN: Op.IN, Op.NEQ: Op.NOT_IN, Op.NOT_IN: Op.NOT_IN},
    others="compare with something else than whole keys",
)


def mark(tenant_id: str | None, actor_id: str | None) -> str:
    """What the stored keys of a caller begin with."""
    return f"@{quote(tenant_id or '', safe='')}/{quote(actor_id or '', safe='')}:"


def client_keys(record: Mapping[str, Any], own: str) -> dict[str, Any]:
    """The keys of a record as its caller said them; `own` is the caller's mark."""
    if "actor_id" in record and "tenant_id" in record:
        own = mark(record["tenant_id"], record["actor_id"])  # middleware may have said whose it is
    return {name: record[name].removeprefix(own) for name in KEYS if isinstance(record.get(name), str)}


def match_client_keys(query: RequestQuery, own: str) -> None:
    """Have filters by a key find it as it was said, and as code may have stored it."""
    query.filters = tuple(_widen(item, own) for item in query.filters)


def widen_key_filter(condition: tuple[str, str, Any], own: str) -> tuple[str, str, Any]:
    """The same for a condition of a page of the panel."""
    field, op, value = condition
    return (field, "in", [value, own + value]) if field in KEYS and op == "eq" else condition


def _widen(item: Filter, own: str) -> Filter:
    if isinstance(item, AnyOf):
        conditions = [one for condition in item.conditions for one in _stored_variants(condition, own)]
        return AnyOf(tuple(conditions))
    variants = _stored_variants(item, own)
    return variants[0] if len(variants) == 1 else AnyOf(variants)


def _stored_variants(item: Compare, own: str) -> tuple[Compare, ...]:
    if item.field.name not in KEYS or item.value is None:
        return (item,)
    if item.op is Op.STARTS_WITH:
        return (item, replace(item, value=own + item.value))
    if item.op in _WIDENED:
        values = item.value if isinstance(item.value, tuple) else (item.value,)
        wide = (*values, *(own + value for value in values if value is not None))
        return (replace(item, op=_WIDENED[item.op], value=wide),)
    return (item,)


# Whose rows of durable work a caller reaches: their own, those of their tenant, or all.
#
# The only home of that rule. An identity with a tenant never gets beyond it, with any role: a role is a
# word of the application, and one tenant's admin is a stranger to another tenant. All rows are for
# operators, who have the admin role and no tenant. The panel says of its requests who looks after durable
# work there; that is `OPERATES` in the scope of the request, which only code of this process can set.


def require_identity(ctx: Context) -> AuthInfo:
    """The identity of the caller; `Unauthorized` without one."""
    if ctx.auth is None or not ctx.auth.user_id:
        raise Unauthorized()
    return ctx.auth


def actor_of(ctx: Context) -> str | None:
    """The id of the caller, which the open panel of a developer has none of; others are `Unauthorized`."""
    if ctx.auth is None and ctx.scope.get(OPERATES):
        return None
    return require_identity(ctx).user_id


def reach_of(ctx: Context, admin_role: str) -> CallerReach:
    """How far the caller gets; `Unauthorized` without an identity."""
    if ctx.scope.get(OPERATES):
        return CallerReach.TENANT if ctx.auth is not None and ctx.auth.tenant_id else CallerReach.ALL
    auth = require_identity(ctx)
    if not ctx.has_role(admin_role):
        return CallerReach.OWN
    return CallerReach.TENANT if auth.tenant_id else CallerReach.ALL


def is_operator(ctx: Context, admin_role: str) -> bool:
    """Whether the caller reaches all rows and operates them; a caller without an identity does not."""
    panel_word = ctx.scope.get(OPERATES)
    if panel_word:
        return panel_word != LOOKS and (ctx.auth is None or not ctx.auth.tenant_id)
    return ctx.has_role(admin_role) and ctx.auth is not None and not ctx.auth.tenant_id


def require_operator(ctx: Context, admin_role: str) -> None:
    """Refuse callers other than operators where rows belong to no tenant; OPTIONS is open to all callers."""
    if ctx.operation is not Operation.OPTIONS and reach_of(ctx, admin_role) is not CallerReach.ALL:
        raise Forbidden()


# Payloads that clients write: the models in them are bound as on their create routes.


def run_payload(payload: Any, handler: RunHandler | None) -> Any:
    """The payload to store for one run: its records whole, so that every attempt has the same."""
    return _payload_to_store(payload, handler, exclude_unset=False)


def schedule_payload(payload: Any, handler: RunHandler | None) -> Any:
    """The payload to store for many runs: what the client set, so that each has ids and times of its own."""
    return _payload_to_store(payload, handler, exclude_unset=True)


def _payload_to_store(payload: Any, handler: RunHandler | None, *, exclude_unset: bool) -> Any:
    binding = _bind_models({} if payload is None else payload, handler)
    if binding is None or handler is None or handler.payload is None:
        return payload
    options: Any = {"by_alias": True, "exclude_unset": exclude_unset, "context": BY_ATTRIBUTE}
    try:
        return decode(handler.payload.adapter.dump_json(binding[0], **options))
    except PydanticSerializationError:
        encode(binding[0], "payload")  # says why in plain words
        raise


def _bind_models(payload: Any, handler: RunHandler | None) -> tuple[Any] | None:
    """The payload as its type, if that holds models; `ValidationFailed` when a client cannot say it."""
    if handler is None or handler.payload is None:
        return None
    payload_binder = binder(handler.payload.declared)
    try:
        value = payload_binder.fit(payload)
    except ValidationFailed as failed:
        details: Any = failed.details
        payload_details = [{**d, "field": f"payload.{d['field']}".rstrip(".")} for d in details]
        raise ValidationFailed(details=payload_details) from None
    return (value,) if payload_binder.holds_models else None


# The REST routes of a durable part: those of its models, some of them replaced by routes of its own.
#
# A `PartRoutes` says with which options the models are registered, and which routes replace the usual ones.


_READING = PartialTable(
    {
        Operation.LIST: ("list", "List"),
        Operation.READ: ("get", "Get one"),
        Operation.HEAD: ("head", "Headers of"),
        Operation.OPTIONS: ("options", "Methods for"),
    },
    others="have routes with docs of their own",
)


def rename_route(one: str, many: str, endpoint: Endpoint) -> Endpoint:
    """The reading route, documented under the noun clients know instead of the name of the model class."""
    if endpoint.about is not None:  # it has a name of its own
        return endpoint
    noun = one if "{" in endpoint.path else many
    verb, summary = _READING[endpoint.operation]
    return replace(endpoint, about=RouteDocs(f"{verb}_{noun}", f"{summary} {noun.replace('_', ' ')}"))


def add_options(
    routes: RouteBuilder, endpoints: Sequence[Endpoint], models: Collection[type[Model]]
) -> list[Endpoint]:
    """The endpoints, and the answers to OPTIONS on the paths of these models.

    A command on one record, such as `POST …/{id}/cancel`, has no OPTIONS; an action has none either.
    """
    own = [e for e in endpoints if e.model is not None and e.model.cls in models and not _is_command(e)]
    return [*endpoints, *routes.options(own)]


def command_endpoint(
    routes: RouteBuilder,
    command: Command,
    model: type[Model],
    defaults: dict[str, Default],
    respond: Default,
) -> Endpoint:
    """The route of a command, below the record it is about; without words it is for the panel alone."""
    meta = routes.runtime.models[model]
    return routes.endpoint(
        "POST",
        f"/{meta.table}/{{id}}/{command.path}",
        Operation.UPDATE,
        model=meta,
        defaults=defaults,
        respond=respond,
        about=command.route or RouteDocs(hidden=True),
    )


def _is_command(endpoint: Endpoint) -> bool:
    return endpoint.method == "POST" and "{id}/" in endpoint.path


def refuse_foreign_scopes(endpoints: Iterable[Endpoint], tables: Collection[type[Model]]) -> list[Endpoint]:
    """Have the routes of durable work answer 403 to a request whose scope names a field their table lacks.

    An application that binds every request to a tenant means its own models. Without that field a row
    cannot be inside the scope, so a caller in that scope may neither see nor change one.
    """
    return [
        replace(e, main=_within_scope(e.main)) if e.model is not None and e.model.cls in tables else e
        for e in endpoints
    ]


def _within_scope(main: Handler) -> Handler:
    async def run(ctx: Context) -> None:
        try:
            await main(ctx)
        except UnusableScope as error:
            ctx.logger.warning("403 on a table of durable work: %s", error)
            raise Forbidden() from None

    return run


class PartRoutes(Protocol):
    """The REST routes of one durable part."""

    def options(self) -> Mapping[type[Model], ModelOptions]:
        """Options its models are registered with, such as the middleware that guards them."""

    def replace_routes(self, routes: RouteBuilder, usual: list[Endpoint]) -> list[Endpoint]:
        """The endpoints of the server, given the `usual` ones it would have without this part."""


# The groups in which the API description shows the routes of durable work, by names people know.


GROUPS: dict[type[Model], str] = {
    WorkflowRun: "Runs",
    WorkflowEvent: "Runs",
    StatusModel: "Jobs",
    Schedule: "Schedules",
    ScheduleFiring: "Schedules",
    OutboxMessage: "Outbox",
    LoggedEvent: "Events",
    EventGroup: "Events",
}


def in_groups(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """The same endpoints, those of durable work with the tag of their group."""
    return [_in_group(endpoint) for endpoint in endpoints]


def _in_group(endpoint: Endpoint) -> Endpoint:
    group = None if endpoint.model is None else GROUPS.get(endpoint.model.cls)
    return endpoint if group is None else replace(endpoint, about=_with_tag(endpoint.about, group))


def _with_tag(about: RouteDocs | None, group: str) -> RouteDocs:
    return replace(about or RouteDocs(), tags=(group,))


# The guard of durable work that belongs to no caller: schedules and outbox are for operators alone.


class AdminsOnly:
    """Lets only operators pass: the admin role and no tenant, for these rows have none."""

    __name__ = "admins_only"

    def __init__(self, admin_role: Callable[[], str]) -> None:
        self._admin_role = admin_role  # asked for each request: it may be set after the routes are declared

    async def __call__(self, ctx: Context, next: Next) -> None:
        require_operator(ctx, self._admin_role())
        await next()
