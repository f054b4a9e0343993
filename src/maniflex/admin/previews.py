"""Files of records: pictures inside the page, everything else as a download."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from maniflex.admin.call import Refusal
from maniflex.admin.file_fields import is_file_list
from maniflex.admin.list_query import read_number
from maniflex.admin.visit import Visit
from maniflex.errors import NotFound
from maniflex.pipeline.response import Response

_PICTURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_TELLING = 12  # bytes


async def serve_file(visit: Visit) -> Response:
    """A file of a record, by the API's own rules for reading it."""
    site = visit.site()
    field = site.meta.by_api.get(visit.params["field"])
    if field is None or "file" not in field.extra or field.secret:
        raise NotFound(visit.t("no_such_page"))
    parts = () if site.is_singleton else (visit.params["id"],)
    index = read_number(visit.param("index") or "0", 4)
    if index is None:
        raise NotFound(visit.t("no_such_record"))
    place = (str(index),) if is_file_list(field) else ()
    response = await visit.api.request("GET", visit.api.path(site, *parts, field.api, *place))
    if response.status == 404:
        raise NotFound(visit.t("no_such_record"))
    if response.status >= 300:
        raise Refusal(response)
    content, rest = response.body or b"", response.stream
    if rest is not None:
        content = await _first_bytes(rest)
    kind = kind_of(content)
    headers = {
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
        "cache-control": "no-store",
        "content-disposition": "inline" if kind else _attachment(response),
    }
    answer = Response(200, content_type=kind or "application/octet-stream", headers=headers)
    if rest is None:
        answer.body = content
    else:
        answer.stream = _whole(content, rest)
    return answer


async def _first_bytes(stream: AsyncGenerator[bytes, None]) -> bytes:
    """As much of a file as tells its type."""
    content = b""
    async for chunk in stream:
        content += chunk
        if len(content) >= _TELLING:
            break
    return content


async def _whole(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """A file as it is read; none is too large to be downloaded."""
    try:
        yield first
        async for chunk in rest:
            yield chunk
    finally:
        await rest.aclose()


def kind_of(content: bytes) -> str:
    """The type of a picture that browsers can be shown, by its first bytes; empty for everything else."""
    for start, kind in _PICTURES:
        if content.startswith(start):
            return kind
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return "image/avif" if content[4:12] in (b"ftypavif", b"ftypavis") else ""


def _attachment(response: Response) -> str:
    disposition = (response.headers or {}).get("content-disposition", "")
    _, semicolon, name = disposition.partition(";")
    return f"attachment{semicolon}{name}" if semicolon else "attachment"
