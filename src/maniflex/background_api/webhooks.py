"""Webhook endpoints and deliveries over REST: callers have those of their tenant or, without one, their own.

The admin role without a tenant sees all. Endpoints of code are secrets to operators, and changed by nobody.
Secrets are secrets once, where they are made; headers never.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from maniflex._ids import new_id
from maniflex._json import encode_plain
from maniflex.background.commands import DELIVERY, ENDPOINT, CallerReach, Command, Noun, commands_of
from maniflex.background.webhooks.api import BY_HAND, Webhooks, new_key
from maniflex.background.webhooks.endpoint import (
    LONGEST_TIMEOUT,
    MOST_PATTERNS,
    header_problems,
    pattern_problems,
)
from maniflex.background.webhooks.model import (
    BodyFormat,
    EndpointStatus,
    Ordering,
    Signing,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
)
from maniflex.background.webhooks.store import StoredEndpoint
from maniflex.background_api.part_routes import (
    bind_to_caller,
    reach_of,
    rename_route,
    require_identity,
    require_operator,
)
from maniflex.errors import Conflict, Forbidden, NotFound, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import Endpoint, RouteBuilder, RouteDocs

ENDPOINTS, DELIVERIES = "/webhook_endpoints", "/webhook_deliveries"
MOST_ATTEMPTS = 1000  # of a delivery, those sent again by hand among them
_PATHS: dict[type[Model], tuple[str, str]] = {
    WebhookEndpoint: ("webhook_endpoint", ENDPOINTS),
    WebhookDelivery: ("webhook_delivery", DELIVERIES),
}
_Pattern = Annotated[str, Field(min_length=1, max_length=200)]
_Patterns = Annotated[list[_Pattern], Field(min_length=1, max_length=MOST_PATTERNS)]
_Url = Annotated[str, Field(min_length=1, max_length=2048)]
_Timeout = Annotated[int, Field(ge=1, le=LONGEST_TIMEOUT)]
_Text = Annotated[str, Field(max_length=500)]


class _StrictBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewEndpoint(_StrictBody):
    """An endpoint as a client makes it."""

    url: _Url
    patterns: _Patterns
    description: _Text | None = None
    format: BodyFormat = BodyFormat.STANDARD
    ordering: Ordering = Ordering.RECORD
    signing: Signing = Signing.HMAC
    headers: dict[str, str] | None = None
    timeout: _Timeout = 15


class EndpointChange(_StrictBody):
    """What a client changes of an endpoint; what is left out stays."""

    url: _Url | None = None
    patterns: _Patterns | None = None
    description: _Text | None = None
    format: BodyFormat | None = None
    ordering: Ordering | None = None
    headers: dict[str, str] | None = None
    timeout: _Timeout | None = None
    status: Literal["enabled", "disabled"] | None = None


class Since(_StrictBody):
    """From when on."""

    since: datetime


class ReplaySpan(Since):
    """From when on, until when, and which types."""

    until: datetime | None = None
    patterns: _Patterns | None = None


class TestAnswer(BaseModel):
    """What came back of a ping."""

    status: int | None
    error: str | None
    ms: int


class Count(BaseModel):
    """How many deliveries were made or put back."""

    count: int


class EndpointsOfCaller:
    """Binds requests to the endpoints and deliveries of the caller's tenant, or to the caller's own.

    Where callers have none of their own, there are those of code, which the panel shows to operators.
    """

    __name__ = "own_webhooks"

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    async def __call__(self, ctx: Context, next: Next) -> None:
        offer = self._webhooks.offer
        if offer is None:
            require_operator(ctx, self._webhooks.operator_role)
        elif ctx.operation is not Operation.OPTIONS:
            reach = reach_of(ctx, offer.admin_role)
            if reach is not CallerReach.ALL:
                auth = require_identity(ctx)
                if offer.role is not None and not ctx.has_role(offer.role):
                    raise Forbidden()
                bind_to_caller(
                    ctx.query.force, auth, CallerReach.TENANT if auth.tenant_id else CallerReach.OWN
                )
                if ctx.model.cls is WebhookEndpoint:
                    ctx.query.force("is_declared", False)
                else:
                    ctx.query.force("is_visible", True)
        await next()


async def add_attempts(ctx: Context, next: Next) -> None:
    """Show one delivery with its attempts, unless only some fields of it are asked for."""
    await next()
    response = ctx.response
    if response is None or response.error is not None or not isinstance(response.data, dict):
        return
    if ctx.operation not in (Operation.READ, Operation.HEAD) or ctx.query.select is not None:
        return
    response.data["attempts"] = await read_attempts(ctx)


async def read_attempts(ctx: Context) -> list[dict[str, Any]]:
    """The attempts of the delivery that is asked for."""
    attempts = await ctx.db(WebhookAttempt).list(
        filters={"delivery_id": ctx.resource_id}, sorts=["number"], limit=MOST_ATTEMPTS
    )
    return [
        {
            "number": one.number,
            "time": one.created_at,
            "ms": one.duration_ms,
            "status": one.status,
            "error": one.error,
            "answer": one.answer,
        }
        for one in attempts
    ]


class WebhookRoutes:
    """The routes of webhooks."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    def options(self) -> Mapping[type[Model], ModelOptions]:
        offer = self._webhooks.offer
        guard = EndpointsOfCaller(self._webhooks)
        headless = offer is None or not offer.routes
        return {
            WebhookEndpoint: ModelOptions(middleware={"auth": guard}, headless=headless),
            WebhookDelivery: ModelOptions(
                middleware={"auth": guard, "response": add_attempts}, headless=headless
            ),
        }

    def replace_routes(self, routes: RouteBuilder, usual: list[Endpoint]) -> list[Endpoint]:
        offer = self._webhooks.offer
        if offer is None or not offer.routes or WebhookEndpoint not in routes.runtime.stores:
            return usual
        others = [e for e in usual if e.model is None or e.model.cls not in _PATHS]
        reading = [
            _rename(e)
            for e in usual
            if e.model is not None
            and e.model.cls in _PATHS
            and e.operation in (Operation.LIST, Operation.READ, Operation.HEAD)
        ]
        own = list(_Endpoints(self._webhooks, routes).public())
        on_collections = [e for e in own if not e.path.count("{id}/")]
        return [*others, *reading, *own, *routes.options([*reading, *on_collections])]

    def private_endpoints(self, routes: RouteBuilder) -> dict[str, Endpoint]:
        """What operators do in the panel, by the keys of commands; and the attempts of a delivery."""
        return _Endpoints(self._webhooks, routes).private()


def _rename(endpoint: Endpoint) -> Endpoint:
    """The reading route on the path that clients know."""
    assert endpoint.model is not None
    table, path = _PATHS[endpoint.model.cls]
    renamed_endpoint = replace(endpoint, path=endpoint.path.replace(f"/{table}", path, 1))
    if endpoint.model.cls is WebhookDelivery and endpoint.operation is Operation.READ:
        return replace(renamed_endpoint, about=GET_DELIVERY)
    return rename_route(table, path.removeprefix("/"), renamed_endpoint)


class _Endpoints:
    """What clients do with endpoints and deliveries."""

    def __init__(self, webhooks: Webhooks, routes: RouteBuilder) -> None:
        self._webhooks = webhooks
        self._routes = routes
        self._stores = {model: routes.runtime.stores[model] for model in _PATHS}

    def public(self) -> Iterator[Endpoint]:
        """The routes that clients have beside those that read."""
        one = ENDPOINTS + "/{id}"
        create, update, delete = Operation.CREATE, Operation.UPDATE, Operation.DELETE
        yield self._route("POST", ENDPOINTS, create, self._create, 201, CREATE)
        yield self._route("PATCH", one, update, self._update, 200, UPDATE)
        yield self._route("DELETE", one, delete, self._delete, 204, DELETE)
        yield self._route("POST", f"{one}/rotate", update, self._rotate, 200, ROTATE)
        for noun in (ENDPOINT, DELIVERY):
            yield from (self._command(command) for command in commands_of(noun) if command.key in _DOCS)

    def private(self) -> dict[str, Endpoint]:
        """The commands of operators, and what a delivery came to."""
        commands = {one.key: self._command(one) for noun in (ENDPOINT, DELIVERY) for one in commands_of(noun)}
        path, docs = DELIVERIES + "/{id}/attempts", RouteDocs(hidden=True)
        attempts = self._route("GET", path, Operation.READ, self._attempts, 200, docs, WebhookDelivery)
        return {**commands, "delivery.attempts": attempts}

    def _command(self, command: Command) -> Endpoint:
        acts: dict[str, Default] = {
            "endpoint.enable": self._enable,
            "endpoint.disable": self._disable,
            "endpoint.test": self._test,
            "endpoint.recover": self._recover,
            "endpoint.replay": self._replay,
            "delivery.resend": self._resend,
        }
        docs = _DOCS.get(command.key, RouteDocs(hidden=True))
        path, model = _PLACES[command.noun]
        path = f"{path}/{{id}}/{command.path}"
        return self._route("POST", path, Operation.UPDATE, acts[command.key], docs.status, docs, model)

    def _route(
        self,
        method: str,
        path: str,
        operation: Operation,
        act: Default,
        status: int,
        about: RouteDocs,
        model: type[Model] = WebhookEndpoint,
    ) -> Endpoint:
        def respond(ctx: Context) -> None:
            if ctx.response is None:
                ctx.response = Response(status, None if status == 204 else ctx.result)

        return self._routes.endpoint(
            method,
            path,
            operation,
            model=self._stores[model].meta,
            defaults={"deserialize": _read_nothing, "validate": _read_nothing, "db": act},
            respond=respond,
            about=about,
        )

    # -- endpoints

    async def _create(self, ctx: Context) -> None:
        webhooks = self._webhooks
        assert webhooks.offer is not None
        body: NewEndpoint = await ctx.bind_json(NewEndpoint)
        _refuse(webhooks.problems_of(body.url, body.patterns) + _header_details(body.headers))
        auth, id = require_identity(ctx), new_id()
        secret, public_key = new_key(body.signing)
        async with ctx.transaction() as tx:
            await webhooks.store.lock_owner(tx, auth.tenant_id or f"/{auth.user_id}")
            count = await webhooks.store.count(tx, auth.tenant_id or None, auth.user_id)
            if count >= webhooks.offer.max_endpoints:
                message = f"there are {count} endpoints, and no more are allowed"
                raise ValidationFailed(message, [{"field": "url", "code": "too_many", "message": message}])
            await webhooks.store.add(
                tx,
                StoredEndpoint(
                    id,
                    body.url,
                    tuple(body.patterns),
                    body.format,
                    body.ordering,
                    body.signing,
                    self._sealed_headers(body.headers, id),
                    body.timeout,
                    EndpointStatus.ENABLED,
                    webhooks.seal_text(secret, id),
                    None,
                    None,
                    auth.user_id,
                    auth.tenant_id or None,
                    False,
                ),
                body.description,
                public_key,
                self._webhooks.now(),
            )
        secrets = {"public_key": public_key} if public_key else {"secret": secret}
        ctx.result = {**await self._show(id), **secrets}

    def _sealed_headers(self, headers: Mapping[str, str] | None, id: str) -> str | None:
        return self._webhooks.seal_text(encode_plain(dict(headers)), id) if headers else None

    async def _update(self, ctx: Context) -> None:
        body: EndpointChange = await ctx.bind_json(EndpointChange)
        changes = {name: getattr(body, name) for name in body.model_fields_set}
        nulls = [name for name, value in changes.items() if value is None and name not in _NULLABLE]
        details = [{"field": name, "message": f"{name} cannot be null"} for name in nulls]
        _refuse(
            details
            + self._webhooks.problems_of(changes.get("url"), changes.get("patterns"))
            + _header_details(changes.get("headers"))
        )
        row = await self._own(ctx)
        if "headers" in changes:
            changes["headers"] = self._sealed_headers(changes["headers"], row.id)
        status, now = changes.pop("status", None), self._webhooks.now()
        async with ctx.transaction() as tx:
            if changes:
                # Who says where it leads answers for it: nobody reads with the eyes of a colleague.
                changes["actor_id"] = require_identity(ctx).user_id
                await self._webhooks.store.change(tx, row.id, changes, now)
            if status == EndpointStatus.DISABLED:
                await self._webhooks.store.disable(tx, row.id, BY_HAND, now)
            elif status == EndpointStatus.ENABLED:
                await self._webhooks.store.enable(tx, row.id, now)
        ctx.result = await self._show(row.id)

    async def _delete(self, ctx: Context) -> None:
        row = await self._own(ctx)
        async with ctx.transaction() as tx:
            await self._webhooks.store.forget_deliveries(tx, row.id)
            await self._webhooks.store.remove(tx, row.id)
        ctx.deleted = True

    async def _rotate(self, ctx: Context) -> None:
        row = await self._own(ctx)
        async with ctx.transaction() as tx:
            secret, public_key = await self._webhooks.rotate(tx, row)
        secrets = {"public_key": public_key} if public_key else {"secret": secret}
        ctx.result = {**await self._show(row.id), **secrets}

    async def _test(self, ctx: Context) -> None:
        row = await self._find_reached(ctx)
        endpoint = (
            await self._webhooks.find_endpoint(row.id)
            if row.is_declared
            else self._webhooks.open_endpoint(row)
        )
        if endpoint is None:
            raise Conflict("the code of this endpoint is not in this process")
        outcome = await self._webhooks.test(endpoint)
        ms = round(outcome.duration.total_seconds() * 1000)
        ctx.result = {"status": outcome.status, "error": outcome.error, "ms": ms}

    async def _enable(self, ctx: Context) -> None:
        row = await self._find_reached(ctx)
        await self._webhooks.enable_endpoint(row.id)
        ctx.result = await self._show(row.id)

    async def _disable(self, ctx: Context) -> None:
        row = await self._find_reached(ctx)
        await self._webhooks.disable_endpoint(row.id)
        ctx.result = await self._show(row.id)

    async def _recover(self, ctx: Context) -> None:
        body: Since = await ctx.bind_json(Since)
        row = await self._find_reached(ctx)
        ctx.result = {"count": await self._webhooks.recover(row.id, _aware(body.since, "since"))}

    async def _replay(self, ctx: Context) -> None:
        body: ReplaySpan = await ctx.bind_json(ReplaySpan)
        row = await self._find_reached(ctx)
        _refuse(self._pattern_problems(row, body.patterns))
        until = None if body.until is None else _aware(body.until, "until")
        since = _aware(body.since, "since")
        count = await self._webhooks.replay(row.id, since, until, body.patterns)
        ctx.result = {"count": count}

    def _pattern_problems(self, row: StoredEndpoint, patterns: Sequence[str] | None) -> list[dict[str, str]]:
        """What is wrong with patterns that narrow a replay; an endpoint of code is told what code says."""
        if not row.is_declared:
            return self._webhooks.problems_of(None, patterns)
        problems = pattern_problems(patterns) if patterns is not None else []
        return [{"field": "patterns", "code": "bad_pattern", "message": text} for text in problems]

    # -- deliveries

    async def _resend(self, ctx: Context) -> None:
        store = self._stores[WebhookDelivery]
        await store.read(ctx.resource_id, scope=ctx.forced)
        if not await self._webhooks.resend(ctx.resource_id):
            raise Conflict("the delivery waits already")
        ctx.result = {"id": ctx.resource_id, "status": "pending"}

    async def _attempts(self, ctx: Context) -> None:
        await self._stores[WebhookDelivery].read(ctx.resource_id, scope=ctx.forced)
        ctx.result = await read_attempts(ctx)

    # -- what they have in common

    async def _find_reached(self, ctx: Context) -> StoredEndpoint:
        """The endpoint, if the caller reaches it."""
        await self._stores[WebhookEndpoint].read(ctx.resource_id, scope=ctx.forced)
        row = await self._webhooks.store.find(ctx.resource_id)
        if row is None:
            raise NotFound()
        return row

    async def _own(self, ctx: Context) -> StoredEndpoint:
        """The endpoint, if the caller reaches it and code does not declare it."""
        row = await self._find_reached(ctx)
        if row.is_declared:
            raise Conflict("code declares this endpoint")
        return row

    async def _show(self, id: str) -> dict[str, Any]:
        store = self._stores[WebhookEndpoint]
        record = store.record(await store.read(id))
        return {
            f.api: getattr(record, f.name) for f in store.meta.fields if not f.secret and f.name != "secret"
        }


_NULLABLE = frozenset({"description", "headers"})


def _read_nothing(ctx: Context) -> None:
    """The body is read where it is used."""


def _header_details(headers: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"field": field, "message": text} for field, text in header_problems(headers or {})]


def _refuse(details: Sequence[dict[str, str]]) -> None:
    if details:
        raise ValidationFailed(details[0]["message"], list(details))


def _aware(moment: datetime, name: str) -> datetime:
    if moment.tzinfo is None:
        message = f"{name} has no time zone"
        raise ValidationFailed(message, [{"field": name, "message": message}])
    return moment


_ONE = {200: "The endpoint as it is now."}
CREATE = RouteDocs(
    name="create_webhook_endpoint",
    summary="Make a webhook endpoint",
    description="This answer alone has the secret (or the public key) that its deliveries are signed with.",
    request=NewEndpoint,
    body_text="The endpoint to make.",
    response=WebhookEndpoint,
    status=201,
    answer_texts={201: "The endpoint, with its secret."},
    errors=(403,),
    codes=(ValidationFailed.code,),
)
UPDATE = RouteDocs(
    name="update_webhook_endpoint",
    summary="Change a webhook endpoint",
    description="What is left out stays; disabling cancels what waits.",
    request=EndpointChange,
    body_text="The fields to change, with their new values.",
    response=WebhookEndpoint,
    answer_texts=_ONE,
    errors=(403, 404, 409),
    codes=(ValidationFailed.code,),
)
DELETE = RouteDocs(
    name="delete_webhook_endpoint",
    summary="Delete a webhook endpoint",
    description="Its deliveries go with it.",
    status=204,
    answer_texts={204: "It is deleted."},
    errors=(403, 404, 409),
)
ROTATE = RouteDocs(
    name="rotate_webhook_endpoint",
    summary="Give a webhook endpoint a new secret",
    description="The new secret (or public key) is shown once; the old one signs along for a day.",
    response=WebhookEndpoint,
    answer_texts={200: "The endpoint, with its new secret."},
    errors=(403, 404, 409),
)
TEST = RouteDocs(
    name="test_webhook_endpoint",
    summary="Send a ping to a webhook endpoint",
    description="Sends `webhook.ping` and waits for what comes back.",
    response=TestAnswer,
    answer_texts={200: "What came back."},
    errors=(403, 404, 409),
)
ENABLE = RouteDocs(
    name="enable_webhook_endpoint",
    summary="Enable a webhook endpoint again",
    description="It is told of events from now on.",
    response=WebhookEndpoint,
    answer_texts=_ONE,
    errors=(403, 404),
)
RECOVER = RouteDocs(
    name="recover_webhook_endpoint",
    summary="Send failed and cancelled deliveries again",
    description="Those that were made since the time in the body.",
    request=Since,
    body_text="From when on.",
    response=Count,
    status=202,
    answer_texts={202: "How many are sent again."},
    errors=(403, 404),
    codes=(ValidationFailed.code,),
)
REPLAY = RouteDocs(
    name="replay_webhook_endpoint",
    summary="Deliver events again",
    description="Everything that is kept of the feed and meant for the endpoint, with the ids it had.",
    request=ReplaySpan,
    body_text="From when on, until when, and which types.",
    response=Count,
    status=202,
    answer_texts={202: "How many events are judged and delivered."},
    errors=(403, 404),
    codes=(ValidationFailed.code,),
)
RESEND = RouteDocs(
    name="resend_webhook_delivery",
    summary="Send a delivery again",
    description="It has all its attempts again.",
    response=dict[str, str],
    status=202,
    answer_texts={202: "It waits."},
    errors=(403, 404, 409),
)
_ATTEMPT = {
    "type": "object",
    "properties": {
        "number": {"type": "integer"},
        "time": {"type": "string", "format": "date-time"},
        "ms": {"type": "integer", "description": "How long it took."},
        "status": {"type": ["integer", "null"], "description": "Of the answer; null where none came."},
        "error": {"type": ["string", "null"]},
        "answer": {"type": ["string", "null"], "description": "Its first kilobyte."},
    },
}
GET_DELIVERY = RouteDocs(
    name="get_webhook_delivery",
    summary="Get one webhook delivery",
    description="With its attempts, unless `select` asks for some fields alone.",
    grammar=("select",),
    data_schema={
        "allOf": [
            {"$ref": "#/components/schemas/WebhookDelivery"},
            {"type": "object", "properties": {"attempts": {"type": "array", "items": _ATTEMPT}}},
        ]
    },
    answer_texts={200: "The delivery."},
    errors=(403, 404),
)
_PLACES: dict[Noun, tuple[str, type[Model]]] = {
    ENDPOINT: (ENDPOINTS, WebhookEndpoint),
    DELIVERY: (DELIVERIES, WebhookDelivery),
}
# The words of the commands that clients have, too; the others are on no path.
_DOCS = {
    "endpoint.test": TEST,
    "endpoint.enable": ENABLE,
    "endpoint.recover": RECOVER,
    "endpoint.replay": REPLAY,
    "delivery.resend": RESEND,
}
