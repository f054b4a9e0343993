"""The request as Starlette shows it, over the channel as it will be when it is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any
from weakref import ref

from starlette.datastructures import FormData
from starlette.requests import Request

from maniflex.pipeline.exchange import AsgiScope, Exchange, Receive

if TYPE_CHECKING:
    from maniflex.model.meta import ModelMeta
    from maniflex.pipeline.context import Context


class ClientRequest(Request):
    """The request of a context. What it reads of the body is kept for the steps that come later.

    Without a model (actions, the panel) the handler is the last to read: streams and forms pass by unkept.
    """

    def __init__(self, scope: AsgiScope, ctx: Context) -> None:
        super().__init__(scope, later_receive(ctx))
        self._context = ref(ctx)  # not the context itself, which has this request

    async def body(self) -> bytes:
        ctx = self._context()
        if ctx is not None and not hasattr(self, "_body"):
            self._body = await ctx.read_body()
        return await super().body()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        await self._keep()
        async for chunk in super().stream():
            yield chunk

    async def _get_form(self, **limits: Any) -> FormData:
        await self._keep()
        return await super()._get_form(**limits)

    async def _keep(self) -> None:
        ctx = self._context()
        model: ModelMeta | None = None if ctx is None else ctx.model
        if model is not None and not self._stream_consumed:
            await self.body()


def later_receive(ctx: Exchange) -> Receive:
    """`ctx.receive` as it will be: the watch for a client that leaves puts another in its place."""
    now, later = ctx.receive, ref(ctx)

    async def receive() -> Any:
        ctx = later()
        if ctx is None:
            return await now()
        ctx.body_asked = True
        message = await ctx.receive()
        ctx.body_complete = not message.get("more_body")
        return message

    return receive
