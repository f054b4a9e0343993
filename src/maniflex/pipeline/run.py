"""Run one request through its endpoint. Whatever happens inside, a `Response` comes out."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

from maniflex._caller import asking
from maniflex.errors import ExportBusy, RequestError, Timeout
from maniflex.pipeline.chain import Handler
from maniflex.pipeline.context import Context
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.read_body import ClientGone
from maniflex.pipeline.response import Response, error_response, status_of


async def run(endpoint: Endpoint, ctx: Context, timeout: float = 0) -> Any:
    """The answer of the endpoint; only a client that went away gets none."""
    deadline = asyncio.get_running_loop().time() + timeout if timeout else 0.0
    before = asking.set(ctx)
    try:
        await _step(endpoint.main, ctx, deadline)
        # A refusal is sent even when the time is up; its middleware still has to see it.
        await _step(endpoint.respond, ctx, deadline if ctx.response is None else 0.0)
    finally:
        asking.reset(before)
    return ctx.response if ctx.response is not None else Response(204)


async def _step(chain: Handler, ctx: Context, deadline: float) -> None:
    """Run one of the two chains; whatever it raises becomes the answer."""
    try:
        if deadline:
            await _until(deadline, chain, ctx)
        else:
            await chain(ctx)
        if ctx._after is not None and (ctx.response is None or status_of(ctx.response) < 400):
            await ctx.run_after()
    except RequestError as error:
        ctx.response = _refusal(ctx, error)
    except ClientGone:
        raise
    except Exception as error:
        ctx.response = _panic(ctx, error)


async def _until(deadline: float, chain: Handler, ctx: Context) -> None:
    try:
        async with asyncio.timeout_at(deadline) as limit:
            await chain(ctx)
    except TimeoutError:
        if not limit.expired():
            raise
        raise Timeout() from None


def failure(ctx: Context, error: Exception) -> Response:
    """The answer to an error that came up outside the steps."""
    return _refusal(ctx, error) if isinstance(error, RequestError) else _panic(ctx, error)


def _refusal(ctx: Context, error: RequestError) -> Response:
    if error.status >= 500 and not isinstance(error, ExportBusy):  # that one is a limit at work
        ctx.logger.error("%s %s: %s", error.status, error.code, error, exc_info=error)
    return error_response(error)


def _panic(ctx: Context, error: Exception) -> Response:
    """An unforeseen exception: the cause goes to the log, the client learns nothing of it."""
    text = "".join(traceback.format_exception(error))
    ctx.runtime.panic_logger.error(
        "unhandled exception in %s (request %s)\n%s",
        ctx,
        ctx.request_id,
        text,
        extra={"request_id": ctx.request_id},
    )
    return Response(500, error={"code": "PANIC", "message": "the server failed to handle the request"})
