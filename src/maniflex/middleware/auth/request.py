"""What an auth entry reads of a request: headers as they were sent, cookies, scheme and host."""

from __future__ import annotations

from typing import Any

from maniflex.pipeline.context import Context

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def header_values(ctx: Context, name: bytes) -> list[bytes]:
    """Every value of a header, one for each time it was sent; the name is in small letters."""
    return [value for key, value in ctx.scope["headers"] if key == name]


def cookie_values(ctx: Context, name: str) -> list[str]:
    """Every value a cookie was sent with: a sibling host can plant one of the same name."""
    name_bytes, values = name.encode("latin-1"), []
    for header in header_values(ctx, b"cookie"):
        for part in header.split(b";"):
            key, _, value = part.partition(b"=")
            if key.strip() == name_bytes:
                values.append(value.strip().strip(b'"').decode("latin-1"))
    return values


def is_https(ctx: Context) -> bool:
    """Whether the client came by https, as far as the context can be sure of it."""
    scheme: Any = getattr(ctx, "scheme", None)
    return (scheme or ctx.scope.get("scheme")) == "https"


def host_name(ctx: Context) -> str:
    """The host of the request without its port, as the client wrote it."""
    host = (ctx.header("host") or "").strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
