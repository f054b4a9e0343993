"""Files below one directory, reached component by component and never through a symbolic link.

Everything here blocks and is called in threads. Each component of a key is opened on the handle of the one
before it with O_NOFOLLOW, so that a link that is put there at any moment is refused instead of followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from maniflex.errors import FileNotFound, StorageError, StorageFull
from maniflex.storage.keys import META_SUFFIX, key_problem

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
                removed = [_unlink(name + META_SUFFIX, handle), _unlink(name, handle)]
                if any(removed):
                    os.fsync(handle)
            self._remove_empty_folders(key)
        if not any(removed):
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
