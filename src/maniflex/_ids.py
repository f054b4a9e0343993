"""Record ids: UUIDv7 text that sorts in the order it was made.

The only home of id making. Within a process every id is greater than the one before: also within
one millisecond, when the clock steps back, and across threads. A forked child starts anew.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from random import getrandbits
from threading import Lock
from time import time_ns

MOST_EVENTS = 10_000  # of one statement
_TAIL_END = 1 << 48
_LOWER_HALF = _TAIL_END // 2 - 1
_OF_A_START = 10  # random bytes, for 73 bits
_RANDOM = 128 * _OF_A_START  # bytes that are asked for at once
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Sequence:
    """Where the process stands: the text its current millisecond begins with, and a 48-bit counter."""

    __slots__ = ("_next", "_random", "lock", "millisecond", "prefix", "tail")

    def __init__(self) -> None:
        self._random, self._next = b"", 0  # random bytes, and how many of them are used up
        self.lock = Lock()
        self.millisecond = 0
        self.prefix = ""
        self.tail = 0

    def make(self, now: int) -> str:
        """The next id, in this millisecond or, if that is over, the one that the process has come to."""
        if now > self.millisecond:
            self.start(now)
        else:
            # A random stride keeps the next id from being guessed out of this one.
            self.tail += 1 + getrandbits(24)
            if self.tail >= _TAIL_END:
                self.start(self.millisecond + 1)
        return f"{self.prefix}{self.tail:012x}"

    def start(self, millisecond: int) -> None:
        """Begin a millisecond at a random place, in the counter's lower half so that it can go up."""
        place = self._next
        if place >= len(self._random):
            # Seldom, and for many at once: the interpreter lets other threads run meanwhile, and when one of
            # them writes to SQLite, requests that were about to share a commit wait for each other.
            self._random, place = os.urandom(_RANDOM), 0
        self._next = place + _OF_A_START
        random = int.from_bytes(self._random[place : place + _OF_A_START])
        self.millisecond = millisecond
        self.prefix = (
            f"{millisecond >> 16:08x}-{millisecond & 0xFFFF:04x}"
            f"-7{random >> 61 & 0xFFF:03x}-{0x8000 | random >> 47 & 0x3FFF:04x}-"
        )
        self.tail = random & _LOWER_HALF

    def restart(self) -> None:
        """In a forked child: never repeat what the parent goes on to make."""
        self.lock, self._random = Lock(), b""
        self.start(self.millisecond + 1)


_last = _Sequence()
os.register_at_fork(after_in_child=_last.restart)


def new_id() -> str:
    """A fresh id, greater than every id this process made before."""
    last = _last
    with last.lock:
        return last.make(time_ns() // 1_000_000)


def new_ids(count: int) -> list[str]:
    """As many fresh ids, in order."""
    last = _last
    with last.lock:
        now = time_ns() // 1_000_000
        return [last.make(now) for _ in range(count)]


def first_id(moment: datetime) -> str:
    """The text that ids made from this moment on are greater than."""
    millisecond = f"{(moment - _EPOCH) // timedelta(milliseconds=1):012x}"
    return f"{millisecond[:8]}-{millisecond[8:]}"


def moment_of(id: str) -> datetime:
    """The moment from which on ids are greater than this text, which `first_id` made."""
    return _EPOCH + timedelta(milliseconds=int(id[:8] + id[9:13], 16))


class EventIds:
    """What a statement makes the ids of its event rows from: a prefix of now and where to count from.

    Later statements of a process count on, so that the ids of a run's events are in their order.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._prefix = ""
        self._tail = 0

    def __call__(self) -> dict[str, str | int]:
        with self._lock:
            prefix = new_id()[:24]
            self._tail = self._tail + MOST_EVENTS if prefix == self._prefix else getrandbits(46)
            self._prefix = prefix
            return {"event": prefix, "tail": self._tail}

    def restart(self) -> None:
        """In a forked child, which has no thread that would let go of the lock."""
        self._lock = Lock()


event_ids = EventIds()
os.register_at_fork(after_in_child=event_ids.restart)
