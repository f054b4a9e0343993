"""The bytes of a request body, up to the limit and no further."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maniflex.errors import BodyTooLarge, InvalidBody, RequestError, UnsupportedMediaType

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context


class ClientGone(RequestError):
    """The client went away; nothing is sent, and 499 is what the log and middleware see of it."""

    status, code, message = 499, "CLIENT_GONE", "the client went away"


async def read_body(ctx: Context) -> bytes:
    """The whole body; a larger one than the limit is refused before it is kept."""
    limit = ctx.runtime.config.max_body_size
    _check_headers(ctx, limit)
    message = await ctx.receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body"):
        if len(body) > limit:
            raise BodyTooLarge(f"the body is larger than {limit} bytes")
        return body
    chunks, size = [body], len(body)
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone()
        if size > limit:
            raise BodyTooLarge(f"the body is larger than {limit} bytes")
        if not message.get("more_body"):
            return b"".join(chunks)
        message = await ctx.receive()
        chunk: bytes = message.get("body", b"")
        chunks.append(chunk)
        size += len(chunk)


def _check_headers(ctx: Context, limit: int) -> None:
    for name, value in ctx.scope["headers"]:
        if name == b"content-length":
            if not value.isdigit():
                raise InvalidBody("Content-Length is not a number")
            if len(value) > 18 or int(value) > limit:
                raise BodyTooLarge(f"the body is larger than {limit} bytes")
        elif name == b"content-type" and value != b"application/json":
            kind = value.partition(b";")[0].strip().lower()
            if (
                kind
                and kind != b"application/json"
                and not (kind.startswith(b"application/") and kind.endswith(b"+json"))
            ):
                raise UnsupportedMediaType()
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise UnsupportedMediaType("a compressed body is not accepted")
