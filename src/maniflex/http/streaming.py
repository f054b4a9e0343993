"""Send an answer while it is being made.

Until its first bytes are there, a failure is answered like any other. After that an answer ends
whole or is broken off: the connection closes without the last chunk, so no client takes a part for the whole.
A client that goes away, or takes nothing for `STALLED`, ends the making too; it is sent small pieces,
so that one who reads slowly is seen to read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, MutableMapping
from contextlib import aclosing
from typing import Any

from maniflex._fence import Fence
from maniflex.pipeline.answer import failure
from maniflex.pipeline.context import AsgiScope, Context, Receive
from maniflex.pipeline.exchange import App
from maniflex.pipeline.exchange import Send as Send
from maniflex.pipeline.response import Response
from maniflex.pipeline.watch import ClientGone

STALLED = 60.0  # seconds
PIECE = 64 * 1024
TURN = 256 * 1024  # bytes after which others have their turn


class Aborted(Exception):
    """Closes the connection of an answer that cannot be completed; the cause is in the log already."""


async def deliver(
    stream: AsyncGenerator[bytes, None], start: MutableMapping[str, Any], ctx: Context, send: Send
) -> Response | None:
    """Send the whole stream; or give back the answer to send instead, when nothing was sent yet."""
    reader = _Recipient(send)
    pump = asyncio.create_task(_pump(stream, start, ctx, reader))
    reader.watch(pump)
    departure = asyncio.create_task(_until_gone(ctx.receive))
    try:
        await asyncio.wait((pump, departure), return_when=asyncio.FIRST_COMPLETED)
    finally:
        reader.leave()
        for task in (pump, departure):
            task.cancel()
        await asyncio.wait((pump, departure))
    if pump.cancelled():
        ctx.logger.info("the client went away while the answer was being sent")
        return None
    return pump.result()


async def _pump(
    stream: AsyncGenerator[bytes, None], start: MutableMapping[str, Any], ctx: Context, reader: _Recipient
) -> Response | None:
    is_started = False
    sent = 0
    fence = Fence()
    try:
        async with aclosing(stream):
            chunk = await anext(stream, None)
            is_started = True
            await reader.send(start)
            while chunk is not None:
                for piece in _pieces(chunk):
                    await reader.send({"type": "http.response.body", "body": piece, "more_body": True})
                sent += len(chunk)
                # Neither the maker nor the server may have to wait, and a client that left must be noticed.
                if len(chunk) < PIECE or sent >= TURN:
                    sent = 0
                    await asyncio.sleep(0)
                chunk = await anext(stream, None)
    except ClientGone:
        return None
    except BaseException as error:
        failed = fence.absorb(error)
        if not is_started:
            return failure(ctx, failed)
        ctx.logger.error("an answer was broken off: %r", error, exc_info=error)
        raise Aborted("an answer was broken off") from None
    await reader.send({"type": "http.response.body", "body": b""})
    return None


class FencedChunks:
    """The chunks of an answer of Starlette, each time anew: in its tasks `SystemExit` would end the loop."""

    def __init__(self, chunks: AsyncIterable[Any]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        fence, chunks = Fence(), None
        try:
            while True:
                try:
                    chunks = aiter(self._chunks) if chunks is None else chunks
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except BaseException as error:
                    failed = fence.absorb(error)
                    if failed is error:
                        raise
                    raise failed from error
                yield chunk
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()


async def send_fenced(response: App, scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Send an answer of Starlette and do the work it has for afterwards; the task may be one of a layer."""
    fence = Fence()
    try:
        await response(scope, receive, send)
    except Exception:
        raise
    except BaseException as error:
        raise fence.absorb(error) from error


def _pieces(chunk: bytes) -> Iterable[bytes]:
    if len(chunk) <= PIECE:
        return (chunk,)
    return (chunk[start : start + PIECE] for start in range(0, len(chunk), PIECE))


class _Recipient:
    """The client of one answer. One timer serves all pieces: one for each would cost more than sending it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None  # since when a piece waits to be taken
        self._stalled = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, pump: asyncio.Task[Any]) -> None:
        """End the task when the client takes nothing for too long."""
        since, now = self._since, self._loop.time()
        due = now + STALLED if since is None else since + STALLED
        if since is not None and due <= now:
            self._stalled = True
            pump.cancel()
            return
        self._timer = self._loop.call_at(due, self.watch, pump)

    def leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self._since = self._loop.time()
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if self._stalled:
                raise TimeoutError("the client reads nothing") from None
            raise
        except OSError as error:  # some servers tell by this that the client is gone
            raise ClientGone("the client disconnected") from error
        self._since = None


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def quiet_aborts(name: str = "uvicorn.error") -> None:
    """Keep the server from reporting as a crash what we have logged and broken off on purpose."""
    logging.getLogger(name).addFilter(_no_abort)


def _no_abort(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], Aborted))
