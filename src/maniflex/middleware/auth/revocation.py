"""Revoked tokens: the port that stores of them implement, and the question authenticators ask."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, runtime_checkable

from maniflex.errors import Abort
from maniflex.middleware.auth.claims import VerifiedToken


@runtime_checkable
class Revoker(Protocol):
    """Keeps which tokens, and which users' earlier tokens, are no longer good. Moments are aware."""

    async def revoke_token(self, jti: str, expires_at: datetime) -> None:
        """Let the token of this id be refused until it expires by itself."""

    async def is_revoked(self, jti: str) -> bool:
        """Whether the token of this id is revoked."""

    async def revoke_user(self, user_id: str, cutoff: datetime, keep_until: datetime) -> None:
        """Let tokens of this user that were issued before `cutoff` be refused; it only moves forward."""

    async def user_cutoff(self, user_id: str) -> datetime | None:
        """The moment before which tokens of this user are refused; None when all count."""


async def is_token_revoked(revoker: Revoker, token: VerifiedToken) -> bool:
    """Whether the token, or all of its user's of that time, were revoked; 503 when that cannot be known."""
    try:
        if await revoker.is_revoked(token.jti):
            return True
        cutoff = await revoker.user_cutoff(token.user_id)
    except Exception as error:
        raise revocation_unavailable() from error
    if cutoff is None:
        return False
    return token.issued_at is None or token.issued_at < cutoff.timestamp()


def revocation_unavailable() -> Abort:
    """The refusal while it cannot be known whether a token was revoked: neither accepted nor called bad."""
    refusal = Abort(
        503, "REVOCATION_UNAVAILABLE", "it cannot be checked right now whether the token was revoked"
    )
    refusal.retryable = True
    return refusal
