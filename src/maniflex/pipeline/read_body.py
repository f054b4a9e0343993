"""The bytes of a request body, up to the limit and no further."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maniflex.errors import BodyTooLarge, InvalidBody, UnsupportedMediaType
from maniflex.pipeline.offload import LARGE
from maniflex.pipeline.watch import ClientGone

if TYPE_CHECKING:
    from maniflex.pipeline.context import Context

IN_PROCESS = "maniflex.in_process"  # in the scope of a request that the application makes itself


async def read_body(ctx: Context) -> bytes:
    """The whole body; a larger one than the limit is refused before it is kept."""
    owner = ctx if ctx.parent is None else ctx.parent  # who ends when the request does
    limit = owner.max_body_size or ctx.runtime.config.max_body_size
    size = _check_headers(ctx, limit)
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


def _check_headers(ctx: Context, limit: int) -> int:
    """Refuse what cannot be read; the most bytes that may come."""
    size = limit
    for name, value in ctx.scope["headers"]:
        if name == b"content-length":
            if not value.isdigit():
                raise InvalidBody("Content-Length is not a number")
            size = int(value) if len(value) < 19 else limit + 1
            if size > limit:
                raise _too_large(limit)
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
    return size
