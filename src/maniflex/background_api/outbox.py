"""The outbox over REST, for operators: what waits and what was given up, and another chance.

Messages are written by code alone, in the transaction of what they tell about; here they are read,
and a dead one is sent on its way again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background_api.part_routes import RouteBuilder, rename_route
from maniflex.background_api.reach import require_operator
from maniflex.db.store import Store
from maniflex.errors import Conflict
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.route_docs import RouteDocs
from maniflex.pipeline.steps.response import Respond

_REDRIVE = RouteDocs(
    name="redrive_outbox_event",
    summary="Deliver a dead message after all",
    description="A message that was given up waits for delivery again, with all its attempts.",
    answer_texts={200: "The message, which is pending again."},
    response=OutboxMessage,
    errors=(404, 409),
)


class OutboxRoutes:
    """The routes of the outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def options(self) -> Mapping[type[Model], ModelOptions]:
        if not self._outbox.routes:
            return {OutboxMessage: ModelOptions(headless=True)}
        return {OutboxMessage: ModelOptions(middleware={"auth": self._admins_only})}

    def replace_routes(self, routes: RouteBuilder, usual: list[Endpoint]) -> list[Endpoint]:
        store = routes.runtime.stores.get(OutboxMessage)
        if store is None or not self._outbox.routes:
            return usual
        others = [e for e in usual if e.model is not store.meta]
        reading = [e for e in usual if e.model is store.meta and e.operation in Operation.READS]
        own = [
            rename_route("outbox_event", "outbox_events", e)
            for e in (*reading, *self._options(routes, store))
        ]
        return [*others, *own, self._redrive_endpoint(routes, store)]

    async def _admins_only(self, ctx: Context, next: Next) -> None:
        require_operator(ctx, self._outbox.admin_role)
        await next()

    def _options(self, routes: RouteBuilder, store: Store) -> Iterator[Endpoint]:
        table = f"/{store.meta.table}"
        for path in (table, f"{table}/{{id}}"):
            yield routes.options(store.meta, path, "GET, HEAD, OPTIONS")

    def _redrive_endpoint(self, routes: RouteBuilder, store: Store) -> Endpoint:
        serializer, computed_fields = (
            routes.runtime.serializers[OutboxMessage],
            routes.computed.get(OutboxMessage, ()),
        )
        respond = Respond(serializer, computed_fields, etags=False).answer_record
        path = f"/{store.meta.table}/{{id}}/redrive"
        steps: dict[str, Default] = {"db": self._redrive}
        return routes.endpoint(store.meta, "POST", path, Operation.UPDATE, steps, respond, _REDRIVE)

    async def _redrive(self, ctx: Context) -> None:
        store = ctx.runtime.stores[OutboxMessage]
        async with ctx.transaction():
            before = store.record(await store.read(ctx.resource_id, scope=ctx.forced))
            if not await self._outbox.redrive(ctx.resource_id):
                raise Conflict(f"the message is {before.status}, not dead")  # type: ignore[attr-defined]  # its record
            ctx.row = await store.read(ctx.resource_id)
