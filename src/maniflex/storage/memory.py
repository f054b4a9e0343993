"""Files in the memory of one process: for tests and a first try."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import replace

from maniflex._callables import explain_class
from maniflex._clock import Clock, SystemClock
from maniflex.errors import FileExists, FileNotFound, StorageFull
from maniflex.storage.port import MOST_AT_ONCE, FileMeta, Reader, check_key, check_range
from maniflex.storage.signer import ServedByUs

DEFAULT_ROOM = 256 * 1024 * 1024


@explain_class
class MemoryStorage(ServedByUs):
    """Keeps up to `max_bytes` in this process; all of it is gone when the process ends."""

    def __init__(self, *, max_bytes: int = DEFAULT_ROOM, clock: Clock | None = None) -> None:
        self.max_bytes = max_bytes
        self._clock = clock or SystemClock()
        self._files: dict[str, tuple[bytes, FileMeta]] = {}
        self._used = 0  # those that are being stored included

    def __repr__(self) -> str:
        return f"MemoryStorage(max_bytes={self.max_bytes})"

    async def store(self, key: str, chunks: AsyncIterable[bytes], meta: FileMeta) -> FileMeta:
        self._refuse_taken(check_key(key))
        pieces: list[bytes] = []
        size = 0
        try:
            async for chunk in chunks:
                size += len(chunk)
                self._used += len(chunk)
                if self._used > self.max_bytes:
                    raise StorageFull(f"MemoryStorage is full: max_bytes is {self.max_bytes}")
                pieces.append(bytes(chunk))
            self._refuse_taken(key)
        except BaseException:
            self._used -= size
            raise
        full_meta = replace(meta, size=size, etag=f'"{secrets.token_hex(16)}"', created_at=self._clock.now())
        self._files[key] = b"".join(pieces), full_meta
        return full_meta

    async def open(self, key: str, *, start: int = 0, length: int | None = None) -> Reader:
        check_range(start, length)
        data, meta = self._file(key)
        end = len(data) if length is None else min(start + length, len(data))
        return Reader(meta, _slices(data, start, end))

    async def delete(self, key: str) -> None:
        data, _ = self._file(key)
        del self._files[key]
        self._used -= len(data)

    async def exists(self, key: str) -> bool:
        return check_key(key) in self._files

    async def stat(self, key: str) -> FileMeta:
        return self._file(key)[1]

    async def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        for key in sorted(self._files):
            if key.startswith(prefix):
                yield key

    def _file(self, key: str) -> tuple[bytes, FileMeta]:
        try:
            return self._files[check_key(key)]
        except KeyError:
            raise FileNotFound from None

    def _refuse_taken(self, key: str) -> None:
        if key in self._files:
            raise FileExists(f"{key} is stored already")


async def _slices(data: bytes, start: int, end: int) -> AsyncIterator[bytes]:
    for offset in range(start, end, MOST_AT_ONCE):
        yield data[offset : min(offset + MOST_AT_ONCE, end)]
