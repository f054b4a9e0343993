"""The protocol of WebSocket clients: text frames with JSON, as docs/realtime/protocol.md has it.

Under our own listener frames are written at once, by the protocol of the connection (`http/websocket.py`).
Under other servers a task sends them, one after another; their framing, pings and silence are theirs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from maniflex._fence import Fence
from maniflex.errors import Abort, RequestError
from maniflex.events.patterns import pattern_problem
from maniflex.pipeline.context import AsgiScope, Receive
from maniflex.pipeline.exchange import SOCKET, Send
from maniflex.realtime.connection import LOST_PERMISSION, ClientConnection, ClientSubscription
from maniflex.realtime.fanout import Fanout, is_same
from maniflex.realtime.handshake import chosen_protocol
from maniflex.realtime.log import CannotContinue, FeedEntry
from maniflex.realtime.viewer import SeenEvent, Viewer

ABUSE, TOO_LARGE = 1008, 1009
MESSAGES = 20.0  # of a client in a second, on average
BURST = 100.0  # so many at once
MOST_LIMITED = 100  # messages that are too many, before the connection is closed
MOST_PATTERNS = 100  # of one subscription
MOST_WAITING = 64 * 1024  # bytes that wait for the task which sends them
BYE_RETRY = 2000  # milliseconds after which a client comes back
_encode = msgspec.json.Encoder().encode
log = logging.getLogger("maniflex.realtime")

Admit = Callable[[str], Awaitable[Viewer]]  # the caller of a token, on the same connection


class _Unworkable(Exception):
    """What a message is answered with; the connection stays."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class SocketConnection(ClientConnection):
    """One WebSocket client."""

    transport = "websocket"

    def __init__(self, fanout: Fanout, viewer: Viewer, admit: Admit) -> None:
        super().__init__(fanout, viewer)
        self._admit = admit
        self._numbers = 0
        self._allowance, self._allowed_at = BURST, fanout.clock.monotonic()
        self._limited = 0

    # -- frames

    def frame(self, subscription: ClientSubscription, view: SeenEvent, entry: FeedEntry) -> bytes:
        frame = view.frames.get(subscription.id)
        if frame is None:
            frame = view.keep(subscription.id, self._event_frame(subscription, view, entry))
        return frame

    def _event_frame(self, subscription: ClientSubscription, view: SeenEvent, entry: FeedEntry) -> bytes:
        head = f'{{"op":"event","subId":"{subscription.id}","cursor":"{entry.cursor}","data":'
        return self.as_frame(head.encode() + view.data + b"}")

    def resync_frame(self, subscription: ClientSubscription, cursor: str) -> bytes:
        return self.as_frame(_encode({"op": "resync", "subId": subscription.id, "cursor": cursor}))

    def beat_frame(self, cursor: str) -> bytes | None:
        if not self.subscriptions or cursor == self._told_cursor:
            return None
        self._told_cursor = cursor
        return self.as_frame(_encode({"op": "cursor", "cursor": cursor}))

    _told_cursor = ""

    def as_frame(self, text: bytes) -> bytes:
        """A text as it is handed to `send`."""
        raise NotImplementedError

    def answer(self, **values: Any) -> None:
        """Send a message of ours."""
        self.say(self.as_frame(_encode(values)))

    # -- messages of the client

    async def hear(self, text: str | bytes) -> None:
        """Work on one message of the client."""
        ref: Any = msgspec.UNSET
        try:
            self._count_message()
            message = _read(text)
            ref = message.get("ref", msgspec.UNSET)
            await self._work_on(message, {} if ref is msgspec.UNSET else {"ref": ref})
        except _Unworkable as refusal:
            self._refuse(refusal.code, str(refusal), ref)
        except Abort as refusal:
            self._refuse(refusal.code, str(refusal.message), ref)
        except RequestError as error:
            self._refuse(error.code, str(type(error).message), ref)

    def _refuse(self, code: str, message: str, ref: Any) -> None:
        values = {"op": "error", "code": code, "msg": message}
        self.answer(**values, **({} if ref is msgspec.UNSET else {"ref": ref}))

    def _count_message(self) -> None:
        """Refuse a message of a client that sends too many, and then the client."""
        now = self.fanout.clock.monotonic()
        self._allowance = min(BURST, self._allowance + (now - self._allowed_at) * MESSAGES)
        self._allowed_at = now
        if self._allowance >= 1:
            self._allowance -= 1
            return
        self._limited += 1
        if self._limited > MOST_LIMITED:
            self.kick(ABUSE, "too many messages")
        raise _Unworkable("RATE_LIMITED", "you send too many messages")

    async def _work_on(self, message: dict[str, Any], ref: dict[str, Any]) -> None:
        match message.get("op"):
            case "subscribe":
                await self._subscribe(message, ref)
            case "unsubscribe":
                id = message.get("subId")
                if not isinstance(id, str) or not self.remove(id):
                    raise _Unworkable("UNKNOWN_SUBSCRIPTION", "there is no such subscription")
                self.answer(op="unsubscribed", subId=id, **ref)
            case "ping":
                self.answer(op="pong", cursor=self.cursor, **ref)
            case "auth":
                await self._change_credentials(message, ref)
            case _:
                raise _Unworkable("UNKNOWN_OP", "op is subscribe, unsubscribe, ping or auth")

    async def _subscribe(self, message: dict[str, Any], ref: dict[str, Any]) -> None:
        patterns = _read_patterns(message.get("patterns"))
        after = message.get("after")
        if after is not None and not isinstance(after, str):
            raise _Unworkable("BAD_MESSAGE", "after is a cursor")
        self._require_room()
        types = await self.fanout.judge.grant(self.viewer, patterns)
        position, is_gone = self.fanout.log.last, False
        if after is not None:
            try:
                position = await self.fanout.log.locate(after)
            except CannotContinue:
                is_gone = True
        if self.is_closed:
            return
        self._require_room()
        self._numbers += 1
        subscription = ClientSubscription(self, f"s_{self._numbers}", patterns, position)
        cursor = self.fanout.log.cursor(self.fanout.log.last if is_gone else position)
        self.answer(op="ack", subId=subscription.id, cursor=cursor, types=types, **ref)
        if is_gone:
            subscription.position = self.fanout.log.last
            self._resync(subscription)
        self.add(subscription)

    def _require_room(self) -> None:
        most = self.fanout.options.max_subscriptions
        if most is not None and len(self.subscriptions) >= most:
            raise _Unworkable("TOO_MANY_SUBSCRIPTIONS", f"a connection has at most {most} subscriptions")

    async def _change_credentials(self, message: dict[str, Any], ref: dict[str, Any]) -> None:
        token = message.get("token")
        if not isinstance(token, str) or not token:
            raise _Unworkable("BAD_MESSAGE", "token is a text")
        try:
            viewer = await self._admit(token)
        except RequestError as refusal:
            if refusal.status not in (401, 403):
                raise
            raise _Unworkable("UNAUTHORIZED", "the token is not valid") from None
        if not is_same(viewer.auth, self.viewer.auth):
            self.kick(LOST_PERMISSION, "the token is somebody else's")
            return
        if self.is_closed:
            return
        for model in self.viewer.sights:
            viewer.sights.setdefault(model, self.viewer.sights[model])
        await self.fanout.judge.recheck(viewer)
        if not self.is_closed:
            self.fanout.join(self, viewer)
            self.answer(op="ack", **ref)


def _read(text: str | bytes) -> dict[str, Any]:
    try:
        message = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _Unworkable("BAD_MESSAGE", "the message is no JSON") from None
    if not isinstance(message, dict):
        raise _Unworkable("BAD_MESSAGE", "a message is an object with op")
    return message


def _read_patterns(patterns: Any) -> list[str]:
    if patterns is None or patterns == []:
        raise _Unworkable("NO_PATTERNS", "patterns lists what you want to hear of")
    if not isinstance(patterns, list) or len(patterns) > MOST_PATTERNS:
        raise _Unworkable("BAD_PATTERN", f"patterns is a list of at most {MOST_PATTERNS} texts")
    for pattern in patterns:
        problem = pattern_problem(pattern)
        if problem is not None:
            raise _Unworkable("BAD_PATTERN", f"the pattern {problem}")
    return list(dict.fromkeys(patterns))


class OwnSocket(SocketConnection):
    """A client on a connection of our own listener."""

    def __init__(self, socket: Any, fanout: Fanout, viewer: Viewer, admit: Admit) -> None:
        super().__init__(fanout, viewer, admit)
        self._socket = socket
        self._is_shared = socket.is_shared
        socket.on_writable = self.on_writable

    def frame(self, subscription: ClientSubscription, view: SeenEvent, entry: FeedEntry) -> bytes:
        if self._is_shared:
            return super().frame(subscription, view, entry)
        return self._event_frame(subscription, view, entry)  # compressed with what was sent before

    def as_frame(self, text: bytes) -> bytes:
        frame: bytes = self._socket.frame(text) if self._is_shared else text
        return frame

    @property
    def is_paused(self) -> bool:
        return bool(self._socket.is_paused)

    @property
    def progress(self) -> Any:
        return self._socket.unsent

    def send(self, frame: bytes) -> None:
        if self._is_shared:
            self._socket.write_frame(frame)
        else:
            self._socket.write_text(frame)

    def end(self, code: int, reason: str) -> None:
        if code == 1001 and not self.is_paused:
            self.send(self.as_frame(_encode({"op": "bye", "retry": BYE_RETRY})))
        self._socket.close_now(code, reason)

    def close(self) -> None:
        self._socket.on_writable = None
        super().close()


class ForeignSocket(SocketConnection):
    """A client on a connection of another server, reached by ASGI alone."""

    def __init__(self, send: Send, fanout: Fanout, viewer: Viewer, admit: Admit) -> None:
        super().__init__(fanout, viewer, admit)
        self._send = send
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._sent = 0
        self._changed = asyncio.Event()
        self._farewell: tuple[int, str] | None = None
        self._main = asyncio.current_task()
        self.is_cut = False  # because the farewell did not leave in time
        self.stuck_after = fanout.options.send_timeout
        self.sending = asyncio.get_running_loop().create_task(self._send_all())

    def as_frame(self, text: bytes) -> bytes:
        return text

    @property
    def is_paused(self) -> bool:
        return self._size >= MOST_WAITING or len(self._waiting) >= self.fanout.options.send_buffer

    @property
    def progress(self) -> Any:
        return self._sent

    def send(self, frame: bytes) -> None:
        self._waiting.append(frame)
        self._size += len(frame)
        self._changed.set()

    async def _send_all(self) -> None:
        fence = Fence()
        try:
            while self._farewell is None or self._waiting:
                while self._waiting:
                    frame = self._waiting.popleft()
                    self._size -= len(frame)
                    await self._send({"type": "websocket.send", "text": frame.decode()})
                    self._sent += 1
                    if self._queue and not self.is_paused:
                        self.on_writable()
                self.on_writable()
                if not self._waiting and self._farewell is None:
                    self._changed.clear()
                    await self._changed.wait()
            code, reason = self._farewell
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except BaseException as error:
            fence.absorb(error)
            log.debug("a client cannot be reached: %r", error)
            self.close()

    def end(self, code: int, reason: str) -> None:
        if code == 1001:
            self._waiting.append(_encode({"op": "bye", "retry": BYE_RETRY}))
        else:
            self._waiting.clear()
        self._farewell = code, reason
        self._changed.set()
        asyncio.get_running_loop().call_later(self.fanout.farewell_time, self._cut)

    def _cut(self) -> None:
        """The client did not take the farewell."""
        self.sending.cancel()
        if self._main is not None and not self._main.done():
            self.is_cut = True
            self._main.cancel()


# -- one connection from its handshake to its end


async def serve_socket(
    scope: AsgiScope,
    receive: Receive,
    send: Send,
    fanout: Fanout,
    viewer: Viewer,
    admit: Admit,
) -> None:
    """Serve a client whose handshake was judged; its place is given back however it ends."""
    slot = fanout.slots.take(viewer)
    connection: SocketConnection | None = None
    try:
        await send({"type": "websocket.accept", "subprotocol": chosen_protocol(scope), "headers": []})
        socket = scope.get(SOCKET)
        if socket is not None:
            connection = OwnSocket(socket, fanout, viewer, admit)
        else:
            connection = ForeignSocket(send, fanout, viewer, admit)
        fanout.enter(connection, slot)
        if fanout.is_stopping:
            connection.kick(1001, "the server goes away")
        await _hear_all(connection, receive, fanout.options.max_message_size)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not (isinstance(connection, ForeignSocket) and connection.is_cut and task is not None):
            raise
        task.uncancel()
    finally:
        if connection is None:
            fanout.slots.give_back(slot)
        else:
            connection.close()
            if isinstance(connection, ForeignSocket):
                await _let_send(connection)


async def _hear_all(connection: SocketConnection, receive: Receive, most: int | None) -> None:
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        if text is None:
            text = message.get("bytes") or b""
        if most is not None and len(text) > most:
            connection.kick(TOO_LARGE, "the message is too large")
            return
        if not connection.is_closed:
            await connection.hear(text)


async def _let_send(connection: ForeignSocket) -> None:
    """Wait for the farewell of a connection that we end."""
    if connection._farewell is None:
        connection.sending.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait({connection.sending}, timeout=connection.fanout.options.send_timeout)
