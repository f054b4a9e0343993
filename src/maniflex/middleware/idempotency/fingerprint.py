"""What a request says of itself: its key, who sent it, and what it asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec

from maniflex.errors import Abort
from maniflex.pipeline.context import AsgiScope, Context
from maniflex.pipeline.offload import LARGE
from maniflex.pipeline.read_body import JSON_TYPE

KEY_HEADER = b"idempotency-key"
_BOUNDARY = re.compile(rb'multipart/[^;]*;(?:.*;)?\s*boundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE)
_KEY = re.compile(rb"[\x21-\x7e]{1,255}")


class KeyHeaders(msgspec.Struct, frozen=True, gc=False):
    """The headers of a request that say which it is."""

    key: str
    if_match: bytes = b""
    content_type: bytes = b""
    by_name: Mapping[bytes, bytes] | None = None  # all of them, unless one is there twice


def read_headers(headers: Sequence[tuple[bytes, bytes]], by_name: Mapping[bytes, bytes]) -> KeyHeaders:
    """The key of a request; 400 where none was sent, or several, or one that is none."""
    key = by_name.get(KEY_HEADER)
    if key is None:
        raise Abort(400, "IDEMPOTENCY_KEY_REQUIRED", "this route needs an Idempotency-Key")
    if len(by_name) == len(headers) and _KEY.fullmatch(key):  # as good as every request
        if_match = by_name[b"if-match"] + b"," if b"if-match" in by_name else b""
        return KeyHeaders(key.decode("ascii"), if_match, by_name.get(b"content-type", b""), by_name)
    keys = [value for name, value in headers if name == KEY_HEADER]
    if len(keys) > 1 or not _KEY.fullmatch(key):
        raise Abort(
            400,
            "IDEMPOTENCY_KEY_INVALID",
            "Idempotency-Key takes 1 to 255 visible ASCII characters and is sent once",
        )
    if_match = b"".join(value + b"," for name, value in headers if name == b"if-match")
    return KeyHeaders(key.decode("ascii"), if_match, by_name.get(b"content-type", b""))


def fingerprint(scope: AsgiScope, headers: KeyHeaders, body: bytes) -> str:
    """What the request asks for: two that differ in it cannot be the same request sent twice."""
    path, query, if_match = scope["path"], scope["query_string"], headers.if_match
    if not query and not if_match and path.isascii():  # the usual case of what stands below
        head = f"{len(path)} 0 0 {path}".encode()
    else:
        path = path.encode("utf-8", "surrogatepass")
        head = b"%d %d %d %b%b%b" % (len(path), len(query), len(if_match), path, query, if_match)
    boundary = None
    if headers.content_type != JSON_TYPE:
        boundary = _BOUNDARY.match(headers.content_type)
    if boundary is None and len(body) <= LARGE:
        return sha256(head + body).hexdigest()
    if boundary is None:
        digest = sha256(head)
        digest.update(body)
        return digest.hexdigest()
    digest = sha256(head)  # the boundary a client makes up anew for each attempt; no part has it within
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
