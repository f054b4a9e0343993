"""Keep the write-ahead log of a SQLite file short.

SQLite begins its log anew only when a commit finds no reader in it. Where reads overlap there is no such
moment, and the log grows for as long as they do. So the writer makes one: above `LONG_BYTES` it keeps the
write lock, copies the log into the database and waits a little until the readers of before are done; those
who come meanwhile read the database alone. A result that is streamed can hold its snapshot for longer than
a writer may wait: while the log is long, new streams wait for the open ones to end (`stream.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from contextlib import suppress

LONG_BYTES = 4 * 1024 * 1024  # about what SQLite copies by itself
WARN_BYTES = 64 * LONG_BYTES
INTERVAL = 2.0  # seconds between two tries
_PATIENCE = 0.05  # seconds to wait for readers when the log is just too long
_MOST_PATIENCE = 2.0
_SHARE = 20  # a try may keep writes waiting for one part in so many

log = logging.getLogger("maniflex.db")


class LogKeeper:
    """Looks at the length of the log and begins it anew; the writer's thread does the work.

    When it is time to look is told by a timer of the event loop, so that commits ask no clock.
    """

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._log_path = f"{path}-wal"
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.is_due = True  # whether the next commit looks; every commit asks
        self._size_when_empty = 0  # what the file had when the log in it was begun anew
        self._has_warned = False
        self.streams = 0  # results that are being streamed: they hold the log, and no wait is long enough

    def is_long(self) -> bool:
        """Whether the log wants to begin anew."""
        size = self._size()
        return size > LONG_BYTES and size != self._size_when_empty

    def look_now(self) -> None:
        """Have the next commit look, however short ago the last one did."""
        self.is_due = True

    def look(self, connection: sqlite3.Connection | None) -> None:
        """Begin a log that is too long anew, behind a commit that found it due."""
        self.is_due = False
        pause = INTERVAL
        if connection is not None and self.is_long():
            patience = self._patience()
            self.begin_anew(connection, 0.0 if self.streams else patience)
            pause = max(INTERVAL, _SHARE * patience)
        with suppress(RuntimeError):  # the loop is closed, so there are no commits to come
            self._loop.call_soon_threadsafe(self._pause, pause)

    def _pause(self, seconds: float) -> None:
        if self._timer is not None:  # of a look before, which was followed by one that could not wait
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.look_now)

    def begin_anew(self, connection: sqlite3.Connection, patience: float) -> None:
        """Copy the whole log into the database, so that the next commit is written at its beginning."""
        size = self._size()
        try:
            connection.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
            [is_busy, _, _] = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        except sqlite3.Error as error:  # another process copies the log in this moment
            log.debug("the log of %s was not copied: %s", self._path, error)
            return
        finally:
            connection.execute("PRAGMA busy_timeout = 0")
        if not is_busy:
            self._size_when_empty, self._has_warned = size, False
        elif size > WARN_BYTES and not self._has_warned:
            self._has_warned = True
            log.warning(
                "the write-ahead log of %s has %d MB, because somebody reads the database as it was long ago:"
                " a transaction that stays open, or another program",
                self._path,
                size // 1024**2,
            )

    def _patience(self) -> float:
        """How long writes may wait for readers: the longer the log, the longer."""
        return min(_PATIENCE * self._size() / LONG_BYTES, _MOST_PATIENCE)

    def _size(self) -> int:
        try:
            return os.stat(self._log_path).st_size
        except OSError:
            return 0
