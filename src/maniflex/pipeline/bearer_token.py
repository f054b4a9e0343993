"""A token that opens a page without a pipeline, such as `/metrics`."""

from __future__ import annotations

import hmac

from maniflex.errors import Abort
from maniflex.pipeline.context import Context


def require_token(ctx: Context, token: str) -> None:
    """Refuse a request that does not bring the token as `Authorization: Bearer …`."""
    kind, _, value = (ctx.header("authorization") or "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(value.strip().encode(), token.encode()):
        headers = {"www-authenticate": "Bearer"}
        raise Abort(401, "UNAUTHORIZED", "this page asks for its token", headers=headers)
