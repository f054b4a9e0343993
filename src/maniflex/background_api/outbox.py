"""The outbox over REST, for operators: what waits and what was given up, and another chance.

Messages are written by code alone, in the transaction of what they tell about; here they are read,
and a dead one is sent on its way again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from maniflex.background.commands import MESSAGE, Command, commands_of
from maniflex.background.feed.api import Events
from maniflex.background.feed.model import EventGroup, LoggedEvent
from maniflex.background.jobs.status import StatusModel
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.runs.api import Work
from maniflex.background.runs.model import WorkflowEvent, WorkflowRun
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.background_api.feed import FeedRoutes
from maniflex.background_api.part_routes import (
    AdminsOnly,
    command_endpoint,
    refuse_foreign_scopes,
    rename_route,
)
from maniflex.background_api.runs import OperatorRuns, RunRoutes
from maniflex.background_api.schedules import ScheduleRoutes
from maniflex.errors import Conflict
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.model_routes import browse_endpoints
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.routes import Endpoint, RouteBuilder
from maniflex.pipeline.steps.response import Respond

if TYPE_CHECKING:
    from maniflex.background.webhooks.api import Webhooks


class OutboxRoutes:
    """The routes of the outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def options(self) -> Mapping[type[Model], ModelOptions]:
        guard = AdminsOnly(lambda: self._outbox.admin_role)
        return {OutboxMessage: ModelOptions(middleware={"auth": guard}, headless=not self._outbox.routes)}

    def replace_routes(self, routes: RouteBuilder, usual: list[Endpoint]) -> list[Endpoint]:
        store = routes.runtime.stores.get(OutboxMessage)
        if store is None or not self._outbox.routes:
            return usual
        others = [e for e in usual if e.model is not store.meta]
        reading = [e for e in usual if e.model is store.meta and e.operation in Operation.READS]
        own = [rename_route("outbox_event", "outbox_events", e) for e in (*reading, *routes.options(reading))]
        return [*others, *own, *self.private_endpoints(routes).values()]

    def private_endpoints(self, routes: RouteBuilder) -> dict[str, Endpoint]:
        """The commands, which operators have in the panel on no path."""
        serializer = routes.runtime.serializers[OutboxMessage]
        respond = Respond(serializer, routes.computed.get(OutboxMessage, ()), etags=False)
        return {
            one.key: command_endpoint(
                routes, one, OutboxMessage, {"db": self._change(one)}, respond.answer_record
            )
            for one in commands_of(MESSAGE)
        }

    def _change(self, command: Command) -> Default:
        async def change(ctx: Context) -> None:
            store = ctx.runtime.stores[OutboxMessage]
            async with ctx.transaction():
                before = store.record(await store.read(ctx.resource_id, scope=ctx.forced))
                if not await command.call(self._outbox, ctx.resource_id):
                    states = ", ".join(command.states)
                    raise Conflict(f"the message is {before.status}, not {states}")  # type: ignore[attr-defined]  # its record
                ctx.row = await store.read(ctx.resource_id)

        return change


# All requests of the operations panel, by name: lists, counts and commands about durable work.
#
# They are on no path, whether or not the routes of a part are: code of this process answers them, behind
# the same guards as the routes that clients have.


_LISTS: dict[type[Model], str] = {
    WorkflowRun: "run",
    WorkflowEvent: "event",
    OutboxMessage: "message",
    Schedule: "schedule",
    ScheduleFiring: "firing",
    StatusModel: "job",
    LoggedEvent: "logged_event",
    EventGroup: "group",
}


def operator_endpoints(
    work: Work,
    outbox: Outbox,
    schedules: Schedules,
    events: Events,
    webhooks: Webhooks | None,
    routes: RouteBuilder,
    tables: Collection[type[Model]],
) -> dict[str, Endpoint]:
    """The endpoints of the parts that are in use, such as `run.page` and `run.cancel`."""
    stores, lists = routes.runtime.stores, dict(_LISTS)
    endpoints: dict[str, Endpoint] = {}
    if webhooks is not None:
        endpoints |= _webhook_endpoints(webhooks, routes, lists)
    for model, name in lists.items():
        if model in stores:
            endpoints[f"{name}.page"], endpoints[f"{name}.count"] = browse_endpoints(
                routes, routes.runtime.models[model]
            )
    if WorkflowRun in stores:
        endpoints |= RunRoutes(work).private_endpoints(routes) | OperatorRuns(work, routes).endpoints()
    if OutboxMessage in stores:
        endpoints |= OutboxRoutes(outbox).private_endpoints(routes)
    if Schedule in stores:
        endpoints |= ScheduleRoutes(schedules).private_endpoints(routes)
    if EventGroup in stores:
        endpoints |= FeedRoutes(events).private_endpoints(routes)
    return dict(zip(endpoints, refuse_foreign_scopes(endpoints.values(), tables), strict=True))


def _webhook_endpoints(
    webhooks: Webhooks, routes: RouteBuilder, lists: dict[type[Model], str]
) -> dict[str, Endpoint]:
    """The commands on webhooks, whose modules are loaded only where they are used; their lists are noted."""
    from maniflex.background.webhooks.model import WebhookDelivery, WebhookEndpoint
    from maniflex.background_api.webhooks import WebhookRoutes

    lists |= {WebhookEndpoint: "endpoint", WebhookDelivery: "delivery"}
    return WebhookRoutes(webhooks).private_endpoints(routes)
