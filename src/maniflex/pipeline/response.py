"""The answer to a request, as a value: middleware may look at it and change it until it is sent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from maniflex.errors import MOST_DETAILS, Abort, RequestError

if TYPE_CHECKING:
    from maniflex.pipeline.exchange import Exchange


JSON = "application/json"
RETRY_AFTER = {"retry-after": "1"}  # of a 503 that may go away by itself
Encode = Callable[[Any], bytes]


class Response:
    """Status, data or error, headers; the bytes of an envelope are made late, or taken as they are."""

    __slots__ = ("_data", "_meta", "body", "content_type", "error", "headers", "marks", "status", "stream")

    def __init__(
        self,
        status: int = 200,
        data: Any = None,
        *,
        meta: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        stream: AsyncGenerator[bytes, None] | None = None,
    ) -> None:
        self.status = status
        self._data = data
        self._meta = meta
        self.error = error
        self.headers: dict[str, str] | None = {k.lower(): v for k, v in headers.items()} if headers else None
        self.marks: Sequence[tuple[bytes, bytes]] = ()  # more headers, as they are sent
        self.body = body
        self.content_type = content_type
        # Instead of a body, bytes as they are made. Nothing of it runs before the answer is sent, so an
        # answer that is replaced in the meantime leaves nothing open.
        self.stream = stream

    @property
    def data(self) -> Any:
        """What the envelope carries; changing it in place changes the answer."""
        self._open()
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        self._open()
        self._data = value

    @property
    def meta(self) -> Any:
        """The paging block of a list."""
        self._open()
        return self._meta

    @meta.setter
    def meta(self, value: Any) -> None:
        self._open()
        self._meta = value

    def _open(self) -> None:
        """Decode a finished envelope again, because code reads or changes its parts."""
        if self.body is not None and self.content_type == JSON:
            envelope = msgspec.json.decode(self.body)
            if not isinstance(envelope, dict) or "data" not in envelope:
                return  # a body of the application's own, which has no parts we know
            self._data, self._meta, self.body = envelope.get("data"), envelope.get("meta"), None

    def __repr__(self) -> str:
        return f"<Response {self.status}>"

    def set_header(self, name: str, value: str) -> None:
        """Send this header along."""
        if self.headers is None:
            self.headers = {}
        self.headers[name.lower()] = value

    def encode(self, encode: Encode) -> bytes:
        """The bytes of the envelope."""
        if self.body is not None:
            return self.body
        if self.error is not None:
            return encode({"error": self.error})
        if self.status in (204, 304):
            return b""
        envelope = {"data": self._data}
        if self._meta is not None:
            envelope["meta"] = self._meta
        return encode(envelope)


def error_response(error: RequestError) -> Response:
    """The envelope of a refusal; of a failure of ours it says no more than its kind."""
    ours = error.status >= 500 and not isinstance(error, Abort)
    content: dict[str, Any] = {"code": error.code, "message": type(error).message if ours else error.message}
    if error.details and not ours:
        content["details"] = details = error.details
        if len(details) > MOST_DETAILS and isinstance(details, Sequence):
            content["details"] = details[:MOST_DETAILS]
            content["message"] += f"; the first {MOST_DETAILS} are listed"
    headers = error.headers
    if error.retryable:
        content["retryable"] = True
        if error.status == 503:
            headers = {**RETRY_AFTER, **(headers or {})}
    return Response(error.status, error=content, headers=headers)


def language_headers(locale: str, *, by_header: bool) -> dict[str, str]:
    """The headers that say which language an answer is in, and that another request may get another one."""
    headers = {"content-language": locale}
    return {**headers, "vary": "Accept-Language"} if by_header else headers


def mark_language(response: Response, locale: str, *, by_header: bool) -> None:
    """Say in the headers of an answer which language it is in."""
    headers = language_headers(locale, by_header=by_header)
    if response.headers and "vary" in response.headers and "vary" in headers:
        headers["vary"] = f"{response.headers['vary']}, {headers['vary']}"
    response.headers = {**(response.headers or {}), **headers}


def panic_response() -> Response:
    """The answer to an unforeseen exception, of which the client learns nothing."""
    return Response(500, error={"code": "PANIC", "message": "the server failed to handle the request"})


def status_of(response: Any) -> int:
    """The status of ours, or of a Starlette response an application answers with."""
    status: int = response.status if isinstance(response, Response) else response.status_code
    return status


def no_answer_error(ctx: Exchange) -> RuntimeError:
    """The error to log when no step before the response came to anything: a 2xx would be a lie."""
    if ctx.replaced_by:
        who = f"{ctx.replaced_by}, which stands in the place of the db step,"
        return RuntimeError(f"{who} set neither ctx.result nor ctx.response")
    who = ctx.entered or "a middleware"
    return RuntimeError(f"{who} returned without calling next() and without setting ctx.response")


def no_response_error(ctx: Exchange) -> RuntimeError:
    """The error to log when the response step gave no answer."""
    who = ctx.entered_response or "a middleware of the response step"
    return RuntimeError(f"{who} returned without calling next() and without setting ctx.response")


# Tags of versions: which an `If-None-Match` names, and the part of a tag that `If-Match` compares.
#
# A tag of `response.cache` on a model with `optimistic_lock` has two parts, `"row.representation"`: the
# version of the stored row, and of the answer as it was sent. A caller that writes sends the whole tag
# back; only the first part has to be current.


_TAG = re.compile(r'(?:W/)?"([^"]*)"')


def names_tag(header: str, tag: str) -> bool:
    """Whether an `If-None-Match` names this tag: by itself, in a list, weakly, or with `*`."""
    return header.strip() == "*" or tag in _TAG.findall(header)


def digest_of(body: bytes) -> str:
    """The tag of these bytes, without quotes."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def row_part(tag: str) -> str:
    """The tag of the stored row, as it stands in a tag that may have a second part."""
    first, dot, _ = tag.partition(".")
    return f'{first}"' if dot else tag
