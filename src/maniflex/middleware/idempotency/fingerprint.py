"""What a request says of itself: its key, who sent it, and what it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

from maniflex.errors import Abort, BodyTooLarge, UnsupportedMediaType
from maniflex.pipeline.context import Context
from maniflex.pipeline.read_body import read_body

_HEADER = b"idempotency-key"
_BOUNDARY = re.compile(rb'multipart/[^;]*;(?:.*;)?\s*boundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE)
_KEY = re.compile(rb"[\x21-\x7e]{1,255}")


def sent_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key of a request, if it has one; 400 for one that is none or that was sent twice."""
    key = None
    for name, value in headers:
        if name == _HEADER:
            if key is not None or not _KEY.fullmatch(value):
                raise Abort(
                    400,
                    "IDEMPOTENCY_KEY_INVALID",
                    "Idempotency-Key takes 1 to 255 visible ASCII characters and is sent once",
                )
            key = value
    return None if key is None else key.decode("ascii")


def fingerprint(ctx: Context, body: bytes) -> str:
    """What the request asks for: two that differ in it cannot be the same request sent twice."""
    scope = ctx.scope
    path = scope["path"].encode("utf-8", "surrogatepass")
    if_match = b""
    boundary = None
    for name, value in scope["headers"]:
        if name == b"if-match":
            if_match += value + b","
        elif name == b"content-type" and value != b"application/json":
            boundary = _BOUNDARY.match(value)
    query = scope["query_string"]
    digest = sha256(b"%d %d %d %b%b%b" % (len(path), len(query), len(if_match), path, query, if_match))
    if boundary is None:
        digest.update(body)
    else:  # which a client makes up anew for each attempt; no part has it within
        for part in body.split(b"--" + (boundary[1] or boundary[2])):
            digest.update(b"%d " % len(part))
            digest.update(part)
    return digest.hexdigest()


def body_that_was_read(ctx: Context) -> bytes:
    """The bytes of the body, when a step has read them; a delete and a restore read none."""
    if ctx.raw_body is not None:
        return ctx.raw_body
    if ctx.form is not None:  # which is sent twice with two boundaries
        digest: bytes = ctx.form.digest
        return digest
    body: bytes = getattr(ctx._request, "_body", b"")
    return body


async def read_any_body(ctx: Context) -> bytes:
    """The bytes of the body of an action, which its handler can still read."""
    if ctx.raw_body is not None:
        return ctx.raw_body
    try:
        ctx.raw_body = await read_body(ctx)
    except UnsupportedMediaType:  # no JSON, which only the handler can judge
        ctx.request._body = await _read_stream(ctx)
        return ctx.request._body
    return ctx.raw_body


async def _read_stream(ctx: Context) -> bytes:
    body, limit = bytearray(), ctx.runtime.config.max_body_size
    async for part in ctx.request.stream():
        body += part
        if len(body) > limit:
            raise BodyTooLarge(f"the body is larger than {limit} bytes")
    return bytes(body)
