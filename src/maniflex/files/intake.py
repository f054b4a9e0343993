"""The bytes of one upload on their way to the storage: counted, hashed, held to the rules of the field."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from hashlib import sha256

from maniflex.errors import FileTooLarge, FileTypeNotAllowed
from maniflex.files.quota import no_room
from maniflex.files.sniffing import ENOUGH, contradicts, sniff
from maniflex.model.file_field import FileRules
from maniflex.storage.port import OCTET_STREAM

_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+( ?;[ -~]*)?", re.ASCII)
_LONGEST_TYPE = 255


def clean_content_type(text: str | None) -> str:
    """A media type as a client or a storage says it; empty where it can be none."""
    bare = (text or "").strip()
    return bare if len(bare) <= _LONGEST_TYPE and _TYPE.fullmatch(bare) else ""


class Intake:
    """Chunks as a storage takes them; `look` comes first, because the type goes before the bytes."""

    def __init__(
        self,
        chunks: AsyncIterable[bytes],
        rules: FileRules,
        *,
        content_type: str | None,
        on_chunk: Callable[[], Awaitable[None]],
        room: int | None = None,
    ) -> None:
        self._chunks = aiter(chunks)
        self._rules = rules
        self._on_chunk = on_chunk
        self._room = room  # bytes that the caller may still store
        self._head: list[bytes] = []
        self._digest = sha256()
        self.content_type = clean_content_type(content_type)
        self.size = 0
        self.failure: BaseException | None = None  # of the chunks or the rules, and not of the storage

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    async def look(self) -> None:
        """Find the type of the file and hold it against the rules; nothing is stored yet."""
        if self.content_type and not self._is_unsaid() and not self._rules.sniff:
            self._check_type()
            return
        size = 0
        while size < ENOUGH and (chunk := await anext(self._chunks, None)) is not None:
            self._head.append(chunk)
            size += len(chunk)
        head = b"".join(self._head)[:ENOUGH]
        if self._is_unsaid():
            self.content_type = sniff(head)
        elif self._rules.sniff and contradicts(head, self.content_type):
            raise FileTypeNotAllowed("the file is not of the type it says")
        self._check_type()

    def _is_unsaid(self) -> bool:
        return self.content_type.partition(";")[0].strip().lower() in ("", OCTET_STREAM)

    def _check_type(self) -> None:
        if not self._rules.accepts(self.content_type):
            raise FileTypeNotAllowed(f"the file must be {' or '.join(self._rules.accept)}")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for chunk in self._head:
                yield await self._take(chunk)
            self._head.clear()
            async for chunk in self._chunks:
                yield await self._take(chunk)
            await self._on_chunk()  # before the storage completes the object
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = error
            raise

    async def _take(self, chunk: bytes) -> bytes:
        self.size += len(chunk)
        if self._rules.max_size is not None and self.size > self._rules.max_size:
            raise FileTooLarge(f"the file has more than {self._rules.max_size} bytes")
        if self._room is not None and self.size > self._room:
            raise no_room()
        self._digest.update(chunk)
        await self._on_chunk()
        return chunk
