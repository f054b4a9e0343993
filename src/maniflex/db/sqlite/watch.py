"""Notice that a SQLite file has changed, in any process: one thread that looks often and cheaply.

SQLite cannot notify, but a connection can ask whether another one, here or in any other process, has
committed since it asked last. Trouble with the file is counted and looked past; a hint may be missed.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from contextlib import suppress
from itertools import count

from maniflex.db.port import Wake
from maniflex.db.sqlite.threads import Connect

INTERVAL = 0.04
INTERVAL_IN_TROUBLE = 0.25

log = logging.getLogger("maniflex.db")


class FileSubscription:
    """Whom to wake, and the version of the file they were last woken for."""

    __slots__ = ("seen", "wake")

    def __init__(self, wake: Wake) -> None:
        self.wake = wake
        self.seen: tuple[int, int] | None = None


class Watch:
    """Looks at the file while there are listeners."""

    def __init__(self, connect: Connect, loop: asyncio.AbstractEventLoop) -> None:
        self._connect = connect
        self._loop = loop
        self._subscriptions: tuple[FileSubscription, ...] = ()  # replaced, never changed: the thread walks it
        self._generations = count()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.errors = 0

    def add(self, wake: Wake) -> FileSubscription:
        subscription = FileSubscription(wake)
        self._subscriptions += (subscription,)
        if len(self._subscriptions) == 1:
            self._ended = threading.Event()
            self._thread = threading.Thread(
                target=self._serve, args=(self._ended,), name="maniflex-sqlite-watch", daemon=True
            )
            self._thread.start()
        return subscription

    def remove(self, subscription: FileSubscription) -> None:
        self._subscriptions = tuple(other for other in self._subscriptions if other is not subscription)
        if not self._subscriptions:
            self.stop()

    def stop(self) -> None:
        self._ended.set()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _wake(self, subscription: FileSubscription) -> None:
        if subscription in self._subscriptions:  # it may have left in the meantime
            subscription.wake()

    # ── on the watching thread ───────────────────────────────────────────────────────────────

    def _serve(self, ended: threading.Event) -> None:
        connection: sqlite3.Connection | None = None
        generation, in_trouble = 0, False
        while not ended.is_set():
            try:
                if connection is None:
                    connection, generation = self._connect(), next(self._generations)
                [version] = connection.execute("PRAGMA data_version").fetchone()
                in_trouble = False
                # Versions of two connections have nothing to do with each other.
                self._tell((generation, version))
            except sqlite3.Error as error:
                self._count(error, again=in_trouble)
                in_trouble = True
                _close(connection)
                connection = None
            if in_trouble:
                ended.wait(INTERVAL_IN_TROUBLE)
            else:
                time.sleep(INTERVAL)  # waiting for the event with a limit costs twice the processor time
        _close(connection)

    def _tell(self, version: tuple[int, int]) -> None:
        for subscription in self._subscriptions:
            if subscription.seen != version:
                subscription.seen = version
                with suppress(RuntimeError):  # the loop is closed, and no task waits any more
                    self._loop.call_soon_threadsafe(self._wake, subscription)

    def _count(self, error: sqlite3.Error, *, again: bool) -> None:
        self.errors += 1
        if not again:
            log.warning("changes of the SQLite database go unnoticed for now: %s", error)


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with suppress(sqlite3.Error):
            connection.close()
