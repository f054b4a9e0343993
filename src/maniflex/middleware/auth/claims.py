"""Claims of a checked token: their types, what identity they make, and from when until when they count."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from maniflex._json import text_trouble
from maniflex.errors import Abort
from maniflex.middleware.stores.port import Revocation, Revoker, mistakes_of
from maniflex.pipeline.context import AuthInfo
from maniflex.pipeline.registration import takes

# From year 2 to year 9998: moments from which a leeway can be taken.
_FIRST, _LAST = -62_104_060_800, 253_370_764_800
MOST_DEPTH = 20
_BEGINNING, _END = (datetime.fromtimestamp(seconds, UTC) for seconds in (_FIRST, _LAST))


class BadClaim(Exception):
    """A claim that makes a token worth nothing; the message names the claim and never its value."""


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Which claim means what."""

    user: str = "sub"
    roles: str = "roles"
    tenant: str | None = None
    scopes: str = "scope"
    session: str = "jti"


class VerifiedToken:
    """A token whose signature and claims were found good; its times are asked again at each use."""

    __slots__ = (
        "_claims",
        "_flat",
        "_nested",
        "ends_at",
        "expires_at",
        "issued_at",
        "jti",
        "not_before",
        "roles",
        "scopes",
        "session_id",
        "size",
        "starts_at",
        "tenant_id",
        "user_id",
    )

    def __init__(self, claims: Mapping[str, Any], names: ClaimNames, size: int) -> None:
        self.user_id = text_claim(claims, names.user)
        if not self.user_id:
            raise BadClaim(f"the claim {names.user!r} is missing")
        self.roles = words_claim(claims, names.roles)
        self.scopes = words_claim(claims, names.scopes)
        self.tenant_id = "" if names.tenant is None else text_claim(claims, names.tenant)
        self.session_id = text_claim(claims, names.session)
        self.jti = text_claim(claims, "jti")
        self.expires_at = time_claim(claims, "exp")
        self.not_before = time_claim(claims, "nbf")
        self.issued_at = time_claim(claims, "iat")
        starts = [moment(time) for time in (self.not_before, self.issued_at) if time is not None]
        self.starts_at = max(starts, default=_BEGINNING)
        self.ends_at = _END if self.expires_at is None else moment(self.expires_at)
        self.size = size
        if _is_deep(claims, MOST_DEPTH):
            raise BadClaim("the claims are nested too deeply")
        self._claims = dict(claims)
        holders = [name for name, value in claims.items() if isinstance(value, list | dict)]
        self._flat = tuple(name for name in holders if not _is_deep(claims[name], 1))
        self._nested = tuple(name for name in holders if name not in self._flat)

    def identity(self) -> AuthInfo:
        """The identity, new for each request: what one request does to it no other sees."""
        claims = self._claims.copy()
        for name in self._flat:
            claims[name] = claims[name].copy()
        for name in self._nested:
            claims[name] = _copy(claims[name])
        return AuthInfo(
            self.user_id,
            self.roles,
            claims,
            self.tenant_id,
            "human",
            self.scopes,
            self.session_id,
            "jwt",
        )


def _is_deep(value: Any, most: int) -> bool:
    if not isinstance(value, list | dict):
        return False
    items = value if isinstance(value, list) else value.values()
    return most == 0 or any(_is_deep(item, most - 1) for item in items)


def _copy(value: Any) -> Any:
    if type(value) is list:
        return [_copy(item) if type(item) in (list, dict) else item for item in value]
    return {name: _copy(item) for name, item in value.items()} if type(value) is dict else value


def text_claim(claims: Mapping[str, Any], name: str) -> str:
    """A claim that is text; empty when it is absent."""
    value = claims.get(name, "")
    if not isinstance(value, str) or text_trouble(value):
        raise BadClaim(f"the claim {name!r} is no text")
    return value


def words_claim(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A claim that is a list of texts, or a text of words; empty when it is absent."""
    value = claims.get(name, ())
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(
        isinstance(w, str) and not text_trouble(w) for w in words
    ):
        raise BadClaim(f"the claim {name!r} is neither a list of texts nor a text")
    return tuple(words)


def time_claim(claims: Mapping[str, Any], name: str) -> float | None:
    """A claim that is a moment, in seconds; None when it is absent."""
    if name not in claims:
        return None
    value = claims[name]
    if type(value) not in (int, float) or (type(value) is float and not math.isfinite(value)):
        raise BadClaim(f"the claim {name!r} is no number")
    if not _FIRST <= value <= _LAST:
        raise BadClaim(f"the claim {name!r} is no moment")
    return float(value)


def moment(seconds: float) -> datetime:
    """The moment of a time claim."""
    return datetime.fromtimestamp(seconds, UTC)


def audience_matches(claims: Mapping[str, Any], audiences: Sequence[str]) -> bool:
    """Whether the token is meant for one of the audiences."""
    meant = claims.get("aud")
    audience_list = [meant] if isinstance(meant, str) else meant
    return isinstance(audience_list, list) and any(
        isinstance(one, str) and one in audiences for one in audience_list
    )


# Revoked tokens: the question authenticators ask, and the refusal while it has no answer.


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
