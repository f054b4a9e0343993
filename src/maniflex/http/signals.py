"""Notice the signal that ends the process, also when another server handles it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

LONGEST = 3  # times the delay
LOOK_EVERY = 0.25


class Delay:
    """How long a process goes on after the signal: `seconds`, and up to thrice that while clients come."""

    def __init__(self, seconds: float, has_clients: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._has_clients = has_clients
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return self._seconds > 0

    def begin(self, then: Callable[[], object]) -> None:
        """Call `then` when the delay is over."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + LONGEST * self._seconds

        def look() -> None:
            if loop.time() < latest and self._has_clients():
                self._timer = loop.call_later(LOOK_EVERY, look)
            else:
                then()

        self._timer = loop.call_later(self._seconds, look)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def on_stop_signal(call: Callable[[], None], delay: Delay | None = None) -> Iterator[None]:
    """Call `call` when SIGTERM or SIGINT arrives, then do what was done about it before.

    Under a server that is not ours (uvicorn, also as a worker) this is the only word we get that
    shutdown begins: the lifespan message comes after the requests have drained. With a delay the server
    learns of the first signal later, and of a second one at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    loop = asyncio.get_running_loop() if delay else None
    is_told = False

    def notice(number: int, frame: FrameType | None) -> None:
        nonlocal is_told
        call()
        handler = before[signal.Signals(number)]
        if not callable(handler):
            return
        if delay and loop is not None and not is_told:
            loop.call_soon_threadsafe(delay.begin, lambda: handler(number, None))
        else:
            if delay:
                delay.cancel()
            handler(number, frame)
        is_told = True

    ours = [number for number, handler in before.items() if callable(handler)]
    for number in ours:
        signal.signal(number, notice)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is notice:
                signal.signal(number, before[number])
