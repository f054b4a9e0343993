"""Read `multipart/form-data` part by part, while it arrives.

A parser that is pushed fills a queue with what one piece of the body holds, and the next piece is taken
from the connection only when the queue is empty. So a form of any size takes the memory of one piece,
and a reader that waits for a storage makes the client wait.

    async for part in form:
        async for chunk in part:
            ...
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from maniflex.errors import BodyTooLarge, MultipartError, StorageError, StorageFull
from maniflex.pipeline.context import Context
from maniflex.pipeline.watch import ClientGone
from maniflex.storage.port import MOST_AT_ONCE

# It warns of every malformed form, and anybody may send those.
logging.getLogger("python_multipart.multipart").setLevel(logging.ERROR)

FORM = b"multipart/form-data"
PIECE = 64 * 1024  # bytes that are parsed at once
HEADER_SIZE = 8 * 1024  # of all headers of one part
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_PLAIN_ENCODINGS = ("", "7bit", "8bit", "binary")


def form_type(ctx: Context) -> bytes | None:
    """The `Content-Type` of a body that is a form."""
    for name, value in ctx.scope["headers"]:
        if name == b"content-type" and value.partition(b";")[0].strip().lower() == FORM:
            return bytes(value)
    return None


@dataclass(frozen=True, slots=True)
class FormLimits:
    """How much one form may be."""

    size: int  # bytes of the whole body
    parts: int


class FormPart:
    """One part: its name, and its bytes as they arrive."""

    __slots__ = ("_form", "content_type", "filename", "name")

    def __init__(self, form: Form, name: str, filename: str | None, content_type: str | None) -> None:
        self._form = form
        self.name = name
        self.filename = filename  # None: a text
        self.content_type = content_type

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes of the part; none once the next part was asked for."""
        while self._form.current is self:
            chunk = await self._form.next_chunk()
            if chunk is None:
                return
            yield chunk

    async def read(self, most: int) -> bytes:
        """All bytes of the part; `BodyTooLarge` when they are more than `most`."""
        content = bytearray()
        async for chunk in self:
            content += chunk
            if len(content) > most:
                raise BodyTooLarge(f"the texts of the form are larger than {most} bytes")
        return bytes(content)


class Form:
    """The parts of one body, in their order."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[Any]],
        content_type: bytes,
        limits: FormLimits,
        *,
        digests: bool = False,
    ) -> None:
        self._receive = receive
        self._limits = limits
        self._size = self._parts = 0
        self._arrived, self._offset = b"", 0  # of the body: the part that is not parsed yet
        self._is_last = False  # nothing of the body comes behind it
        self._has_ended = False  # the parser has seen the last boundary
        self._queue: deque[FormPart | bytes | None] = deque()  # a part, its chunks, and None at its end
        self._headers = _PartHeaders()
        self._digest = _FormDigest() if digests else None
        self.current: FormPart | None = None
        self._parser = MultipartParser(
            _boundary(content_type), self._callbacks(), max_header_size=HEADER_SIZE
        )

    @property
    def digest(self) -> bytes:
        """What the parts say, whatever stood between them; only of a form that was read to its end."""
        return b"" if self._digest is None else self._digest.value()

    async def __aiter__(self) -> AsyncIterator[FormPart]:
        while True:
            while self.current is not None:  # what nobody read of the part before
                await self.next_chunk()
            if not await self._fill():
                return
            part = self._queue.popleft()
            assert isinstance(part, FormPart)
            self.current = part
            yield part

    async def next_chunk(self) -> bytes | None:
        """The next bytes of the current part; None at its end."""
        await self._fill()
        chunk = self._queue.popleft()
        assert not isinstance(chunk, FormPart)
        if chunk is None:
            self.current = None
        return chunk

    async def _fill(self) -> bool:
        """Put something into the queue; False at the end of the form."""
        while not self._queue:
            if self._offset >= len(self._arrived):
                if self._is_last:
                    if self._has_ended:
                        return False
                    raise MultipartError("the form ends before its last boundary")
                await self._take_more()
                continue
            piece = self._arrived[self._offset : self._offset + PIECE]
            self._offset += len(piece)
            if not self._has_ended:  # what comes behind the last boundary means nothing
                self._parse(piece)
        return True

    async def _take_more(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone()
        self._arrived, self._offset = message.get("body", b""), 0
        self._is_last = not message.get("more_body")
        self._size += len(self._arrived)
        if self._size > self._limits.size:
            raise BodyTooLarge(f"the form is larger than {self._limits.size} bytes")

    def _parse(self, piece: bytes) -> None:
        try:
            self._parser.write(piece)
        except FormParserError:
            raise MultipartError() from None

    def _callbacks(self) -> Any:
        headers = self._headers
        return {
            "on_part_begin": headers.clear,
            "on_header_field": headers.add_to_name,
            "on_header_value": headers.add_to_value,
            "on_header_end": headers.end_one,
            "on_headers_finished": self._begin_part,
            "on_part_data": self._add_data,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > self._limits.parts:
            raise MultipartError(f"the form has more than {self._limits.parts} parts")
        part = self._headers.part_of(self)
        if self._digest is not None:
            self._digest.begin(part)
        self._queue.append(part)

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if start == end:
            return
        chunk = data[start:end]
        if self._digest is not None:
            self._digest.add(chunk)
        self._queue.append(chunk)

    def _end_part(self) -> None:
        if self._digest is not None:
            self._digest.end()
        self._queue.append(None)

    def _end(self) -> None:
        self._has_ended = True


class _PartHeaders:
    """The headers of the part that is being read."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._size = 0

    def add_to_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]
        self._count(end - start)

    def add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._count(end - start)

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > HEADER_SIZE:
            raise MultipartError(f"a part of the form has more than {HEADER_SIZE} bytes of headers")

    def end_one(self) -> None:
        self._values[self._name.lower()] = self._value
        self._name = self._value = b""

    def part_of(self, form: Form) -> FormPart:
        """The part that these headers begin."""
        kind, options = parse_options_header(self._values.get(b"content-disposition", b""))
        if kind.lower() != b"form-data" or b"name" not in options:
            raise MultipartError("a part of the form has no name")
        encoding = self._values.get(b"content-transfer-encoding", b"").decode("latin-1").strip().lower()
        if encoding not in _PLAIN_ENCODINGS:
            raise MultipartError("a part of the form is encoded; send its bytes as they are")
        filename = options.get(b"filename")
        content_type = self._values.get(b"content-type", b"").decode("latin-1").strip()
        return FormPart(
            form,
            _text(options[b"name"], "name"),
            None if filename is None else _without_folders(_text(filename, "filename")),
            content_type or None,
        )


class _FormDigest:
    """What two sendings of one form have in common: names, types and contents, not the boundary."""

    def __init__(self) -> None:
        self._whole = sha256()
        self._content = sha256()

    def begin(self, part: FormPart) -> None:
        for text in (part.name, part.filename, part.content_type):
            data = b"" if text is None else text.encode("utf-8", "surrogatepass")
            self._whole.update(b"%d %d " % (text is not None, len(data)) + data)
        self._content = sha256()

    def add(self, chunk: bytes) -> None:
        self._content.update(chunk)

    def end(self) -> None:
        self._whole.update(self._content.digest())

    def value(self) -> bytes:
        return self._whole.digest()


def _boundary(content_type: bytes) -> bytes:
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary):
        raise MultipartError("Content-Type names no boundary that a form may have")
    return boundary


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MultipartError(f"the {what} of a part of the form is no UTF-8") from None


def _without_folders(filename: str) -> str:
    """The name alone: some clients send the path of the file on their machine."""
    return filename.replace("\\", "/").rpartition("/")[2]


# Where the files of one form wait until the form is known to be sound: in memory, then in a temporary
# file.
#
# The file has no name, so it is gone when the request ends, whatever ends it.


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
