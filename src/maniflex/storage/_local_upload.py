"""One upload to a directory: a temporary file that gets its name when all of it is on the disk.

    begin → write … → commit        or at any moment, from another thread: abandon

A file is there once its metadata is: the metadata gets its name last. So a process that is killed anywhere
leaves a temporary file, or a file without metadata, and neither is shown to anybody.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from threading import Lock

from maniflex.errors import FileExists, StorageError
from maniflex.storage._directory import INCOMING, Directory, create_file
from maniflex.storage.keys import META_SUFFIX
from maniflex.storage.port import FileMeta

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
            written = os.writev(handle, buffers)
            size += written
            while buffers and written >= len(buffers[0]):
                written -= len(buffers.pop(0))
            if written:
                buffers[0] = buffers[0][written:]
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
