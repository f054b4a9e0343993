"""Forged requests: every POST proves that its page came from here. Always on, nothing to configure."""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from urllib.parse import urlsplit

from maniflex.errors import Abort
from maniflex.pipeline.context import Context

COOKIE = FIELD = "_csrf"
HEADER = "x-csrf-token"


def token_of_session(token: str) -> str:
    """The token of a session: whoever does not know the session's cookie cannot make it."""
    return hmac.new(token.encode(), b"maniflex panel csrf", sha256).hexdigest()


def new_token() -> str:
    """A token for somebody who has no session yet."""
    return secrets.token_hex(32)


def check_origin(ctx: Context) -> None:
    """Refuse a request that a page of another site sent."""
    site, origin = ctx.header("sec-fetch-site"), ctx.header("origin")
    parts = urlsplit(origin or "")
    is_ours = site in (None, "same-origin", "none")
    if origin is not None and parts.netloc != (ctx.header("host") or ""):
        is_ours = False
    # An untrusted proxy may have taken TLS off; a browser that names the site has compared the schemes.
    if origin is not None and site is None and parts.scheme != ctx.scheme:
        is_ours = False
    if not is_ours:
        raise Abort(403, "CSRF_ORIGIN_REJECTED", "the request was sent by a page of another site")


def check_token(page_token: str, form_token: str) -> None:
    """Refuse a form without the token of its page, or with that of another."""
    if not form_token:
        raise Abort(
            403, "CSRF_TOKEN_MISSING", "the form has no token; load the page again and send it once more"
        )
    if not page_token or not hmac.compare_digest(page_token.encode(), form_token.encode("utf-8", "replace")):
        raise Abort(403, "CSRF_TOKEN_MISMATCH", "the form is of another session; load the page again")
