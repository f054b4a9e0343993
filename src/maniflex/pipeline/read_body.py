"""The bytes of a request body, up to the limit and no further."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from maniflex.errors import BodyTooLarge, InvalidBody, UnsupportedMediaType
from maniflex.pipeline.exchange import IN_PROCESS
from maniflex.pipeline.offload import LARGE
from maniflex.pipeline.watch import ClientGone

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context

JSON_TYPE = b"application/json"


def read_body(ctx: Context, by_name: Mapping[bytes, bytes] | None = None) -> Coroutine[Any, Any, bytes]:
    """Await the whole body, which is JSON; a larger one than the limit is refused before it is kept.

    `by_name` are the headers of the request, for callers that have them so: none of them is there twice.
    """
    owner = ctx if ctx.parent is None else ctx.parent  # who ends when the request does
    limit = owner.max_body_size or ctx.runtime.config.max_body_size
    return _read(ctx, owner, _check_headers(ctx, by_name, limit), limit)


async def keep_body(ctx: Context) -> bytes:
    """The bytes of the body for code, at any step and of any type; the steps that follow find them, too."""
    owner = ctx if ctx.parent is None else ctx.parent
    if owner.raw_body is None:
        limit = owner.max_body_size or ctx.runtime.config.max_body_size
        sizes = [_size(value, limit) for name, value in ctx.scope["headers"] if name == b"content-length"]
        has_body = sizes or any(name == b"transfer-encoding" for name, _ in ctx.scope["headers"])
        has_body = has_body or ctx.in_process
        # Asked of a request without one, the channel would wait for its client to leave.
        owner.raw_body = await _read(ctx, owner, sizes[0] if sizes else limit, limit) if has_body else b""
        owner.is_type_unchecked = True
    ctx.raw_body = owner.raw_body
    return owner.raw_body


def check_type_of_kept(ctx: Context) -> None:
    """Refuse a body that code has read before anybody looked at its type, and that is no JSON."""
    ctx.is_type_unchecked = False
    _check_headers(ctx, None, len(ctx.raw_body or b"") or 1)


async def _read(ctx: Context, owner: Context, size: int, limit: int) -> bytes:
    if owner.body_asked:
        raise RuntimeError(
            "the body was taken from the channel of ctx.request before; await ctx.read_body() keeps it"
        )
    owner.body_asked = True
    message = await ctx.receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body") and len(body) <= LARGE:
        owner.body_complete = True
        if len(body) > limit:
            raise _too_large(limit)
        return body
    return await _read_large(ctx, owner, message, size, limit)


async def _read_large(ctx: Context, owner: Context, message: Any, size: int, limit: int) -> bytes:
    """A body that comes in parts. Beyond `LARGE` it needs a place, which it keeps until it is answered."""
    # Not a list of parts: a single block goes back to the system when it is freed.
    body = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone()
        body += message.get("body", b"")
        owner.body_complete = complete = not message.get("more_body")
        if len(body) > limit:
            raise _too_large(limit)
        if owner.place is None and len(body) > LARGE:
            # A request in a transaction may be what the others wait for; code that asks us is inside one.
            waits = ctx.tx is None and IN_PROCESS not in ctx.scope
            owner.place = await ctx.runtime.bodies.admit(len(body) if complete else size, waits=waits)
        if complete:
            if owner.place is not None:
                await owner.place.work()
            return bytes(body)
        message = await (ctx.receive() if owner.place is None else owner.place.receive(ctx.receive))


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {limit} bytes")


def _check_headers(ctx: Context, by_name: Mapping[bytes, bytes] | None, limit: int) -> int:
    """Refuse what cannot be read; the most bytes that may come."""
    size = limit
    if by_name is not None:
        size = _size(by_name[b"content-length"], limit) if b"content-length" in by_name else limit
        if by_name.get(b"content-type") != JSON_TYPE:
            _check_type(by_name.get(b"content-type", b""))
        if b"content-encoding" in by_name:
            _check_encoding(by_name[b"content-encoding"])
        return size
    for name, value in ctx.scope["headers"]:
        if name == b"content-length":
            size = _size(value, limit)
        elif name == b"content-type" and value != JSON_TYPE:
            _check_type(value)
        elif name == b"content-encoding":
            _check_encoding(value)
    return size


def _size(length: bytes, limit: int) -> int:
    if not length.isdigit():
        raise InvalidBody("Content-Length is not a number")
    size = int(length) if len(length) < 19 else limit + 1
    if size > limit:
        raise _too_large(limit)
    return size


def _check_type(content_type: bytes) -> None:
    kind = content_type.partition(b";")[0].strip().lower()
    is_json = kind == JSON_TYPE or (kind.startswith(b"application/") and kind.endswith(b"+json"))
    if kind and not is_json:
        raise UnsupportedMediaType()


def _check_encoding(encoding: bytes) -> None:
    if encoding.lower() != b"identity":
        raise UnsupportedMediaType("a compressed body is not accepted")
