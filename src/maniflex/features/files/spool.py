"""Where the files of one form wait until the form is known to be sound: in memory, then in a temporary file.

The file has no name, so it is gone when the request ends, whatever ends it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from threading import Lock

from maniflex.errors import StorageError, StorageFull
from maniflex.storage.port import MOST_AT_ONCE

WRITE_AT_ONCE = 512 * 1024


class Spool:
    """The files of one request, one behind another."""

    def __init__(self, memory: int, directory: str) -> None:
        self._memory = memory
        self._directory = directory or None
        self._tail = bytearray()  # what is not in the temporary file
        self._in_file = 0
        self._handle = -1
        self._busy = Lock()  # held by threads, so that the handle is not closed while one uses it
        self._is_closed = False

    @property
    def size(self) -> int:
        return self._in_file + len(self._tail)

    async def write(self, chunk: bytes) -> None:
        """Append some bytes."""
        self._tail += chunk
        if len(self._tail) > (self._memory if self._handle < 0 else WRITE_AT_ONCE):
            tail, self._tail = self._tail, bytearray()
            self._in_file += len(tail)
            try:
                await asyncio.to_thread(self._append, tail)
            except OSError as error:
                kind = StorageFull if StorageFull.is_meant(error) else StorageError
                raise kind(f"an upload could not be kept on disk: {error.strerror}") from error

    async def read(self, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes between two places."""
        while start < end:
            if start < self._in_file:
                size = min(end, self._in_file, start + MOST_AT_ONCE) - start
                chunk = await asyncio.to_thread(self._read_file, start, size)
            else:
                first = start - self._in_file
                chunk = bytes(self._tail[first : min(end - self._in_file, first + MOST_AT_ONCE)])
            if not chunk:
                raise StorageError("an upload was read after its request had ended")
            start += len(chunk)
            yield chunk

    def close(self) -> None:
        """Forget everything; a thread that still writes finds it closed."""
        self._tail = bytearray()
        self._is_closed = True
        if self._busy.acquire(blocking=False):
            try:
                self._close_handle()
            finally:
                self._busy.release()

    def _append(self, data: bytearray) -> None:
        with self._busy:
            if self._is_closed:
                return
            if self._handle < 0:
                self._handle = _nameless_file(self._directory)
            view = memoryview(data)
            while view:
                view = view[os.write(self._handle, view) :]
            self._close_if_over()

    def _read_file(self, start: int, size: int) -> bytes:
        with self._busy:
            content = b"" if self._is_closed else os.pread(self._handle, size, start)
            self._close_if_over()
            return content

    def _close_if_over(self) -> None:
        """Close what `close` could not, because a thread was using it."""
        if self._is_closed:
            self._close_handle()

    def _close_handle(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _nameless_file(directory: str | None) -> int:
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        return os.dup(file.fileno())
