"""One upload to an object store: in one request if it is small, else in parts.

The caller's own task reads the file and hands it on, and obstore takes it from there in a task of its own,
two parts at most under way. An upload that fails or is cancelled ends obstore's task by an error where it
waits for bytes, because then obstore aborts the parts; a task that is merely cancelled leaves them in the
bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from typing import TYPE_CHECKING, Any

from maniflex.storage.port import MOST_AT_ONCE

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART = 5 * 1024 * 1024  # the least that S3 takes
PARTS_AT_ONCE = 2
FAREWELL = 0.8  # seconds that an upload which was given up has to abort its parts


class Abandoned(Exception):
    """Raised to obstore where it waits for more of a file that does not come any more."""


async def pieces(chunks: AsyncIterable[bytes], size: int) -> AsyncGenerator[bytes]:
    """The same bytes in pieces of at least this size, the last excepted."""
    buffer: list[bytes] = []
    size_so_far = 0
    async for chunk in chunks:
        buffer.append(chunk)
        size_so_far += len(chunk)
        if size_so_far >= size:
            yield b"".join(buffer)
            buffer, size_so_far = [], 0
    if buffer:
        yield b"".join(buffer)


class Feed:
    """The bytes of an upload, handed from one task to another, one piece at a time."""

    def __init__(self) -> None:
        self._piece: bytes | None = None
        self._room, self._filled = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._abandoned = False

    async def put(self, piece: bytes | None) -> None:
        """Hand a piece on once there is room; None is the end."""
        await self._room.wait()
        if not self._abandoned:
            self._piece = piece
            self._room.clear()
            self._filled.set()

    def abandon(self) -> None:
        """Whoever takes from it gets an error, and whoever puts is let go."""
        self._abandoned = True
        self._room.set()
        self._filled.set()

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> bytes:
        await self._filled.wait()
        if self._abandoned:
            raise Abandoned
        piece, self._piece = self._piece, None
        if piece is None:
            raise StopAsyncIteration
        self._filled.clear()
        self._room.set()
        return piece


class PartsUpload:
    """An upload in parts; `put` and `finish` raise what obstore's task raised."""

    def __init__(self, store: ObjectStore, path: str, attributes: dict[str, str]) -> None:
        self._feed = Feed()
        self._task: asyncio.Task[Any] = asyncio.create_task(self._send(store, path, attributes))
        self._task.add_done_callback(lambda _: self._feed.abandon())

    async def _send(self, store: ObjectStore, path: str, attributes: dict[str, str]) -> Any:
        import obstore

        return await obstore.put_async(
            store,
            path,
            self._feed,
            attributes=attributes,
            use_multipart=True,
            chunk_size=PART,
            max_concurrency=PARTS_AT_ONCE,
        )

    async def put(self, piece: bytes) -> None:
        view = memoryview(piece)
        for offset in range(0, len(view), MOST_AT_ONCE):
            await self._feed.put(bytes(view[offset : offset + MOST_AT_ONCE]))
            if self._task.done():
                self._task.result()

    async def finish(self) -> Any:
        await self._feed.put(None)
        return await asyncio.shield(self._task)

    async def abandon(self) -> bool:
        """Let obstore abort the parts; False if it did not in time, or the upload is complete."""
        self._feed.abandon()
        done, _ = await asyncio.wait({self._task}, timeout=FAREWELL)
        if not done:
            self._task.cancel()
            return False
        return not self._task.cancelled() and self._task.exception() is not None
