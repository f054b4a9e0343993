"""Revoked tokens: the question authenticators ask, and the refusal while it has no answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from maniflex.errors import Abort
from maniflex.middleware.auth.claims import VerifiedToken
from maniflex.middleware.stores.port import Revocation, Revoker, mistakes_of

LookUp = Callable[[str, str], Awaitable[Revocation]]
_METHODS = ("revoke_token", "is_revoked", "revoke_user", "user_cutoff")


def look_up_of(revoker: Revoker) -> LookUp:
    """How the revoker is asked about a token and its user: at once, where it can answer both together."""
    both: LookUp | None = getattr(revoker, "look_up", None)
    if both is not None:
        return both

    async def ask_twice(jti: str, user_id: str) -> Revocation:
        if await revoker.is_revoked(jti):
            return Revocation(True, None)
        return Revocation(False, await revoker.user_cutoff(user_id))

    return ask_twice


async def is_token_revoked(look_up: LookUp, token: VerifiedToken) -> bool:
    """Whether the token, or all of its user's of that time, were revoked; 503 when that cannot be known."""
    try:
        revocation = await look_up(token.jti, token.user_id)
    except Exception as error:
        raise revocation_unavailable() from error
    if revocation.token:
        return True
    cutoff = revocation.cutoff
    return cutoff is not None and (token.issued_at is None or token.issued_at < cutoff.timestamp())


def revocation_unavailable() -> Abort:
    """The refusal while it cannot be known whether a token was revoked: neither accepted nor called bad."""
    refusal = Abort(
        503, "REVOCATION_UNAVAILABLE", "it cannot be checked right now whether the token was revoked"
    )
    refusal.retryable = True
    return refusal


def revoker_mistakes(revoker: Any) -> Iterator[str]:
    """Why an object cannot keep revocations."""
    missing = [name for name in _METHODS if not callable(getattr(revoker, name, None))]
    if missing:
        yield f"revoker={revoker!r} has no {missing[0]}(); use auth.SqlRevoker()"
    else:
        yield from mistakes_of((revoker,))
