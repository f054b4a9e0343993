"""Read `multipart/form-data` part by part, while it arrives, into the body and the files of a request.

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

from maniflex import _json
from maniflex.errors import (
    BodyTooLarge,
    DeclarationError,
    Detail,
    FileTooLarge,
    FileTypeNotAllowed,
    InvalidBody,
    InvalidJson,
    InvalidQuery,
    MultipartError,
    NoStorage,
    StorageError,
    StorageFull,
    TooManyFiles,
    UnsupportedMediaType,
)
from maniflex.files.desk import FileDesk, clean_filename
from maniflex.files.intake import Intake
from maniflex.files.links import about_field
from maniflex.files.owner import owner_of
from maniflex.model.field import FileRules, rules_of_field
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.model.value_rules import detail
from maniflex.pipeline.body import UploadBody, uploading
from maniflex.pipeline.context import Context
from maniflex.pipeline.rules.checks import refusal
from maniflex.pipeline.watch import ClientGone
from maniflex.query.values import parse_value
from maniflex.storage.port import MOST_AT_ONCE, new_key

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


# The deserialize step of a form: its parts become values of the body and files that wait to be stored.
#
# A file of a field with `upload="stream"` goes to the storage while it arrives. All others wait in the
# spool of the request until the form is validated.


KEY_HEADER = b"idempotency-key"


class FormReader:
    """Reads the forms of one model, for creates or for updates."""

    def __init__(self, model: ModelMeta, desk: FileDesk, closed: frozenset[str]) -> None:
        self._model = model
        self._desk = desk
        self._closed = closed  # API names of file fields that such a request may not set
        config = desk.config
        open_rules = [
            rules for f in model.fields if (rules := rules_of_field(f)) is not None and f.api not in closed
        ]
        largest = max((rules.max_size or 0 for rules in open_rules), default=0)
        most = config.max_upload_size
        self._limits = FormLimits(
            most if largest < most else largest + config.max_body_size, config.max_form_parts
        )

    async def read(
        self, ctx: Context, content_type: bytes, before_stream: Callable[[], Awaitable[None]]
    ) -> None:
        """Fill `ctx.form`; `before_stream` may refuse the request before anything of it is stored."""
        if not self._desk.has_storage:
            raise NoStorage()
        check_headers(ctx, self._limits.size)
        config = self._desk.config
        ctx.form = request = FormRequest(Spool(config.upload_memory, str(config.upload_dir)))
        ctx.files = request.files
        form = Form(
            UploadBody(ctx).receive,
            content_type,
            self._limits,
            digests=any(name == KEY_HEADER for name, _ in ctx.scope["headers"]),
        )
        reading = _FormReading(self, ctx, request, before_stream)
        with uploading(ctx):
            async for part in form:
                await reading.take(part)
        request.digest = form.digest
        if reading.problems:
            raise refusal(self._model, reading.problems)

    # What one reading asks of the model and the server.

    def field(self, name: str) -> FieldMeta | None:
        return self._model.by_api.get(name)

    def is_closed(self, name: str) -> bool:
        return name in self._closed

    @property
    def desk(self) -> FileDesk:
        return self._desk

    @property
    def exact(self) -> bool:
        return self._model.exact


class _FormReading:
    """One form while its parts come."""

    def __init__(
        self,
        reader: FormReader,
        ctx: Context,
        request: FormRequest,
        before_stream: Callable[[], Awaitable[None]],
    ) -> None:
        self._reader = reader
        self._ctx = ctx
        self._request = request
        self._before_stream: Callable[[], Awaitable[None]] | None = before_stream
        self._text_left = ctx.max_body_size or ctx.runtime.config.max_body_size
        self.problems: list[Detail] = []

    async def take(self, part: FormPart) -> None:
        field = self._reader.field(part.name)
        rules = None if field is None else rules_of_field(field)
        if part.filename is None:
            await self._take_text(part, field, rules)
        elif field is None or field.hidden:  # ignored like an unknown key of JSON, which a rule may refuse
            self._request.values.setdefault(part.name, None)
        else:
            chunks = aiter(part)
            first = await anext(chunks, None)
            if first is None and not part.filename:
                return  # an input of a page that nothing was chosen in
            await self._take_file(part, field, rules, _put_first(first, chunks))

    async def _take_text(self, part: FormPart, field: FieldMeta | None, rules: FileRules | None) -> None:
        content = await part.read(self._text_left)
        self._text_left -= len(content)
        ctx = self._ctx
        if is_json(part.content_type):
            most = ctx.runtime.config.limits.body_values
            value = json_value(content, part.name, field=field, exact=self._reader.exact, most=most)
        else:
            value = text_value(content, part.name, None if rules is not None else field)
            if rules is not None and not value and field is not None and field.nullable:
                value = None
        if rules is not None and self._refuse_closed(part.name, field):
            return
        self._keep(part.name, value, rules)

    async def _take_file(
        self, part: FormPart, field: FieldMeta, rules: FileRules | None, chunks: AsyncIterator[bytes]
    ) -> None:
        if rules is None:
            self.problems.append(detail(part.name, "file", "is not a file field"))
        elif not self._refuse_closed(part.name, field):
            with about_field(part.name, FileTooLarge, FileTypeNotAllowed, TooManyFiles):
                await self._take_own(part, rules, chunks)

    async def _take_own(self, part: FormPart, rules: FileRules, chunks: AsyncIterator[bytes]) -> None:
        """Take a file for a file field."""
        self._refuse_many(part.name, rules)
        if not rules.is_list and part.name in self._request.values:
            self._refuse_repeated(part.name)
        elif rules.upload == "stream":
            await self._stream(part, rules, chunks)
        else:
            await self._spool(part, rules, chunks)

    async def _stream(self, part: FormPart, rules: FileRules, chunks: AsyncIterator[bytes]) -> None:
        before, self._before_stream = self._before_stream, None
        if before is not None:
            await before()
        desk, ctx = self._reader.desk, self._ctx
        stored = await desk.store(
            chunks,
            filename=part.filename or "",
            content_type=part.content_type,
            owner=await owner_of(ctx, desk.config.file_scope),
            rules=rules,
            ctx=ctx,
        )
        self._request.stored_keys.append(stored.key)
        file = UploadedFile(
            part.name, stored.filename, stored.content_type, size=stored.size or 0, spool=None, key=stored.key
        )
        self._keep(part.name, stored.key, rules)
        self._request.add_file(part.name, file, in_list=rules.is_list)

    async def _spool(self, part: FormPart, rules: FileRules, chunks: AsyncIterator[bytes]) -> None:
        request = self._request
        intake = Intake(chunks, rules, content_type=part.content_type, on_chunk=_nothing)
        await intake.look()
        async for chunk in aiter(intake):
            await request.spool.write(chunk)
        filename = clean_filename(part.filename or "")
        file = UploadedFile(part.name, filename, intake.content_type, size=intake.size, spool=request.spool)
        self._keep(part.name, request.add_waiting(file), rules)
        request.add_file(part.name, file, in_list=rules.is_list)

    def _keep(self, name: str, value: Any, rules: FileRules | None) -> None:
        in_list = rules is not None and rules.is_list and value is not None
        if not self._request.add_value(name, value, in_list=in_list):
            self._refuse_repeated(name)

    def _refuse_repeated(self, name: str) -> None:
        self.problems.append(detail(name, "repeated", "stands in the form more than once"))

    def _refuse_many(self, name: str, rules: FileRules) -> None:
        """Refuse more files than a list holds before more of them are read."""
        if rules.is_list and len(self._request.values.get(name) or ()) >= rules.max_count:
            raise TooManyFiles(f"{name} takes at most {rules.max_count} files")

    def _refuse_closed(self, name: str, field: FieldMeta | None) -> bool:
        if field is None or field.hidden or not self._reader.is_closed(name):
            return False
        code, text = (
            ("readonly", "is read-only") if field.readonly else ("immutable", "cannot be changed any more")
        )
        self.problems.append(detail(name, code, text))
        return True


async def _put_first(first: bytes | None, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks of a part, the one that was looked at before the others."""
    if first is not None:
        yield first
    async for chunk in rest:
        yield chunk


async def _nothing() -> None:
    pass


def check_headers(ctx: Context, most: int) -> None:
    """Refuse a form that is too large before a byte of it is read."""
    for name, value in ctx.scope["headers"]:
        if name == b"content-length":
            if not value.isdigit():
                raise InvalidBody("Content-Length is not a number")
            if len(value) > 18 or int(value) > most:
                raise BodyTooLarge(f"the form is larger than {most} bytes")
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise UnsupportedMediaType("a compressed body is not accepted")


# The texts of a form → values of fields: by the type of the part, else by the kind of the field.

# Others are text in JSON too, which the rules of their fields read.
_READ_HERE = frozenset({Kind.INT, Kind.FLOAT, Kind.DECIMAL, Kind.BOOL})


def json_value(content: bytes, name: str, *, field: FieldMeta | None, exact: bool, most: int) -> Any:
    """The value of a part that is typed as JSON."""
    try:
        value = _json.loads(content, exact, most)
        if field is not None and field.kind is Kind.JSON:
            _json.refuse_long_integers(content, value)
            return _json.as_floats(value) if exact else value
    except InvalidJson as error:
        raise InvalidJson(f"the part {name!r} of the form: {error.message}") from None
    return value


def text_value(content: bytes, name: str, field: FieldMeta | None) -> Any:
    """The value of another part; what cannot be read stays text, for the rules of the field to refuse."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise MultipartError(f"the part {name!r} of the form is no UTF-8") from None
    if field is None or field.kind is Kind.TEXT:
        return text
    if not text and field.nullable:
        return None
    if field.kind not in _READ_HERE:
        return text
    try:
        return parse_value(text, field, name, member=False)
    except InvalidQuery:
        return text


def is_json(content_type: str | None) -> bool:
    """Whether a part says that it is JSON."""
    bare = "" if content_type is None else content_type.partition(";")[0].strip().lower()
    return bare == "application/json" or (bare.startswith("application/") and bare.endswith("+json"))


# The form of one request while it is worked on: its values, its files, and what was stored of them.


Files = dict[str, "UploadedFile | list[UploadedFile]"]


class FormRequest:
    """`ctx.form`. A file that waits for its storing stands in the body under a key that is no file's."""

    __slots__ = ("answer", "digest", "files", "is_settled", "spool", "stored_keys", "values", "waiting")

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.values: dict[str, Any] = {}  # by API name
        self.files: Files = {}
        self.waiting: dict[str, UploadedFile] = {}  # by the key that stands for it
        self.stored_keys: list[str] = []
        self.digest = b""  # of all parts, for requests that may be sent twice
        self.answer: Any = None  # of an upload to /files: the one that tells of its file
        self.is_settled = False  # the files are stored, and the record is to name them

    def add_waiting(self, file: UploadedFile) -> str:
        """The key that stands for a file until it is stored."""
        stand_in = new_key(file.filename)
        self.waiting[stand_in] = file
        return stand_in

    def add_value(self, name: str, value: Any, *, in_list: bool) -> bool:
        """Keep the value of a part; False when there is one already and the field holds but one."""
        if not in_list:
            is_first = name not in self.values
            self.values.setdefault(name, value)
            return is_first
        items = self.values.setdefault(name, [])
        if items is None:  # a null was sent before
            return False
        items += value if isinstance(value, list) else [value]
        return True

    def add_file(self, name: str, file: UploadedFile, *, in_list: bool) -> None:
        if not in_list:
            self.files[name] = file
            return
        files = self.files.setdefault(name, [])
        assert isinstance(files, list)
        files.append(file)


# A file of a form, as the code of the application sees it: `ctx.files["cover"]`.


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
