"""A file of a form, as the code of the application sees it: `ctx.files["cover"]`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from maniflex.errors import DeclarationError
from maniflex.features.files.spool import Spool
from maniflex.storage.port import MOST_AT_ONCE


class UploadedFile:
    """One file that a client sent; its bytes are stored at the end of the validate step.

    Of a field with `upload="stream"` only the name, the type and the key are known: its bytes went to the
    storage while they came.
    """

    __slots__ = ("_bytes", "_end", "_spool", "_start", "content_type", "field", "filename", "key", "size")

    def __init__(
        self, field: str, filename: str, content_type: str, *, size: int, spool: Spool | None, key: str = ""
    ) -> None:
        self.field = field  # its name in the form
        self.filename = filename
        self.content_type = content_type
        self.size = size
        self.key = key  # once it is stored
        self._spool = spool
        self._start = 0 if spool is None else spool.size - size
        self._end = self._start + size
        self._bytes: bytes | None = None

    def __repr__(self) -> str:
        return f"<UploadedFile {self.field} {self.content_type} {self.size} bytes>"

    async def read(self) -> bytes:
        """All of it, in memory."""
        return b"".join([chunk async for chunk in self.stream()])

    async def stream(self) -> AsyncIterator[bytes]:
        """Its bytes, chunk by chunk; from the beginning at every call."""
        if self._bytes is not None:
            for start in range(0, len(self._bytes), MOST_AT_ONCE):
                yield self._bytes[start : start + MOST_AT_ONCE]
        elif self._spool is not None:
            async for chunk in self._spool.read(self._start, self._end):
                yield chunk
        else:
            raise DeclarationError(f"{self.field}: a file with upload='stream' is in the storage already")

    def replace(self, data: bytes, *, content_type: str | None = None) -> None:
        """Store these bytes instead, such as a smaller picture; the rules of the field judge them too."""
        if self.key:
            raise DeclarationError(f"{self.field}: the file is stored already, so it cannot be replaced")
        self._bytes = data
        self.size = len(data)
        if content_type is not None:
            self.content_type = content_type
