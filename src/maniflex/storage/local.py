"""Files in a directory of this machine, or one that several machines mount."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing, suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TypeVar

from maniflex._arguments import explain_class
from maniflex._clock import Clock, SystemClock
from maniflex.errors import ConfigError, FileNotFound, StorageError
from maniflex.storage._directory import (
    INCOMING,
    Directory,
    as_not_found,
    create_file,
    open_file,
    storage_error,
)
from maniflex.storage._local_upload import Buffer, LocalUpload, is_temporary, meta_from_json
from maniflex.storage.keys import META_SUFFIX, check_key
from maniflex.storage.port import MOST_AT_ONCE, FileMeta, Reader, check_range
from maniflex.storage.served import ServedByUs

T = TypeVar("T")
READ_AT_ONCE = 512 * 1024  # in one turn of a thread
PIECE = 64 * 1024  # as answers send it, so that it is not copied there
MOST_META = 64 * 1024  # bytes
_LISTED_AT_ONCE = 500
_FAREWELL = 0.5  # seconds that a store which was given up waits for its thread


@explain_class
class LocalStorage(ServedByUs):
    """Keeps files below `directory`, each beside what is known of it in `<name>.meta.json`."""

    def __init__(self, directory: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
            raise ConfigError("LocalStorage needs directory handles, which this operating system has not")
        self.directory = Path(directory)
        self._files = Directory(self.directory)
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"LocalStorage({str(self.directory)!r})"

    def problems(self) -> list[str]:
        """A sentence if the directory could not be made or written; nothing of the try is left."""
        place = self.directory.absolute()
        while not os.path.lexists(place):
            place = place.parent
        probe = place / f".0-probe-{os.getpid()}"
        try:
            probe.mkdir(mode=0o700)
            probe.rmdir()
        except OSError as error:
            return [self._sentence(error.strerror)]
        return []

    def prepare(self) -> None:
        """Make the directory and write to it, at the start of a server; `ConfigError` if that fails."""
        try:
            self._files.make()
            with self._files.folder(INCOMING) as incoming:
                name = f"0-probe-{os.getpid()}"
                os.close(create_file(name, incoming))
                os.unlink(name, dir_fd=incoming)
        except OSError as error:
            raise ConfigError(self._sentence(error.strerror)) from error

    def _sentence(self, why: str | None) -> str:
        return f"storage: the directory {self.directory} cannot be made or written: {why}"

    async def store(self, key: str, chunks: AsyncIterable[bytes], meta: FileMeta) -> FileMeta:
        upload = LocalUpload(self._files, check_key(key), self._clock.now())
        try:
            await _store_in_thread(upload.begin)
            async with aclosing(_batches(chunks)) as batches:
                async for batch in batches:
                    await _store_in_thread(partial(upload.write, batch))
            return await _store_in_thread(partial(upload.commit, meta))
        except BaseException:
            await _abandon(upload)
            raise

    async def open(self, key: str, *, start: int = 0, length: int | None = None) -> Reader:
        check_range(start, length)
        meta, handle = await _in_thread(partial(self._open, check_key(key)))
        end = meta.size if length is None else min(start + length, meta.size)
        return Reader(meta, _chunks(handle, start, end), handle.aclose)

    async def delete(self, key: str) -> None:
        await _in_thread(partial(self._files.remove, check_key(key)))

    async def exists(self, key: str) -> bool:
        try:
            await self.stat(key)
        except FileNotFound:
            return False
        return True

    async def stat(self, key: str) -> FileMeta:
        meta, handle = await _in_thread(partial(self._open, check_key(key)))
        handle.close()
        return meta

    async def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        keys = self._files.keys(prefix)
        try:
            while batch := await _in_thread(lambda: list(islice(keys, _LISTED_AT_ONCE))):
                for key in batch:
                    yield key
        finally:
            with suppress(ValueError):  # a thread is in it still, and what it holds goes with it
                keys.close()

    async def stale_temporaries(self, older_than: timedelta) -> list[str]:
        """The temporary files of uploads that were killed, and of those that take longer than this."""
        return await _in_thread(partial(self._stale, older_than))

    async def remove_stale_temporaries(self, older_than: timedelta) -> int:
        """Remove them; how many there were."""

        def remove() -> int:
            if not (names := self._stale(older_than)):
                return 0
            with self._files.folder(INCOMING) as incoming:
                for name in names:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=incoming)
            return len(names)

        return await _in_thread(remove)

    def _stale(self, older_than: timedelta) -> list[str]:
        limit = (self._clock.now() - older_than).timestamp()
        names: list[str] = []
        with suppress(FileNotFoundError), self._files.folder(INCOMING) as incoming:
            names = os.listdir(incoming)
        return sorted(name for name in names if (second := is_temporary(name)) is not None and second < limit)

    def _open(self, key: str) -> tuple[FileMeta, _Handle]:
        with as_not_found(), self._files.parent(key) as (folder, name):
            meta_handle, _ = open_file(name + META_SUFFIX, folder)
            try:
                text = os.read(meta_handle, MOST_META)
            finally:
                os.close(meta_handle)
            number, status = open_file(name, folder)
        handle = _Handle(number)
        try:
            return meta_from_json(text, status.st_size), handle
        except BaseException:
            handle.close()
            raise


class _Handle:
    """An open file that is read by threads; it is not closed under a thread that reads it."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = Lock()

    def read(self, length: int, offset: int) -> list[bytes]:
        """These bytes in pieces, as far as there are so many."""
        pieces = []
        end = offset + length
        with self._lock:
            # A file system may give less than it was asked for, and the rest the next time.
            while offset < end and (piece := os.pread(self._number, min(PIECE, end - offset), offset)):
                pieces.append(piece)
                offset += len(piece)
        return pieces

    def close(self) -> None:
        with self._lock:
            number, self._number = self._number, -1
            if number >= 0:
                os.close(number)

    async def aclose(self) -> None:
        if self._lock.locked():
            await _in_thread(self.close)
        else:
            self.close()

    def __del__(self) -> None:
        if self._number >= 0:
            os.close(self._number)


async def _chunks(handle: _Handle, start: int, end: int) -> AsyncIterator[bytes]:
    while start < end:
        try:
            pieces = await _in_thread(partial(handle.read, min(READ_AT_ONCE, end - start), start))
        except OSError as error:
            raise storage_error(error, "reading a file") from error
        if not pieces:
            raise StorageError("a file became shorter while it was read")
        for piece in pieces:
            start += len(piece)
            yield piece


async def _batches(chunks: AsyncIterable[bytes]) -> AsyncGenerator[list[Buffer]]:
    """The chunks in lists of about 1 MB, because a change of threads costs more than a small write."""
    batch: list[Buffer] = []
    size = 0
    async for chunk in chunks:
        if len(chunk) > MOST_AT_ONCE:
            whole = memoryview(chunk)
            for offset in range(0, len(whole), MOST_AT_ONCE):
                yield [*batch, whole[offset : offset + MOST_AT_ONCE]]
                batch, size = [], 0
            continue
        batch.append(chunk)
        size += len(chunk)
        if size >= MOST_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _abandon(upload: LocalUpload) -> None:
    # Not awaited to its end: a disk that takes long must not hold up a request that was cancelled.
    leaving = asyncio.get_running_loop().run_in_executor(None, upload.abandon)
    await asyncio.wait({leaving}, timeout=_FAREWELL)


async def _store_in_thread(call: Callable[[], T]) -> T:
    try:
        return await _in_thread(call)
    except OSError as error:
        raise storage_error(error, "storing a file") from error


async def _in_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)
