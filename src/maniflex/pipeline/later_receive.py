"""The channel of a request as it will be when it is asked."""

from __future__ import annotations

from typing import Any
from weakref import ref

from maniflex.pipeline.exchange import Exchange, Receive


def later_receive(ctx: Exchange) -> Receive:
    """`ctx.receive` as it will be: the watch for a client that leaves puts another in its place."""
    now, later = ctx.receive, ref(ctx)  # not the context itself, which has what this is for

    async def receive() -> Any:
        ctx = later()
        if ctx is None:
            return await now()
        ctx.body_asked = True
        message = await ctx.receive()
        ctx.body_complete = not message.get("more_body")
        return message

    return receive
