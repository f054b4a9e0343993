"""Authenticators: which one decides, what anonymous callers get, claims of tokens, `auth.verify`.

The first authenticator whose credential is present decides. Without any credential the last one answers
401, unless an exemption stands before it or the application's own middleware has set an identity. A caller
that was found passes `auth.verify`, which one server has for all its authenticators.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, ClassVar, Literal

from maniflex._json import text_trouble
from maniflex.errors import Abort, CallbackFailed
from maniflex.middleware.stores.port import Revocation, Revoker, mistakes_of
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import AuthInfo, Context, list_names
from maniflex.pipeline.entry import (
    ANYWHERE,
    GUARDS_ANYTHING,
    AuthEntry,
    Entry,
    EntryDocs,
    Piece,
    Seat,
    ask,
    describe_nothing,
)
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import FILES, Admission, AuthPart, Middleware, takes

# Claims of a checked token: their types, what identity they make, and from when until when they count.


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


Verify = Callable[[Context, Mapping[str, Any], AuthInfo], Awaitable[object] | object]
UNKNOWN_CALLER = "sign in first"
REFUSED_CALLER = "the caller is not welcome any more"
_VERIFY = "verify is called with (ctx, claims, info), which it does not take"


def verify(check: Verify) -> Entry:
    """Ask `check(ctx, claims, info)` about every caller, whichever authenticator of the server found it.

    A `ValueError`, or False, refuses the caller with 401; `check` may change `info`. A token gets the roles
    that `check` sets, an API key at most those it was made with.
    """
    return CallerCheck(check)


class CallerCheck(Entry):
    """Brings the question to the server; the authenticators ask it."""

    name = "auth.verify"
    homes: ClassVar = {"auth": ANYWHERE, FILES: ANYWHERE}
    docs = describe_nothing

    def __init__(self, check: Verify) -> None:
        super().__init__()
        self.check = check
        if not takes(check, 3):
            self.mistakes.append(_VERIFY)

    def problems(self, seat: Seat) -> Iterable[str]:
        if seat.is_named or seat.operations is not None:
            yield "it is asked on every route; leave out models= and operations="
        entries = [*(r.fn for r in seat.registrations), *(fn for a in seat.actions for fn in a.middleware)]
        if not any(isinstance(entry, Authenticator) for entry in entries):
            yield "no authenticator would ask it; register auth.jwt, tokens.bearer() or auth.api_keys"

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        """None: it is no step of a request by itself."""
        return ()


def unknown_caller(ctx: Context) -> Abort:
    """The refusal of an anonymous caller, with every way to do better that the route has."""
    headers = {"www-authenticate": ", ".join(ctx.challenges) or "Bearer"}
    return Abort(401, "UNAUTHORIZED", UNKNOWN_CALLER, headers=headers)


class Authenticator(Admission, AuthEntry):
    """An entry that finds out who is asking."""

    homes: ClassVar = GUARDS_ANYTHING
    part = AuthPart.AUTHENTICATOR
    scheme: str = ""  # of `Authorization`, when it reads that header
    challenge: str = "Bearer"
    grants_are_fixed: ClassVar[bool] = False  # a credential was given its rights: `verify` only takes of them
    is_issued_here: bool = False  # the server gives its credentials out, and has to know when they end

    def __init__(self, verify: Verify | Literal[False] | None = None) -> None:
        super().__init__()
        self._verify = verify
        if verify is not None and verify is not False and not takes(verify, 3):
            self.mistakes.append(_VERIFY)
        self._is_last = True
        self._later_schemes: frozenset[str] = frozenset()
        self._variants: dict[frozenset[str], Authenticator] = {}

    def placed_before(self, later: Sequence[Middleware]) -> Middleware:
        others = [entry for entry in later if isinstance(entry, Authenticator)]
        if not others:
            return self
        schemes = frozenset(entry.scheme for entry in others if entry.scheme)
        if schemes not in self._variants:
            self._variants[schemes] = variant = copy(self)
            variant._is_last, variant._later_schemes = False, schemes
        return self._variants[schemes]

    def schemes(self) -> Schemes:
        """The forms of credential that it reads, by the names the API description has for them."""
        return {}

    def codes(self) -> dict[int, tuple[str, ...]]:
        """The codes of its refusals, by status."""
        return {401: ("UNAUTHORIZED",)}

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(security=self.schemes(), refusals=self.codes())

    def refusal(self, code: str, message: str) -> Abort:
        """A 401, with the way to do better."""
        return Abort(401, code, message, headers={"www-authenticate": self.challenge})

    def admit(self, ctx: Context) -> Awaitable[None] | None:
        """Find out who is asking, unless an authenticator before has."""
        if ctx.authenticated:
            return None
        credential = self.credential(ctx)
        if credential is None:
            self.pass_without_credential(ctx)
            return None
        info = self.recall(ctx, credential)
        if info is None or self._verify is not None or ctx.runtime.caller_checks:
            return self._admit_later(ctx, credential, info)
        ctx.auth, ctx.authenticated, ctx.authenticator = info, True, self
        return None

    async def _admit_later(self, ctx: Context, credential: Any, info: AuthInfo | None) -> None:
        if info is None:
            info = await self.authenticate(ctx, credential)
        ctx.auth = await self.verify_caller(ctx, info)
        ctx.authenticated, ctx.authenticator = True, self

    @property
    def has_verify(self) -> bool:
        """Whether this authenticator has a `verify` of its own, or `verify=False`."""
        return self._verify is not None

    async def verify_caller(self, ctx: Context, info: AuthInfo) -> AuthInfo:
        """The caller as the application knows it now; 401 for one that it refuses."""
        if self._verify is False:
            return info
        checks = ctx.runtime.caller_checks
        if self._verify is not None:
            checks = [*checks, self._verify]
        if not checks:
            return info
        grant = replace(info)
        for check in checks:
            await self._ask_application(ctx, check, info)
        info.roles, info.scopes = list_names("roles", info.roles), list_names("scopes", info.scopes)
        if not info.user_id:
            raise self.refuse_caller(REFUSED_CALLER)
        return self._take_grants(grant, info) if self.grants_are_fixed else info

    async def _ask_application(self, ctx: Context, check: Verify, info: AuthInfo) -> None:
        try:
            outcome = await ask(ctx, check, ctx, info.claims, info)
        except CallbackFailed as error:
            if isinstance(error.__cause__, ValueError):
                raise self.refuse_caller(str(error.__cause__) or REFUSED_CALLER) from None
            raise
        if outcome is False:
            raise self.refuse_caller(REFUSED_CALLER)

    def _take_grants(self, grant: AuthInfo, info: AuthInfo) -> AuthInfo:
        """The caller with what the credential was given and the application still lets it have."""
        if (info.user_id, info.tenant_id) != (grant.user_id, grant.tenant_id):
            raise self.refuse_caller(REFUSED_CALLER)
        info.roles = [role for role in grant.roles if role in info.roles]
        info.scopes = [scope for scope in grant.scopes if scope in info.scopes]
        return info

    def refuse_caller(self, message: str) -> Abort:
        """The refusal of a caller whose credential is good and whom the application refuses."""
        return self.refusal("UNAUTHORIZED", message)

    def credential(self, ctx: Context) -> Any:
        """The credential that was sent, None without one; 401 for one that cannot be read."""
        raise NotImplementedError

    def proves_itself(self, ctx: Context) -> bool:
        """Whether the credential that it read is one that no other site can have a browser send."""
        return False

    def recall(self, ctx: Context, credential: Any) -> AuthInfo | None:
        """Whose credential it is, where nothing has to be waited for to know it."""
        return None

    async def authenticate(self, ctx: Context, credential: Any) -> AuthInfo:
        """Whose credential it is; 401 for one that is not valid."""
        raise NotImplementedError

    def pass_without_credential(self, ctx: Context) -> None:
        """Let a request pass that has no credential for this authenticator, or refuse it."""
        if ctx.auth is not None and ctx.auth.user_id:
            return  # set by the application's own middleware
        if self.challenge not in ctx.challenges:
            ctx.challenges = (*ctx.challenges, self.challenge)
        if not self._is_last:
            return
        if not ctx.lets_anonymous_pass:
            raise unknown_caller(ctx)
        ctx.auth = None

    def authorization(self, ctx: Context) -> bytes | None:
        """What follows the scheme in `Authorization`; None when it is not there or for a later authenticator.

        Raises 401 for two such headers, and for a scheme that no authenticator of the route reads.
        """
        values = header_values(ctx, b"authorization")
        if not values:
            return None
        scheme, _, rest = values[0].strip().partition(b" ")
        name = scheme.lower().decode("latin-1")
        if len(values) == 1 and name == self.scheme:
            return rest.strip()
        if len(values) == 1 and name in self._later_schemes:
            return None
        raise self.unreadable()

    def unreadable(self) -> Abort:
        """The refusal of a credential of another form than this authenticator reads."""
        return self.refusal("UNAUTHORIZED", UNKNOWN_CALLER)


# How the API description names the ways of proving who is asking: one name for each form of credential.


Schemes = dict[str, Mapping[str, Any]]

BEARER: Schemes = {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
BASIC: Schemes = {"basic": {"type": "http", "scheme": "basic"}}
_UNUSABLE = re.compile(r"[^A-Za-z0-9._-]")  # in the name of a scheme


def header_scheme(header: str) -> Schemes:
    """A credential that stands alone in a header."""
    return {f"header_{_plain(header)}": {"type": "apiKey", "in": "header", "name": header}}


def cookie_scheme(cookie: str) -> Schemes:
    """A credential in a cookie."""
    return {f"cookie_{_plain(cookie)}": {"type": "apiKey", "in": "cookie", "name": cookie}}


def _plain(name: str) -> str:
    return _UNUSABLE.sub(lambda match: f".{ord(match[0]):x}", name)


# What an auth entry reads of a request: headers as they were sent, cookies, scheme and host.


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
