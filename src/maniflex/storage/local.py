"""Files in a directory of this machine, or one that several machines mount."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import stat
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Sequence,
)
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TypeVar

from maniflex._callables import explain_class
from maniflex._clock import Clock, SystemClock
from maniflex.errors import ConfigError, FileExists, FileNotFound, StorageError, StorageFull
from maniflex.storage.port import (
    META_SUFFIX,
    MOST_AT_ONCE,
    FileMeta,
    Reader,
    check_key,
    check_range,
    key_problem,
)
from maniflex.storage.signer import ServedByUs

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

    def _open(self, key: str) -> tuple[FileMeta, _OpenFile]:
        with as_not_found(), self._files.parent(key) as (folder, name):
            meta_handle, _ = open_file(name + META_SUFFIX, folder)
            try:
                text = os.read(meta_handle, MOST_META)
            finally:
                os.close(meta_handle)
            number, status = open_file(name, folder)
        handle = _OpenFile(number)
        try:
            return meta_from_json(text, status.st_size), handle
        except BaseException:
            handle.close()
            raise


class _OpenFile:
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


async def _chunks(handle: _OpenFile, start: int, end: int) -> AsyncIterator[bytes]:
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


# Files below one directory, reached component by component and never through a symbolic link.
#
# Everything here blocks and is called in threads. Each component of a key is opened on the handle of the
# one before it with O_NOFOLLOW, so that a link that is put there at any moment is refused instead of
# followed.


INCOMING = ".incoming"  # uploads that are not complete; no key begins with a dot
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK, because opening a pipe that somebody put there would wait for its writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG}


def storage_error(error: OSError, doing: str) -> StorageError:
    """What becomes of an error of the file system."""
    cause = os.strerror(error.errno or 0)
    if StorageFull.is_meant(error):
        return StorageFull(f"{doing}: the disk is full ({cause})")
    return StorageError(f"{doing}: {cause}")


@contextmanager
def as_not_found() -> Iterator[None]:
    """A path that does not lead to a file is `FileNotFound`, a link in it as well."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise FileNotFound from error
        raise storage_error(error, "reading a file") from error


class Directory:
    """The directory that the keys are relative to; it may itself be a link, which is its owner's choice."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Make the directory, and the place for uploads in it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(self.path / INCOMING, 0o700)

    @contextmanager
    def folder(self, *components: str, make: bool = False) -> Iterator[int]:
        """The handle of a folder."""
        handle = os.open(self.path, _FOLDER)
        try:
            for component in components:
                inner = _enter(handle, component, make=make)
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def parent(self, key: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The handle of the folder that a key is in, and its name in there."""
        *components, name = key.split("/")
        with self.folder(*components, make=make) as handle:
            yield handle, name

    def remove(self, key: str) -> None:
        """Unlink a file and its metadata, and the folders that are empty without it."""
        with as_not_found():
            with self.parent(key) as (handle, name):
                # The metadata first: without it, what is left of a file is not there for anybody.
                removals = [_unlink(name + META_SUFFIX, handle), _unlink(name, handle)]
                if any(removals):
                    os.fsync(handle)
            self._remove_empty_folders(key)
        if not any(removals):
            raise FileNotFound

    def _remove_empty_folders(self, key: str) -> None:
        components = key.split("/")[:-1]
        while components:
            *outer, last = components
            try:
                with self.folder(*outer) as handle:
                    os.rmdir(last, dir_fd=handle)
            except OSError:  # it is in use
                return
            components = outer

    def keys(self, prefix: str) -> Generator[str]:
        """The keys of all complete files, in no order."""
        with suppress(FileNotFoundError), self.folder() as root:
            yield from self._keys_below(root, "", prefix)

    def _keys_below(self, handle: int, path: str, prefix: str) -> Iterator[str]:
        with os.scandir(handle) as entries:
            for entry in entries:
                key = path + entry.name
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    below = f"{key}/"
                    if below.startswith(prefix) or prefix.startswith(below):
                        with suppress(*_GONE), _inside(handle, entry.name) as inner:
                            yield from self._keys_below(inner, below, prefix)
                elif key.startswith(prefix) and not key_problem(key) and _is_complete(entry.name, handle):
                    yield key


_GONE = (FileNotFoundError, NotADirectoryError)  # between seeing a name and opening it


def _enter(handle: int, component: str, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(component, 0o700, dir_fd=handle)
            os.fsync(handle)
    return os.open(component, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)


@contextmanager
def _inside(handle: int, component: str) -> Iterator[int]:
    inner = _enter(handle, component, make=False)
    try:
        yield inner
    finally:
        os.close(inner)


def open_file(name: str, folder: int) -> tuple[int, os.stat_result]:
    """The handle of a regular file, for reading."""
    handle = os.open(name, _READ, dir_fd=folder)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "not a regular file")
    return handle, status


def create_file(name: str, folder: int) -> int:
    """The handle of a new file, for writing; FileExistsError if the name is taken, by a link as well."""
    return os.open(name, _CREATE, 0o600, dir_fd=folder)


def _unlink(name: str, folder: int) -> bool:
    """Whether there was such a file; a link or a folder is none of ours and stays."""
    if not _is_file(name, folder):
        return False
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    return True


def _is_complete(name: str, folder: int) -> bool:
    return _is_file(name, folder) and _is_file(name + META_SUFFIX, folder)


def _is_file(name: str, folder: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


# One upload to a directory: a temporary file that gets its name when all of it is on the disk.
#
#     begin → write … → commit        or at any moment, from another thread: abandon
#
# A file is there once its metadata is: the metadata gets its name last. So a process that is killed
# anywhere leaves a temporary file, or a file without metadata, and neither is shown to anybody.


Buffer = bytes | memoryview
_MOST_BUFFERS = 512  # of one writev; the kernel takes 1024
_ATTEMPTS = 20  # while others remove the folder, because they found it empty


class LocalUpload:
    """Called in threads, one call after another; `abandon` alone may overtake the others."""

    def __init__(self, directory: Directory, key: str, now: datetime) -> None:
        self._directory = directory
        self._key = key
        self._now = now
        self._name = f"{int(now.timestamp())}-{secrets.token_hex(12)}"
        self._busy = Lock()  # held by every call, so that `abandon` does not close what is in use
        self._naming = Lock()  # held while the file gets its name, or must not get it any more
        self._abandoned = False
        self._named = False
        self._handle = -1
        self._size = 0

    def begin(self) -> None:
        """Create the temporary file; `FileExists` if the key is taken already."""
        with self._busy:
            self._refuse_taken()
            self._directory.make()
            with self._directory.folder(INCOMING) as incoming:
                self._handle = create_file(self._name, incoming)

    def write(self, chunks: Sequence[Buffer]) -> None:
        with self._busy:
            if not self._abandoned:
                self._size += _write_all(self._handle, chunks)

    def commit(self, meta: FileMeta) -> FileMeta:
        """Bring all of it to the disk, then give the file its name."""
        with self._busy:
            full_meta = replace(
                meta, size=self._size, etag=f'"{secrets.token_hex(16)}"', created_at=self._now
            )
            os.fsync(self._handle)
            with self._directory.folder(INCOMING) as incoming:
                self._write_meta(full_meta, incoming)
                self._name_it(incoming)
            os.close(self._handle)
            self._handle = -1
            return full_meta

    def abandon(self) -> None:
        """Leave nothing behind, whatever was or is being done."""
        with self._naming:
            self._abandoned = True
        self._unlink_temporary()
        with self._busy:
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1
            self._unlink_temporary()  # a call that was under way may have made one
            if self._named:
                with suppress(Exception):
                    self._directory.remove(self._key)

    def _refuse_taken(self) -> None:
        with suppress(FileNotFoundError), self._directory.parent(self._key) as (folder, name):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            raise FileExists(f"{self._key} is stored already")

    def _write_meta(self, meta: FileMeta, incoming: int) -> None:
        handle = create_file(self._name + META_SUFFIX, incoming)
        try:
            _write_all(handle, [meta_as_json(meta)])
            os.fsync(handle)
        finally:
            os.close(handle)

    def _name_it(self, incoming: int) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                with self._directory.parent(self._key, make=True) as (folder, name):
                    self._move(incoming, folder, name)
                    os.fsync(folder)
                return
            except FileNotFoundError:
                if self._abandoned or attempt == _ATTEMPTS - 1:
                    raise

    def _move(self, incoming: int, folder: int, name: str) -> None:
        with self._naming:
            if self._abandoned:
                raise StorageError("the upload was abandoned")
            try:
                os.close(create_file(name, folder))  # of two uploads to one key, one gets past this
            except FileExistsError:
                raise FileExists(f"{self._key} is stored already") from None
            self._named = True
            os.replace(self._name, name, src_dir_fd=incoming, dst_dir_fd=folder)
            os.replace(self._name + META_SUFFIX, name + META_SUFFIX, src_dir_fd=incoming, dst_dir_fd=folder)

    def _unlink_temporary(self) -> None:
        with suppress(OSError), self._directory.folder(INCOMING) as incoming:
            for name in (self._name, self._name + META_SUFFIX):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=incoming)


def _write_all(handle: int, chunks: Sequence[Buffer]) -> int:
    """Write the chunks without joining them first; how many bytes they are."""
    size = 0
    for first in range(0, len(chunks), _MOST_BUFFERS):
        buffers = [memoryview(chunk) for chunk in chunks[first : first + _MOST_BUFFERS] if chunk]
        while buffers:
            byte_count = os.writev(handle, buffers)
            size += byte_count
            while buffers and byte_count >= len(buffers[0]):
                byte_count -= len(buffers.pop(0))
            if byte_count:
                buffers[0] = buffers[0][byte_count:]
    return size


def meta_as_json(meta: FileMeta) -> bytes:
    assert meta.created_at is not None
    values = {
        "filename": meta.filename,
        "content_type": meta.content_type,
        "etag": meta.etag,
        "created_at": meta.created_at.isoformat(),
    }
    return json.dumps(values).encode()


def meta_from_json(text: bytes, size: int) -> FileMeta:
    """What is known of a file, or `StorageError` if its metadata is damaged."""
    try:
        values = json.loads(text)
        return FileMeta(
            filename=str(values["filename"]),
            content_type=str(values["content_type"]),
            size=size,
            etag=str(values["etag"]),
            created_at=datetime.fromisoformat(values["created_at"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"the metadata of a file is damaged: {type(error).__name__}") from error


def is_temporary(name: str) -> int | None:
    """The second since which a temporary file exists; None if the name is none of ours."""
    second, dash, _ = name.partition("-")
    return int(second) if dash and second.isdigit() else None
