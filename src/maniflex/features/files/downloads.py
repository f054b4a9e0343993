"""Answer with a stored file: its headers, the part that is asked for, and its bytes.

What a client uploaded never runs in a browser as if it were ours: types that do are downloads, and
`nosniff` and a sandbox keep a browser from finding others.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from urllib.parse import quote

from maniflex.errors import FileNotFound, FileNotSet, InvalidQuery, NotFound, RangeNotSatisfiable
from maniflex.features.files.docs import attachment_docs
from maniflex.files.desk import FileDesk
from maniflex.files.model import FileState, StoredFile
from maniflex.model.field import FileRules, file_fields
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.chain import AddedStep, Default, StepPlace
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response, no_answer_error
from maniflex.pipeline.routes import Endpoint, RouteBuilder
from maniflex.pipeline.steps.db import Database
from maniflex.pipeline.steps.policies import ShownRows
from maniflex.storage.port import OCTET_STREAM, Reader

Opener = Callable[[int, int | None], Awaitable[Reader]]  # of a start and a length
_PDF = "application/pdf"
INLINE = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", _PDF, "text/plain"}
)  # what a browser shows without running it
_SANDBOX = "sandbox; default-src 'none'"
_PUBLIC = "public, max-age=31536000, immutable"  # a key never gets another file
_PRIVATE = "private, no-cache"
_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(\s*;\s*[\w.+-]+=([\w.+-]+|\"[\w .+-]*\"))*", re.ASCII)
_NOT_IN_QUOTES = re.compile(r"[^\x20-\x7e]|[\"\\%;]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Download:
    """A file that is to be sent, as its row knows it."""

    filename: str
    content_type: str
    size: int
    etag: str
    modified: datetime | None
    is_public: bool = False
    as_attachment: bool = False  # whatever its type


def download_response(ctx: Context, file: Download, open_file: Opener) -> Response:
    """The answer to GET or HEAD; nothing is opened before its bytes are sent."""
    headers = {
        "etag": file.etag,
        "cache-control": _PUBLIC if file.is_public else _PRIVATE,
        "x-content-type-options": "nosniff",
    }
    if file.modified is not None:
        headers["last-modified"] = http_date(file.modified)
    if is_unchanged(ctx.header, file.etag, file.modified):
        return Response(304, headers=headers)
    span = asked_span(ctx.header, file.size, file.etag, file.modified)
    content_type = file.content_type if _TYPE.fullmatch(file.content_type) else OCTET_STREAM
    bare_type = content_type.partition(";")[0].strip().lower()
    headers |= {
        "content-disposition": disposition(file.filename, inline=_is_inline(ctx, file, bare_type)),
        "content-length": str(file.size if span is None else span.length),
        "accept-ranges": "bytes",
    }
    if bare_type != _PDF:  # browsers show none in a sandbox
        headers["content-security-policy"] = _SANDBOX
    if span is not None:
        headers["content-range"] = span.header
    return Response(
        200 if span is None else 206,
        headers=headers,
        content_type=content_type,
        stream=_bytes_of(span, open_file),
    )


async def _bytes_of(span: Span | None, open_file: Opener) -> AsyncGenerator[bytes, None]:
    reader = await (open_file(0, None) if span is None else open_file(span.start, span.length))
    async with aclosing(reader):
        async for chunk in reader:
            yield chunk


def _is_inline(ctx: Context, file: Download, bare_type: str) -> bool:
    return bare_type in INLINE and not file.as_attachment and ctx.query_param("download") != "1"


def disposition(filename: str, *, inline: bool) -> str:
    """`Content-Disposition` by RFC 6266: an ASCII name, and the whole name where that is another."""
    kind = "inline" if inline else "attachment"
    name = _CONTROL.sub("_", filename)
    if not name:
        return kind
    ascii_name = _NOT_IN_QUOTES.sub("_", name)
    text = f'{kind}; filename="{ascii_name}"'
    return text if ascii_name == name else f"{text}; filename*=UTF-8''{quote(name, safe='')}"


# Which bytes of a file a request asks for, and whether it has them already (RFC 9110).


Header = Callable[[str], str | None]
_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})-([0-9]{0,18})\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from `start` on, `length` of them, of a file with `size`."""

    start: int
    length: int
    size: int

    @property
    def header(self) -> str:
        return f"bytes {self.start}-{self.start + self.length - 1}/{self.size}"


def asked_span(header: Header, size: int, etag: str, modified: datetime | None) -> Span | None:
    """The part that is asked for; None for all of it. Several ranges and other units mean all of it."""
    text = header("range")
    if text is None or not _still_holds(header("if-range"), etag, modified):
        return None
    match = _RANGE.fullmatch(text.strip())
    if match is None or match[0].endswith("=-"):
        return None
    first, last = match[1], match[2]
    if not first and not last:
        return None
    if not first:
        length = min(int(last), size)
        if length == 0:
            raise _unsatisfiable(size)
        return Span(size - length, length, size)
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size:
        raise _unsatisfiable(size)
    end = min(int(last), size - 1) if last else size - 1
    return Span(start, end - start + 1, size)


def is_unchanged(header: Header, etag: str, modified: datetime | None) -> bool:
    """Whether the client has the file as it is, so that 304 says all."""
    tags = header("if-none-match")
    if tags is not None:
        return tags.strip() == "*" or etag in [_strong(tag) for tag in tags.split(",")]
    since = _moment(header("if-modified-since"))
    return since is not None and modified is not None and modified.replace(microsecond=0) <= since


def http_date(moment: datetime) -> str:
    return format_datetime(moment.astimezone(UTC), usegmt=True)


def _still_holds(condition: str | None, etag: str, modified: datetime | None) -> bool:
    """Whether `If-Range` names the file as it is; a weak tag never does."""
    if condition is None:
        return True
    condition = condition.strip()
    if condition.startswith(('"', "W/")):
        return condition == etag
    since = _moment(condition)
    return since is not None and modified is not None and modified.replace(microsecond=0) == since


def _strong(tag: str) -> str:
    return tag.strip().removeprefix("W/")


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _unsatisfiable(size: int) -> RangeNotSatisfiable:
    return RangeNotSatisfiable(headers={"content-range": f"bytes */{size}"})


# `GET /{table}/{id}/{field}`: the file of a record, behind everything that guards reading the record.


_READABLE = (FileState.STORED, FileState.LINKED)


def attachment_endpoints(routes: RouteBuilder, model: ModelMeta, desk: FileDesk) -> Iterator[Endpoint]:
    """The routes of the files that records of a model have."""
    if model.options.headless:
        return
    for field, rules in file_fields(model):
        if not field.hidden:
            yield from routes.with_options(Attachment(desk, model, field, rules).endpoints(routes))


def private_attachment_endpoints(routes: RouteBuilder, model: ModelMeta) -> list[Endpoint]:
    """The same for requests of this process alone, whether or not the model has routes on a path."""
    desk: FileDesk | None = routes.runtime.file_desk
    if desk is None or not desk.has_storage:
        return []
    fields = [(field, rules) for field, rules in file_fields(model) if not field.hidden]
    return [one for field, rules in fields for one in Attachment(desk, model, field, rules).endpoints(routes)]


class Attachment:
    """The files in one field of a model."""

    def __init__(self, desk: FileDesk, model: ModelMeta, field: FieldMeta, rules: FileRules) -> None:
        self._desk = desk
        self._model = model
        self._field = field
        self._rules = rules

    def endpoints(self, routes: RouteBuilder) -> Iterator[Endpoint]:
        model, runtime = self._model, routes.runtime
        store = runtime.stores[model.cls]
        database = Database(store, runtime.serializers[model.cls], runtime)
        read: Default = database.read_singleton if model.options.singleton else database.read
        defaults: dict[str, Default | AddedStep] = {"db": read}
        rules = runtime.rules[model.cls]
        if rules.judges_rows:
            judge = rules.judge(Operation.READ_ATTACHMENT, item=True)
            defaults["policies"] = AddedStep(
                ShownRows(runtime.rules, judge).judge_one, "db", StepPlace.BEHIND
            )
        for method in ("GET", "HEAD"):
            yield routes.endpoint(
                method,
                self._path,
                Operation.READ_ATTACHMENT,  # HEAD too: no rule for files is passed by asking for headers only
                model=model,
                defaults=defaults,
                outer=[("as_of", _refuse_past)],
                respond=self.answer,
                item=True,
                about=attachment_docs(model, self._field, self._rules, method=method),
            )

    @property
    def _path(self) -> str:
        record = f"/{self._model.table}" if self._model.options.singleton else f"/{self._model.table}/{{id}}"
        return (
            f"{record}/{self._field.api}/{{index}}" if self._rules.is_list else f"{record}/{self._field.api}"
        )

    async def answer(self, ctx: Context) -> None:
        """The response step."""
        if ctx.response is not None:
            return
        if ctx.result is None:
            raise no_answer_error(ctx)
        if self._field.api in await ctx.redacted(self._model.cls):
            raise NotFound()  # as if there were no such field
        value = getattr(ctx.result, self._field.name)
        if self._rules.is_list:
            value = _item(value or (), ctx.params.get("index", ""))
        if not value:
            raise FileNotSet()
        file = await self._desk.find(value)
        await answer_with_file(
            ctx,
            self._desk,
            file,
            is_public=False,  # also of a public one: the record may have another file tomorrow
            as_attachment=self._rules.inline is False,
        )


async def _refuse_past(ctx: Context, call_next: Next) -> None:
    """Of a file there is no past, and today's is not served for it."""
    if b"as_of" in ctx.scope["query_string"] and ctx.query_param("as_of") is not None:
        raise InvalidQuery("as_of: the record can be read as it was, its files cannot")
    await call_next()


async def answer_with_file(
    ctx: Context,
    desk: FileDesk,
    file: StoredFile | None,
    *,
    is_public: bool,
    as_attachment: bool = False,
    filename: str | None = None,
) -> None:
    """Set the answer that sends a file; 404 when all of it is not there."""
    if file is None or file.state not in _READABLE:
        raise FileNotFound()
    if ctx.scope["method"] == "HEAD":
        await desk.stat(file.key)
    download = Download(
        filename=file.filename if filename is None else filename,
        content_type=file.content_type,
        size=file.size or 0,
        etag=_etag(file),
        modified=file.created_at,
        is_public=is_public,
        as_attachment=as_attachment,
    )
    ctx.response = download_response(ctx, download, partial(desk.open, file.key))


def _etag(file: StoredFile) -> str:
    """A strong tag: a key never gets other bytes."""
    return f'"{file.sha256}"' if file.sha256 else file.etag or f'"{file.id}"'


def _item(keys: list[str] | tuple[str, ...], index: str) -> str:
    if not (index.isascii() and index.isdigit()) or len(index) > 6 or int(index) >= len(keys):
        raise FileNotFound()
    return keys[int(index)]
