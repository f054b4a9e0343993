"""The request body as middleware sees it: read like a mapping, changed only through the context."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from maniflex.errors import BodyTooLarge, BodyTooSlow, InvalidBody, Unavailable, UnsupportedMediaType
from maniflex.pipeline.exchange import IN_PROCESS
from maniflex.pipeline.threads import LARGE
from maniflex.pipeline.watch import ClientGone

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context


_NO_NAMES: frozenset[str] = frozenset()


class Body(Mapping[str, Any]):
    """The JSON object a client sent, by API names; remembers which values the server put there."""

    __slots__ = ("_stamped", "values_")

    def __init__(self, values: dict[str, Any]) -> None:
        self.values_ = values
        self._stamped = _NO_NAMES

    def __getitem__(self, name: str) -> Any:
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)

    def __repr__(self) -> str:
        return f"<Body {', '.join(self.values_)}>"

    def sent(self, name: str) -> bool:
        """Whether the client sent a value for it, and the server put none in its place."""
        return self.values_.get(name) is not None and name not in self._stamped

    def is_from_client(self, name: str) -> bool:
        """Whether the client sent it, null included, and the server put nothing in its place."""
        return name in self.values_ and name not in self._stamped

    def stamp(self, name: str, value: Any) -> None:
        """Set a value on the server's behalf; `strip` does not remove it."""
        self.values_[name] = value
        self._stamped |= {name}

    def replace(self, name: str, value: Any) -> None:
        """Put another reading of what was sent in its place; it stays the client's."""
        self.values_[name] = value

    def remove(self, name: str) -> None:
        self.values_.pop(name, None)
        self._stamped -= {name}

    def strip(self, names: Iterable[str]) -> None:
        """Drop what a client may not set."""
        for name in names:
            if name not in self._stamped:
                self.values_.pop(name, None)


_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def written_number(raw_body: bytes, name: str) -> str | None:
    """The digits of a JSON number as they stand in a body that is well-formed; None for anything else."""
    literal = bytes(_parts(raw_body)[name]).decode()
    return literal if literal[0] in "-0123456789" else None


# The bytes of a request body, up to the limit and no further.


JSON_TYPE = b"application/json"


async def read_body(
    ctx: Context,
    then: Callable[[Context], Awaitable[None] | None] | None = None,
    *,
    by_name: Mapping[bytes, bytes] | None = None,
    of_any_type: bool = False,
) -> bytes:
    """The whole body, which is kept; a larger one than the limit is refused first, and one that is no JSON.

    `then` is a step that goes on with it: in the same coroutine, because one more costs every write.
    `by_name` are the headers, for callers that have them so.
    """
    owner = ctx if ctx.parent is None else ctx.parent  # who ends when the request does
    limit = owner.max_body_size or ctx.runtime.config.max_body_size
    headers = ctx.scope["headers"]
    size = _check_length(headers, limit) if of_any_type else _check_headers(headers, limit, by_name)
    if owner.body_asked:
        raise RuntimeError(
            "the body was taken from the channel of ctx.request before; await ctx.read_body() keeps it"
        )
    owner.body_asked = True
    message = await ctx.receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body") and len(body) <= LARGE:
        owner.body_complete = True
        if len(body) > limit:
            raise _too_large(limit)
    else:
        body = await _read_large(ctx, owner, message, size, limit)
    ctx.raw_body = body
    if then is not None and (outcome := then(ctx)) is not None:
        await outcome
    return body


async def keep_body(ctx: Context) -> bytes:
    """The bytes of the body for code, at any step and of any type; the steps that follow find them, too."""
    owner = ctx if ctx.parent is None else ctx.parent
    if owner.raw_body is None:
        announced = any(name in (b"content-length", b"transfer-encoding") for name, _ in ctx.scope["headers"])
        # Asked of a request without one, the channel would wait for its client to leave.
        has_body = announced or ctx.in_process
        owner.raw_body = await read_body(ctx, of_any_type=True) if has_body else b""
        owner.is_type_unchecked = True
    ctx.raw_body = owner.raw_body
    return owner.raw_body


def check_type_of_kept(ctx: Context) -> None:
    """Refuse a body that is no JSON, where code has read it before its content type was checked."""
    ctx.is_type_unchecked = False
    _check_headers(ctx.scope["headers"], len(ctx.raw_body or b"") or 1)


async def _read_large(ctx: Context, owner: Context, message: Any, size: int, limit: int) -> bytes:
    """A body that comes in parts. Beyond `LARGE` it needs a place, which it keeps until it is answered."""
    # Not a list of parts: a single block goes back to the system when it is freed.
    body = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone()
        body += message.get("body", b"")
        owner.body_complete = complete = not message.get("more_body")
        if len(body) > limit:
            raise _too_large(limit)
        if owner.place is None and len(body) > LARGE:
            # A request in a transaction may be what the others wait for; code that asks us is inside one.
            waits = ctx.tx is None and IN_PROCESS not in ctx.scope
            owner.place = await ctx.runtime.bodies.admit(len(body) if complete else size, waits=waits)
        if complete:
            if owner.place is not None:
                await owner.place.work()
            return bytes(body)
        message = await (ctx.receive() if owner.place is None else owner.place.receive(ctx.receive))


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {limit} bytes")


def _check_headers(
    headers: Sequence[tuple[bytes, bytes]], limit: int, by_name: Mapping[bytes, bytes] | None = None
) -> int:
    """Refuse what cannot be read; the most bytes that may come."""
    if by_name is None:
        by_name = dict(headers)
    if len(by_name) == len(headers) and by_name.get(b"content-type") == JSON_TYPE:  # as good as every request
        if b"content-encoding" in by_name:
            _check_encoding(by_name[b"content-encoding"])
        return _size(by_name[b"content-length"], limit) if b"content-length" in by_name else limit
    for name, value in headers:
        if name == b"content-type" and value != JSON_TYPE:
            _check_type(value)
        elif name == b"content-encoding":
            _check_encoding(value)
    return _check_length(headers, limit)


def _check_length(headers: Sequence[tuple[bytes, bytes]], limit: int) -> int:
    """Refuse a body that says that it is larger; the most bytes that may come."""
    sizes = [_size(value, limit) for name, value in headers if name == b"content-length"]
    return sizes[-1] if sizes else limit


def _size(length: bytes, limit: int) -> int:
    if not length.isdigit():
        raise InvalidBody("Content-Length is not a number")
    size = int(length) if len(length) < 19 else limit + 1
    if size > limit:
        raise _too_large(limit)
    return size


def _check_type(content_type: bytes) -> None:
    kind = content_type.partition(b";")[0].strip().lower()
    is_json = kind == JSON_TYPE or (kind.startswith(b"application/") and kind.endswith(b"+json"))
    if kind and not is_json:
        raise UnsupportedMediaType()


def _check_encoding(encoding: bytes) -> None:
    if encoding.lower() != b"identity":
        raise UnsupportedMediaType("a compressed body is not accepted")


# How many large bodies a server holds at once.
#
# A body takes several times its size while it is parsed, stored and answered. So beyond `LARGE` it needs
# a place: one in the room of those that arrive, which it keeps, and once it is complete one in the
# smaller room of those that are worked on. Who waits for a place does not read from the connection, and
# what the client sends stays in the buffers of the systems between.
#
# No request waits for a place for ever, and none keeps one by sending slowly while others wait.


ARRIVING = 8  # of the largest bodies at once
WORKED_ON = 2
PLACE_PATIENCE = 10.0  # seconds in line for a place
GRACE = 5.0  # seconds a body has in any case, and then as long as its bytes take at this pace
PACE = 256 * 1024  # bytes a second


class Room:
    """So many bytes at once; one that is larger than all of it has it alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def crowded(self) -> bool:
        return bool(self._line)

    def fits(self, size: int) -> bool:
        return not self._line and self._has(size)

    def take(self, size: int) -> None:
        """Take that many bytes, whether they are free or not."""
        self._used += size

    def give(self, size: int) -> None:
        self._used -= size
        self._let_in()

    async def wait(self, size: int) -> None:
        """Take that many bytes once they are free; `TimeoutError` when that takes too long."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (size, turn)
        self._line.append(place)
        try:
            async with asyncio.timeout(PLACE_PATIENCE):
                await turn
        except BaseException:
            if turn.cancelled():
                self._line.remove(place)
                self._let_in()
            else:  # it was given at the moment this request ended
                self.give(size)
            raise

    def _has(self, size: int) -> bool:
        return self._used == 0 or self._used + size <= self._most

    def _let_in(self) -> None:
        while self._line and self._has(self._line[0][0]):
            size, turn = self._line[0]
            if turn.cancelled():  # its request takes it out of the line itself
                return
            self._line.popleft()
            self.take(size)
            turn.set_result(None)


class BodyRoom:
    """The two rooms of one server."""

    def __init__(self, largest: int) -> None:
        self.arriving = Room(ARRIVING * largest)
        self.worked_on = Room(WORKED_ON * largest)
        self.places: set[BodyPlace] = set()

    async def admit(self, size: int, *, waits: bool) -> BodyPlace:
        """A place for a body of up to `size` bytes; `Unavailable` when there is none for too long.

        A request that must not wait, because others may wait for it, has its place at once.
        """
        if not waits or self.arriving.fits(size):
            self.arriving.take(size)
        else:
            for place in self.places:
                place.hurry()
            try:
                await self.arriving.wait(size)
            except TimeoutError:
                raise Unavailable("too many large bodies arrive at once") from None
        return BodyPlace(self, size, waits)


class BodyPlace:
    """The place of one body, until `leave`."""

    __slots__ = ("_deadline", "_received", "_room", "_since", "_size", "_waits", "_works")

    def __init__(self, room: BodyRoom, size: int, waits: bool) -> None:
        self._room = room
        self._size = size
        self._waits = waits
        self._works = False
        self._received = 0
        self._since = asyncio.get_running_loop().time()
        self._deadline: asyncio.Timeout | None = None
        room.places.add(self)

    async def receive(self, receive: Callable[[], Awaitable[Any]]) -> Any:
        """The next part of the body; `BodyTooSlow` when it keeps others waiting."""
        try:
            async with asyncio.timeout(None) as self._deadline:
                if self._room.arriving.crowded:
                    self.hurry()
                message = await receive()
        except TimeoutError:
            raise BodyTooSlow() from None
        finally:
            self._deadline = None
        self._received += len(message.get("body", b""))
        return message

    def hurry(self) -> None:
        """Require a pace of the body from now on: another request waits for this place."""
        if self._deadline is not None:
            self._deadline.reschedule(self._since + GRACE + self._received / PACE)

    async def work(self) -> None:
        """Wait until the body, which is complete, may be worked on."""
        room = self._room.worked_on
        if not self._waits or room.fits(self._size):
            room.take(self._size)
        else:
            try:
                await room.wait(self._size)
            except TimeoutError:  # the request that has the place may be waiting for this request
                room.take(self._size)
        self._works = True

    def leave(self) -> None:
        """Give the place to others; safe to repeat."""
        if self in self._room.places:
            self._room.places.remove(self)
            self._room.arriving.give(self._size)
            if self._works:
                self._room.worked_on.give(self._size)


# How long an upload may take: as long as it moves.
#
# A body of JSON has one time in all, and a request `query_timeout`. A file may be large and a line slow,
# so the body of an upload has `WITHIN` seconds for every `PROGRESS` bytes, and only the time spent
# waiting for the client counts: a storage that takes long is not the client's doing.


PROGRESS = 64 * 1024  # bytes
WITHIN = 60.0  # seconds
PATIENCE_KEY = "maniflex.patience"  # in the scope of a request: the patience of its connection


class Patience:
    """What the application tells the connection of a request about its body, and may ask of it."""

    __slots__ = ("is_upload", "transport")

    def __init__(self) -> None:
        self.is_upload = False
        self.transport: Any = None  # of the connection; for streams, whose readers may take nothing


class UploadBody:
    """The body of an upload, part by part; `BodyTooSlow` when it does not move."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._arrived = 0
        self._seconds_left = WITHIN
        patience = ctx.scope.get(PATIENCE_KEY)
        if patience is not None:
            patience.is_upload = True

    async def receive(self) -> Any:
        """The next message of the client; of a body that code has read before, the whole of it."""
        ctx = self._ctx
        if ctx.raw_body is not None:
            return {"type": "http.request", "body": ctx.raw_body, "more_body": False}
        ctx.body_asked = True
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._seconds_left):
                message = await ctx.receive()
        except TimeoutError:
            raise BodyTooSlow() from None
        ctx.body_complete = not message.get("more_body")
        self._arrived += len(message.get("body", b""))
        if self._arrived >= PROGRESS:
            self._arrived, self._seconds_left = 0, WITHIN
        else:
            self._seconds_left -= asyncio.get_running_loop().time() - began
        return message


@contextmanager
def uploading(ctx: Context) -> Iterator[None]:
    """Let the request take as long as its files move; `query_timeout` counts anew afterwards."""
    ctx.is_uploading = True
    try:
        yield
    finally:
        ctx.is_uploading = False
