"""Answer with a stored file: its headers, the part that is asked for, and its bytes.

What a client uploaded never runs in a browser as if it were ours: types that do are downloads, and
`nosniff` and a sandbox keep a browser from finding others.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from urllib.parse import quote

from maniflex.errors import RangeNotSatisfiable
from maniflex.pipeline.context import Context
from maniflex.pipeline.response import Response
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
