"""How many large bodies a server holds at once.

A body takes several times its size while it is parsed, stored and answered. So beyond `LARGE` it needs
a place: one in the room of those that arrive, which it keeps, and once it is complete one in the smaller
room of those that are worked on. Who waits for a place does not read from the connection, and what the
client sends stays in the buffers of the systems between.

No request waits for a place for ever, and none keeps one by sending slowly while others wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from maniflex.errors import BodyTooSlow, Unavailable

ARRIVING = 8  # of the largest bodies at once
WORKED_ON = 2
PATIENCE = 10.0  # seconds in line for a place
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
            async with asyncio.timeout(PATIENCE):
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
