"""Revoked tokens: the question authenticators ask, and the refusal while it has no answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from typing import Any

from maniflex.errors import Abort
from maniflex.middleware.auth.claims import VerifiedToken
from maniflex.middleware.stores.port import Revocation, Revoker, mistakes_of
from maniflex.pipeline.registration import takes

LookUp = Callable[[str, str, str], Awaitable[Revocation]]
_METHODS = ("revoke_token", "is_revoked", "revoke_user", "user_cutoff")


def look_up_of(revoker: Revoker) -> LookUp:
    """How the revoker is asked about a token, its user and its member of a tenant: at once, if it can."""
    look_up: Any = getattr(revoker, "look_up", None)
    if look_up is not None and takes(look_up, 3):
        at_once: LookUp = look_up
        return at_once

    async def ask_each(jti: str, user_id: str, member: str) -> Revocation:
        if look_up is not None:
            revocation: Revocation = await look_up(jti, user_id)
        elif await revoker.is_revoked(jti):
            return Revocation(True, None)
        else:
            revocation = Revocation(False, await revoker.user_cutoff(user_id))
        cutoffs = (revocation.cutoff, await revoker.user_cutoff(member))
        return Revocation(revocation.token, max((one for one in cutoffs if one is not None), default=None))

    return ask_each


def member_name(user_id: str, tenant_id: str) -> str:
    """What revokers call a user in one tenant: another tenant may have a user of the same id."""
    names = f"{tenant_id}\0{user_id}".encode(errors="surrogatepass")
    return f"member:{sha256(names).hexdigest()}"


async def is_token_revoked(look_up: LookUp, token: VerifiedToken) -> bool:
    """Whether the token, or all of its user's of that time, were revoked; 503 when that cannot be known."""
    try:
        revocation = await look_up(token.jti, token.user_id, member_name(token.user_id, token.tenant_id))
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
