"""The parent of several processes that serve: uvicorn's, which also stops while it replaces them.

uvicorn handles signals one after the other, so that one to stop would wait until all processes are replaced.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess


class Supervisor(Multiprocess):
    """Starts the processes and looks after them."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def terminate_all(self) -> None:
        # While this process listens, the kernel takes connections that no process will ever answer.
        for listener in self.sockets:
            listener.close()
        super().terminate_all()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.signal_queue.append(number)
        # Here the event may be just about to wait, and cannot be set by the thread that waits.
        threading.Thread(target=self.should_exit.set).start()


def serve_by_processes(target: str, workers: int, **settings: Any) -> None:
    """Serve what `target` names, in so many processes, until a signal ends it."""
    sys.path.insert(0, ".")
    config = uvicorn.Config(target, workers=workers, **settings)
    with suppress(KeyboardInterrupt), config.bind_socket() as listener:
        Supervisor(config, [listener]).run()
