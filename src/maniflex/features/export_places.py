"""How many exports are made at once, and for how long each of them holds its place.

An export holds a place, a connection and a snapshot of the database while its file is made, not while it is
taken: a client that reads slowly would keep everybody else waiting. At first the file is made as it is taken.
After `SPOOL_AFTER`, or as soon as another export waits for a place, it is made as fast as it can be, into a
temporary file that the client is then served from. There may be `SPOOLS_PER_PLACE` such files for each place;
beyond that the slowest client is left, if it reads more slowly than `FAIR_RATE`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import IO

from maniflex.errors import ExportBusy
from maniflex.features.tabular import run_in_thread

RETRY_AFTER = {"retry-after": "10"}
SPOOL_AFTER = 5.0  # seconds
WAIT_FOR_PLACE = 3.0  # seconds
SPOOLS_PER_PLACE = 8
FAIR_RATE = 64 * 1024  # bytes a second
_IN_MEMORY = 1024 * 1024  # bytes of an export that wait for their client outside the file
_PIECE = 256 * 1024


class Places:
    """The places that exports are made at."""

    def __init__(self, most: int) -> None:
        self._most_spools = most * SPOOLS_PER_PLACE
        self._free = most
        self._waiting: list[asyncio.Future[None]] = []
        self._made: set[_PlacedExport] = set()  # exports that hold a place
        self._spools: set[_PlacedExport] = set()  # exports that are made and not taken yet

    async def wait_for_one(self) -> None:
        """Have those who hold a place hurry, and wait a little until one is free."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_FOR_PLACE):
                while self._free < 1:
                    for export in self._made:
                        export.spool()
                    self._waiting.append(asyncio.get_running_loop().create_future())
                    await self._waiting[-1]
        if self._free < 1:
            raise ExportBusy(headers=RETRY_AFTER)

    async def send(self, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The chunks of an export, which holds a place until the last one is made."""
        async with aclosing(chunks):
            await self.wait_for_one()
            self._free -= 1
            export = _PlacedExport(self, chunks)
            self._made.add(export)
            try:
                while (chunk := await export.next()) is not None:
                    yield chunk
            finally:
                await export.close()
                self._spools.discard(export)
                self.give_back(export)
                self._move_spools()

    def keep_spool(self, export: _PlacedExport) -> None:
        """Take the place of an export that is made, if there is room for what its client has not taken."""
        self._spools.add(export)
        self._move_spools()

    def give_back(self, export: _PlacedExport) -> None:
        if export in self._made:
            self._made.discard(export)
            self._free += 1
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiting.clear()

    def _move_spools(self) -> None:
        """Free the places of made exports while there are not too many files; leave the slowest client."""
        while exports := [export for export in self._spools if export in self._made]:
            if len(self._spools) - len(exports) < self._most_spools:
                self.give_back(exports[0])
                continue
            slowest = min(self._spools, key=_PlacedExport.rate)
            if slowest.rate() >= FAIR_RATE:
                return
            slowest.leave()
            self._spools.discard(slowest)
            self.give_back(slowest)


class _PlacedExport:
    """One export: its chunks as its client takes them, or from what was made ahead of it."""

    def __init__(self, places: Places, chunks: AsyncGenerator[bytes, None]) -> None:
        self._places = places
        self._chunks = chunks
        self._making = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None
        self._spool = _ExportSpool()
        self._began_at = time.monotonic()
        self._taken = 0
        self._timer = asyncio.get_running_loop().call_later(SPOOL_AFTER, self.spool)

    def rate(self) -> float:
        """Bytes a second that its client has taken."""
        return self._taken / max(time.monotonic() - self._began_at, 0.001)

    def spool(self) -> None:
        """Make the rest without waiting for the client."""
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._make_ahead())

    def leave(self) -> None:
        """Break the answer off."""
        self._spool.discard(ExportBusy("the client reads too slowly, and others wait"))

    async def next(self) -> bytes | None:
        if self._ahead is None:
            async with self._making:
                chunk = await anext(self._chunks, None)
        else:
            chunk = await self._spool.read()
        self._taken += 0 if chunk is None else len(chunk)
        return chunk

    async def close(self) -> None:
        self._timer.cancel()
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.wait((self._ahead,))
        self._spool.close()

    async def _make_ahead(self) -> None:
        try:
            async with self._making:
                while (chunk := await anext(self._chunks, None)) is not None:
                    await self._spool.write(chunk)
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # raised where the client takes: from a task it could end the loop
            self._spool.end(error)
        else:
            self._spool.end()
        self._places.keep_spool(self)


class _ExportSpool:
    """Bytes between the making and the taking: the first in memory, then in a file without a name."""

    def __init__(self) -> None:
        self._memory: deque[bytes] = deque()
        self._in_memory = 0
        self._file: IO[bytes] | None = None
        self._read_to = self._written_to = 0  # places in the file
        self._is_writing = False
        self._is_ended = False
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    async def write(self, chunk: bytes) -> None:
        in_file = self._written_to > self._read_to
        if not in_file and self._in_memory + len(chunk) <= _IN_MEMORY:
            self._memory.append(chunk)
            self._in_memory += len(chunk)
        else:
            self._is_writing = True
            try:
                if self._file is None:
                    self._file = await run_in_thread(tempfile.TemporaryFile)
                handle, place = self._file.fileno(), self._written_to
                await run_in_thread(lambda: _write_at(handle, chunk, place))
                self._written_to += len(chunk)
            finally:
                self._is_writing = False
        self._news.set()

    def end(self, error: BaseException | None = None) -> None:
        self._is_ended = True
        self._error = error
        self._news.set()

    def discard(self, error: BaseException) -> None:
        """Give the client the error in place of what it has not taken."""
        self._memory.clear()
        self._read_to = self._written_to
        self.end(error)

    async def read(self) -> bytes | None:
        """The next bytes; none at the end."""
        while True:
            if self._memory:
                chunk = self._memory.popleft()
                self._in_memory -= len(chunk)
                return chunk
            if self._read_to < self._written_to:
                return await self._read_file()
            if self._is_ended:
                if self._error is not None:
                    raise self._error
                return None
            self._news.clear()
            await self._news.wait()

    async def _read_file(self) -> bytes:
        assert self._file is not None
        handle, place = self._file.fileno(), self._read_to
        size = min(_PIECE, self._written_to - place)
        chunk = await run_in_thread(lambda: os.pread(handle, size, place))
        self._read_to += len(chunk)
        if self._read_to == self._written_to and not self._is_writing:
            self._read_to = self._written_to = 0  # the client keeps up: the file need not grow
        return chunk

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _write_at(handle: int, chunk: bytes, place: int) -> None:
    view = memoryview(chunk)
    while view:
        count = os.pwrite(handle, view, place)
        view, place = view[count:], place + count
