"""The outbox over REST, for admins: what waits and what was given up at `/outbox_event`, and another chance.

Messages are written by code alone, in the transaction of what they tell about; here they are read,
and a dead one is sent on its way again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.outbox.outbox import Outbox
from maniflex.control.face import Site
from maniflex.control.guard import identified
from maniflex.errors import Conflict, Forbidden
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta, ModelOptions
from maniflex.pipeline.about import About
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import MAIN, TRIMMED, Endpoint
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response
from maniflex.pipeline.steps.response import Respond

_REDRIVE = About(
    name="redrive_outbox_message",
    summary="Deliver a dead message after all",
    description="It gets all its attempts again.",
    response=OutboxMessage,
    errors=(404, 409),
)
_READING = "GET, HEAD, OPTIONS"


class OutboxFace:
    """The routes of the outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def options(self) -> Mapping[type[Model], ModelOptions]:
        if not self._outbox.routes:
            return {OutboxMessage: ModelOptions(headless=True)}
        return {OutboxMessage: ModelOptions(middleware={"auth": self._admins_only})}

    def mounted(self, site: Site, usual: list[Endpoint]) -> list[Endpoint]:
        store = site.runtime.stores.get(OutboxMessage)
        if store is None or not self._outbox.routes:
            return usual
        kept = [e for e in usual if e.model is not store.meta or e.operation in Operation.READS]
        return [*kept, *self._endpoints(site, store.meta)]

    async def _admins_only(self, ctx: Context, next: Next) -> None:
        if ctx.operation is not Operation.OPTIONS:
            identified(ctx)
            if not ctx.has_role(self._outbox.admin_role):
                raise Forbidden()
        await next()

    def _endpoints(self, site: Site, model: ModelMeta) -> Iterator[Endpoint]:
        table, build = f"/{model.table}", site.composer.steps
        for path in (table, f"{table}/{{id}}"):
            item = path != table
            main = build(TRIMMED, {}, model, Operation.OPTIONS, item=item)
            answer = build(("response",), {"response": _methods}, model, Operation.OPTIONS, item=item)
            yield Endpoint("OPTIONS", path, Operation.OPTIONS, model, main, answer, model.name)
        respond = Respond(
            site.runtime.wires[OutboxMessage], site.computed.get(OutboxMessage, ()), etags=False
        )
        main = build(MAIN, {"db": self._redrive}, model, Operation.UPDATE, item=True)
        answer = build(("response",), {"response": respond.found}, model, Operation.UPDATE, item=True)
        path = f"{table}/{{id}}/redrive"
        yield Endpoint("POST", path, Operation.UPDATE, model, main, answer, model.name, _REDRIVE)

    async def _redrive(self, ctx: Context) -> None:
        store = ctx.runtime.stores[OutboxMessage]
        async with ctx.transaction():
            before = store.record(await store.read(ctx.resource_id, scope=ctx.forced))
            if not await self._outbox.redrive(ctx.resource_id):
                raise Conflict(f"the message is {before.status}, not dead")  # type: ignore[attr-defined]  # its record
            ctx.row = await store.read(ctx.resource_id)


def _methods(ctx: Context) -> None:
    if ctx.response is None:
        ctx.response = Response(204, headers={"allow": _READING})
