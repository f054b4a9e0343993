"""End requests that take too long, and reads whose client has left; note the writes whose client has.

One timer looks after all requests of a server, so a request that is answered soon costs an entry in
a dict. Only one that is still running when the timer looks gets a task that waits for its client
to leave; what it finds ends the request by cancelling it, as `asyncio.timeout` would.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import Context as ContextVars
from time import perf_counter
from typing import TYPE_CHECKING, Any

from maniflex._logging import SlowLog
from maniflex.errors import RequestError, Timeout

if TYPE_CHECKING:
    from maniflex.pipeline.exchange import Exchange

LOOK_EVERY = 0.1  # seconds
_READING = ("GET", "HEAD")


class ClientGone(RequestError):
    """The client went away; nothing is sent, and 499 is what the log and middleware see of it."""

    status, code, message = 499, "CLIENT_GONE", "the client went away"


class WatchedRequest:
    """A request that the timer has seen, so that it takes some time."""

    def __init__(self, ctx: Exchange, task: asyncio.Task[Any] | None, now: float) -> None:
        self._ctx = ctx
        self._task = task
        self.since = now
        self.began = ctx.began  # or when its upload last moved, by `perf_counter`
        self.client_left = False  # while a write goes on
        self._ending: RequestError | None = None
        self._cancelling = 0
        self._listening: asyncio.Task[None] | None = None

    def end(self, reason: RequestError) -> None:
        """Cancel the request; `take_ending` then says why."""
        if self._ctx.settled or self._ending is not None or self._task is None:
            return
        self._ending = reason
        self._cancelling = self._task.cancelling()
        self._task.cancel()

    def take_ending(self) -> RequestError | None:
        """Why the watch ended the request, once; None when it did not or others cancelled the task too."""
        reason, self._ending = self._ending, None
        if reason is None or self._task is None:
            return None
        return reason if self._task.uncancel() <= self._cancelling else None

    def listen(self) -> None:
        """Wait for the client to leave, which ends a read. A write is let finish and only noted."""
        if self._listening is not None:
            return
        if (has_body := _has_body(self._ctx)) and not self._ctx.body_complete:
            return  # the messages of the body are for those who read it
        is_read = self._ctx.scope["method"] in _READING and not has_body
        self._listening = asyncio.get_running_loop().create_task(self._listen(is_read))

    def stop_listening(self) -> None:
        """Stop waiting for the client to leave: the request is answered."""
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None  # the task has it too; a circle would wait for the garbage collector
        self._ctx.watched = None  # so would this

    async def _listen(self, is_read: bool) -> None:
        receive = self._ctx.receive
        empty: dict[str, Any] | None = {"type": "http.request", "body": b"", "more_body": False}

        async def receive_again() -> Any:
            # The empty body is taken from the server only once, and code of the request may ask for it.
            nonlocal empty
            message, empty = empty, None
            return message or await receive()

        self._ctx.receive = receive_again
        with suppress(Exception):  # a server that cannot tell does not fail the request
            message = await receive()
            if message["type"] == "http.request":
                message = await receive()
            if message["type"] == "http.disconnect" and is_read:
                self.end(ClientGone())
            elif message["type"] == "http.disconnect":
                self.client_left = True


class RequestWatch:
    """Watches the requests of one server; each may take `timeout` seconds, 0 for any time."""

    def __init__(self, timeout: float, slow_after: float = 0, slow_log: SlowLog | None = None) -> None:
        self._timeout = timeout
        self._slow_after = slow_after
        self._slow_log = slow_log if slow_after else None
        # Often enough to see every request that is slow.
        self._every = min(LOOK_EVERY, slow_after / 2) if slow_after else LOOK_EVERY
        self.requests: dict[Exchange, asyncio.Task[Any] | None] = {}  # and their tasks; the oldest first
        self.timer: asyncio.TimerHandle | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Remember the loop; asking for it takes longer than all the rest that a request pays for here."""
        self.loop, self.timer = asyncio.get_running_loop(), None
        self.requests.clear()

    async def let_undo(self, seconds: float) -> None:
        """Wait for cancelled requests to undo what they did."""
        cancelled = [task for task in self.requests.values() if task is not None and task.cancelling()]
        if cancelled:
            await asyncio.wait(cancelled, timeout=seconds)

    def begin(self) -> None:
        """A request has begun: see to it that the timer runs."""
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
        self._look_after(min(self._every, self._timeout or self._every))

    def note_end(self, ctx: Exchange, request: WatchedRequest) -> None:
        """A request that took some time is over; log it if it was slow."""
        request.stop_listening()
        seconds = perf_counter() - request.began
        if self._slow_log is not None and seconds >= self._slow_after and ctx.route_path:
            self._slow_log.note("slow request", f"{ctx.scope['method']} {ctx.route_path}", seconds)

    def _look_after(self, seconds: float) -> None:
        assert self.loop is not None
        # Without the context of whichever request happened to start it.
        self.timer = self.loop.call_later(seconds, self._look, context=ContextVars())

    def _look(self) -> None:
        assert self.loop is not None
        now, wait = self.loop.time(), self._every
        for ctx, task in self.requests.items():
            request = ctx.watched
            if request is None:  # it came after the last look, so it is not old enough for anything
                ctx.watched = WatchedRequest(ctx, task, now)
                wait = min(wait, self._timeout or wait)
                continue
            if ctx.is_uploading:  # it may take as long as it moves, which its reader sees to
                request.since, request.began = now, perf_counter()
                continue
            age = now - request.since
            if self._timeout and age >= self._timeout:
                request.end(Timeout(limit=f"query_timeout of {self._timeout:g} s"))
                continue
            if self._timeout:
                wait = min(wait, self._timeout - age)
            request.listen()
        if self.requests:
            self._look_after(wait)
        else:
            self.timer = None


def _has_body(ctx: Exchange) -> bool:
    return any(
        (name == b"content-length" and value != b"0") or name == b"transfer-encoding"
        for name, value in ctx.scope["headers"]
    )
