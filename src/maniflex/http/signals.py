"""Notice the signal that ends the process, also when another server handles it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_stop_signal(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` when SIGTERM or SIGINT arrives, then do what was done about it before.

    Under a server that is not ours (uvicorn, also as a worker) this is the only word we get that
    shutdown begins: the lifespan message comes after the requests have drained.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def notice(number: int, frame: FrameType | None) -> None:
        call()
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    ours = [number for number, handler in before.items() if callable(handler)]
    for number in ours:
        signal.signal(number, notice)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is notice:
                signal.signal(number, before[number])
