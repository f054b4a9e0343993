"""Send an answer while it is being made.

Until its first bytes are there, a failure is answered like any other. After that an answer ends
whole or is broken off: the connection closes without the last chunk, so no client takes a part for the whole.
A client that goes away, or takes nothing for `STALLED`, ends the making too; it is sent small pieces,
so that one who reads slowly is seen to read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, MutableMapping
from contextlib import aclosing
from typing import Any

from maniflex.pipeline.answer import failure
from maniflex.pipeline.context import Context, Receive
from maniflex.pipeline.exchange import Send as Send
from maniflex.pipeline.response import Response
from maniflex.pipeline.watch import ClientGone

STALLED = 60.0  # seconds
PIECE = 64 * 1024


class Aborted(Exception):
    """Closes the connection of an answer that cannot be completed; the cause is in the log already."""


async def deliver(
    stream: AsyncGenerator[bytes, None], start: MutableMapping[str, Any], ctx: Context, send: Send
) -> Response | None:
    """Send the whole stream; or give back the answer to send instead, when nothing was sent yet."""
    pump = asyncio.create_task(_pump(stream, start, ctx, send))
    departure = asyncio.create_task(_until_gone(ctx.receive))
    try:
        await asyncio.wait((pump, departure), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (pump, departure):
            task.cancel()
        await asyncio.wait((pump, departure))
    if pump.cancelled():
        ctx.logger.info("the client went away while the answer was being sent")
        return None
    return pump.result()


async def _pump(
    stream: AsyncGenerator[bytes, None], start: MutableMapping[str, Any], ctx: Context, send: Send
) -> Response | None:
    is_started = False
    try:
        async with aclosing(stream):
            chunk = await anext(stream, None)
            is_started = True
            await _send(send, start)
            while chunk is not None:
                for piece in _pieces(chunk):
                    await _send(send, {"type": "http.response.body", "body": piece, "more_body": True})
                # Neither the maker nor the server may have to wait, and a client that left must be noticed.
                await asyncio.sleep(0)
                chunk = await anext(stream, None)
    except ClientGone:
        return None
    except Exception as error:
        if not is_started:
            return failure(ctx, error)
        ctx.logger.error("an answer was broken off: %r", error, exc_info=error)
        raise Aborted("an answer was broken off") from None
    await _send(send, {"type": "http.response.body", "body": b""})
    return None


def _pieces(chunk: bytes) -> Iterable[bytes]:
    if len(chunk) <= PIECE:
        return (chunk,)
    return (chunk[start : start + PIECE] for start in range(0, len(chunk), PIECE))


async def _send(send: Send, message: MutableMapping[str, Any]) -> None:
    try:
        async with asyncio.timeout(STALLED):
            await send(message)
    except TimeoutError:
        raise
    except OSError as error:  # some servers tell by this that the client is gone
        raise ClientGone("the client disconnected") from error


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def quiet_aborts(name: str = "uvicorn.error") -> None:
    """Keep the server from reporting as a crash what we have logged and broken off on purpose."""
    logging.getLogger(name).addFilter(_no_abort)


def _no_abort(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], Aborted))
