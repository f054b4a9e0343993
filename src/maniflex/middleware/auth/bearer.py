"""`auth.jwt`: signed tokens in a header or a cookie.

A token is checked in this order: its form, its signature, its claims, its times, whether it was revoked,
and at last the application's own `verify`. What does not change between two requests is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from importlib import import_module
from typing import Any, Literal, TypedDict, Unpack

from maniflex.errors import Abort
from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.auth.authenticator import (
    BEARER,
    Authenticator,
    BadClaim,
    ClaimNames,
    LookUp,
    Schemes,
    VerifiedToken,
    Verify,
    audience_matches,
    cookie_scheme,
    cookie_values,
    header_scheme,
    is_token_revoked,
    look_up_of,
    revoker_mistakes,
)
from maniflex.middleware.auth.header_keys import HEADER_NAME, header_mistakes
from maniflex.middleware.auth.keys import (
    ALGORITHMS,
    HMAC,
    SHORT_SECRET,
    KeySet,
    VerifyingKey,
    address_problem,
    cost_of,
    library_mistake,
    missing_library,
    read_keys,
    verify,
)
from maniflex.middleware.stores.port import Duration, Revoker, warnings_of
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.entry import Kept, Seat, SecretKeeper

MOST_BYTES = 8192  # of a token
LONGEST_ON_LOOP = 500  # microseconds; a check that takes longer runs in a thread
_CHALLENGE = 'Bearer error="invalid_token"'
_CODES = ("UNAUTHORIZED", "INVALID_TOKEN", "TOKEN_EXPIRED", "TOKEN_NOT_YET_VALID", "TOKEN_FUTURE_ISSUED")
_REVOKED_CODES = ("TOKEN_REVOKED", "TOKEN_NOT_REVOCABLE")


class Bearer(Authenticator, SecretKeeper):
    """Checks signed tokens with keys that are known at the start."""

    name = "auth.jwt"

    def __init__(
        self,
        secret: Any = None,
        *,
        public_key: Any = None,
        algorithms: Iterable[str] | None = None,
        issuer: str | Iterable[str] | None = None,
        audience: str | Iterable[str] | None = None,
        leeway: timedelta | float = 0,
        header: str = "Authorization",
        cookie: str | None = None,
        user_claim: str = "sub",
        roles_claim: str = "roles",
        tenant_claim: str | None = None,
        scopes_claim: str = "scope",
        session_claim: str = "jti",
        allow_no_expiry: bool = False,
        required_claims: Iterable[str] = (),
        revoker: Revoker | None = None,
        verify: Verify | Literal[False] | None = None,
        csrf: bool = True,
    ) -> None:
        super().__init__(verify)
        self.header = header.lower().encode("latin-1", "replace")
        self._header_name = header
        self.cookie = cookie
        self._scheme_needed = self.header == b"authorization"
        self.scheme = "bearer" if self._scheme_needed else ""
        self._names = ClaimNames(user_claim, roles_claim, tenant_claim, scopes_claim, session_claim)
        self._issuers = _texts(issuer)
        self._audiences = _texts(audience)
        self._leeway = as_timedelta(leeway)
        self._allow_no_expiry = allow_no_expiry
        self._required = tuple(required_claims)
        self._look_up = self._read_revoker(revoker)
        self._needs_csrf = csrf
        self._memory = TokenMemory()
        self._keys = self._read_keys(secret, public_key, algorithms)
        self._has_short_secret = any(
            isinstance(key.key, bytes) and len(key.key) < SHORT_SECRET for key in self._keys
        )
        self._check_options(header)

    def _read_keys(
        self, secret: Any, public_key: Any, algorithms: Iterable[str] | None
    ) -> tuple[VerifyingKey, ...]:
        if (secret is None) == (public_key is None):
            self.mistakes.append("give either secret or public_key")
            return ()
        return read_keys(self.name, secret, public_key, algorithms, self.mistakes)

    def _read_revoker(self, revoker: Revoker | None) -> LookUp | None:
        if revoker is None:
            return None
        mistakes = list(revoker_mistakes(revoker))
        self.mistakes += mistakes
        self.keeps = Kept(() if mistakes else (revoker,))
        return None if mistakes else look_up_of(revoker)

    def _check_options(self, header: str) -> None:
        self.mistakes += header_mistakes(header)
        if self.cookie is not None and not HEADER_NAME.fullmatch(self.cookie):
            self.mistakes.append(f"{self.cookie!r} is no name of a cookie")
        if not timedelta(0) <= self._leeway < timedelta(days=1):
            self.mistakes.append("leeway is a duration of less than a day, and not negative")
        if self._issuers == () or self._audiences == ():
            self.mistakes.append("issuer and audience are texts that are not empty")

    @property
    def forgeable_by(self) -> str:
        """The cookie by which another site could make a browser send requests; empty if none can."""
        return "" if self.cookie is None or not self._needs_csrf else f"the cookie {self.cookie!r}"

    def warnings(self, seat: Seat) -> Iterable[str]:
        yield from self.production_problems(seat)
        yield from warnings_of(self.keeps.stores)

    def production_problems(self, seat: Seat) -> Iterable[str]:
        if self._has_short_secret:
            yield f"the secret is shorter than {SHORT_SECRET} bytes and can be guessed"

    def knows_secret(self, text: str) -> bool:
        return any(key.key == text.encode(errors="surrogatepass") for key in self._keys)

    def schemes(self) -> Schemes:
        of_header = BEARER if self._scheme_needed else header_scheme(self._header_name)
        return {**of_header, **({} if self.cookie is None else cookie_scheme(self.cookie))}

    def codes(self) -> dict[int, tuple[str, ...]]:
        lasting = () if self._allow_no_expiry else ("TOKEN_MISSING_EXPIRY",)
        if self._look_up is None:
            return {401: (*_CODES, *lasting)}
        return {401: (*_CODES, *lasting, *_REVOKED_CODES), 503: ("REVOCATION_UNAVAILABLE",)}

    # -- a request -----------------------------------------------------------------------------

    def recall(self, ctx: Context, credential: bytes) -> AuthInfo | None:
        if self._look_up is not None:
            return None
        good_token = self._memory.find(credential)
        return None if good_token is None else self._identity_now(ctx, credential, good_token)

    async def authenticate(self, ctx: Context, credential: bytes) -> AuthInfo:
        good_token = self._memory.find(credential) or await self._check(ctx, credential)
        info = self._identity_now(ctx, credential, good_token)
        if self._look_up is not None:
            await self._check_revoked(self._look_up, good_token)
        return info

    def _identity_now(self, ctx: Context, token: bytes, good_token: VerifiedToken) -> AuthInfo:
        now = ctx.runtime.clock.now()
        if not good_token.starts_at <= now < good_token.ends_at:
            self._check_times(token, good_token, now)
        return good_token.identity()

    async def identify(self, ctx: Context, token: bytes) -> AuthInfo:
        """The identity that a token stands for, if the application takes it; 401 otherwise."""
        info = (self._memory.find(token) or await self._check(ctx, token)).identity()
        return await self.verify_caller(ctx, info)

    def proves_itself(self, ctx: Context) -> bool:
        return any(name == self.header for name, _ in ctx.scope["headers"])  # a cookie is the second choice

    def credential(self, ctx: Context) -> bytes | None:
        header = self.header
        value: bytes | None = None
        for name, text in ctx.scope["headers"]:
            if name == header:
                if value is not None:
                    raise self.unreadable()
                value = text
        if value is None:
            return None if self.cookie is None else self._token_of_cookie(ctx, self.cookie)
        words = value.split()
        if len(words) == 2 and words[0].lower() == b"bearer" and len(words[1]) <= MOST_BYTES:
            return words[1]
        return self._unusual_token(words)

    def _unusual_token(self, words: list[bytes]) -> bytes | None:
        if self._scheme_needed:
            if words and words[0].lower().decode("latin-1") in self._later_schemes:
                return None
        elif len(words) == 1 and words[0].lower() != b"bearer" and len(words[0]) <= MOST_BYTES:
            return words[0]
        raise self.unreadable()

    def _token_of_cookie(self, ctx: Context, name: str) -> bytes | None:
        values = cookie_values(ctx, name)
        if not values:
            return None
        if len(set(values)) > 1 or not 0 < len(values[0]) <= MOST_BYTES:
            raise self.unreadable()
        return values[0].encode("latin-1")

    async def _check(self, ctx: Context, token: bytes) -> VerifiedToken:
        """The token with its claims; 401 unless signature and claims are good."""
        generation = self._memory.generation
        claims = await self._claims(ctx, token)
        if claims is None:
            raise self.invalid("the token is not valid")
        try:
            self._check_claims(claims)
            good_token = VerifiedToken(claims, self._names, len(token))
        except BadClaim as error:
            raise self.invalid(str(error)) from None
        if good_token.expires_at is None and not self._allow_no_expiry:
            raise self.refusal("TOKEN_MISSING_EXPIRY", "the token never expires, which is not accepted")
        if generation == self._memory.generation:  # else its key may have been taken back meanwhile
            self._memory.add(token, good_token)
        return good_token

    async def _claims(self, ctx: Context, token: bytes) -> dict[str, Any] | None:
        return await verify_aside(ctx, token, self._keys)

    def _check_claims(self, claims: Mapping[str, Any]) -> None:
        issuer = claims.get("iss")
        if self._issuers is not None and not (isinstance(issuer, str) and issuer in self._issuers):
            raise BadClaim("the token is from another issuer")
        if self._audiences is not None and not audience_matches(claims, self._audiences):
            raise BadClaim("the token is for another audience")
        for name in self._required:
            if claims.get(name) is None:
                raise BadClaim(f"the claim {name!r} is missing")

    def _check_times(self, token: bytes, good_token: VerifiedToken, now: datetime) -> None:
        """Refuse a token that is out of its time by more than the leeway."""
        if good_token.ends_at <= now - self._leeway:
            self._memory.forget(token)
            raise self.refusal("TOKEN_EXPIRED", "the token has expired")
        latest = (now + self._leeway).timestamp()
        if good_token.not_before is not None and good_token.not_before > latest:
            raise self.refusal("TOKEN_NOT_YET_VALID", "the token is not valid yet")
        if good_token.issued_at is not None and good_token.issued_at > latest:
            raise self.refusal("TOKEN_FUTURE_ISSUED", "the token was issued in the future")

    async def _check_revoked(self, look_up: LookUp, good_token: VerifiedToken) -> None:
        if not good_token.jti:
            raise self.refusal("TOKEN_NOT_REVOCABLE", "the token has no id by which it could be revoked")
        if await is_token_revoked(look_up, good_token):
            raise self.refusal("TOKEN_REVOKED", "the token was revoked")

    def refusal(self, code: str, message: str) -> Abort:
        challenge = self.challenge if code == "UNAUTHORIZED" else _CHALLENGE
        return Abort(401, code, message, headers={"www-authenticate": challenge})

    def invalid(self, message: str) -> Abort:
        """The refusal of a token that was sent and is worth nothing."""
        return self.refusal("INVALID_TOKEN", message)

    def refuse_caller(self, message: str) -> Abort:
        return self.invalid(message)

    def unreadable(self) -> Abort:
        return self.invalid("a token is sent as: Authorization: Bearer <token>")


async def verify_aside(ctx: Context, token: bytes, keys: Sequence[VerifyingKey]) -> dict[str, Any] | None:
    """The claims of a token; where checking takes long, other requests go on meanwhile."""
    if cost_of(keys, len(token)) <= LONGEST_ON_LOOP:
        return verify(token, keys)
    claims: dict[str, Any] | None = await ctx.runtime.threads.run(verify, token, keys)
    return claims


def _texts(value: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """One text or several, None for none; empty when they cannot be used."""
    if value is None:
        return None
    texts = (value,) if isinstance(value, str) else tuple(value)
    return texts if all(texts) else ()


class TokenOptions(TypedDict, total=False):
    """How tokens are read, for every kind of key."""

    algorithms: Iterable[str] | None
    issuer: str | Iterable[str] | None
    audience: str | Iterable[str] | None
    leeway: timedelta | float
    header: str
    cookie: str | None
    user_claim: str
    roles_claim: str
    tenant_claim: str | None
    scopes_claim: str
    session_claim: str
    allow_no_expiry: bool
    required_claims: Iterable[str]
    revoker: Revoker | None
    verify: Verify | Literal[False] | None
    csrf: bool


def jwt(secret: Any = None, *, public_key: Any = None, **options: Unpack[TokenOptions]) -> Authenticator:
    """Authenticate by tokens that are signed with a secret (HMAC) or for a public key (RSA, EC, EdDSA).

    Both take several keys in a list, for rotation. `verify(ctx, claims, info)` has the last word: it may
    change `info`, and a `ValueError` refuses the token.
    """
    return Bearer(secret, public_key=public_key, **options)


# `auth.jwks`: tokens of an issuer that publishes its keys.


def jwks(
    url: str,
    *,
    cache_ttl: Duration = 3600,
    refetch_interval: Duration = 300,
    timeout: Duration = 10,
    **options: Unpack[TokenOptions],
) -> Authenticator:
    """Authenticate by tokens whose keys the issuer publishes at `url`; takes the options of `auth.jwt` too.

    Keys are kept for `cache_ttl`; a token with an unknown key id fetches them again, at most once per
    `refetch_interval`.
    """
    return PublishedKeys(url, cache_ttl, refetch_interval, timeout, **options)


class PublishedKeys(Bearer):
    """Checks tokens with keys that are fetched."""

    name = "auth.jwks"

    def __init__(
        self,
        url: str,
        cache_ttl: Duration,
        refetch_interval: Duration,
        timeout: Duration,
        **options: Unpack[TokenOptions],
    ) -> None:
        super().__init__(**options)
        ttl, interval, patience = (
            as_timedelta(d).total_seconds() for d in (cache_ttl, refetch_interval, timeout)
        )
        problem = address_problem(url)
        if problem is not None:
            self.mistakes.append(problem)
        if ttl <= 0 or interval <= 0 or patience <= 0:
            self.mistakes.append("cache_ttl, refetch_interval and timeout are durations above zero")
        self._key_set = KeySet(url, ttl, interval, patience)
        self._key_set.on_change = self._memory.clear  # tokens of a key that is gone are no longer good

    def _read_keys(
        self, secret: Any, public_key: Any, algorithms: Iterable[str] | None
    ) -> tuple[VerifyingKey, ...]:
        """Its keys are not known yet; only the algorithms can be judged."""
        missing = missing_library(asymmetric=True)
        if missing is not None:
            self.mistakes.append(library_mistake(self.name, missing))
        names = [algorithms] if isinstance(algorithms, str) else list(algorithms or ())
        for name in names:
            if name not in ALGORITHMS or name in HMAC:
                self.mistakes.append(f"{name!r} is no algorithm of a published key")
        self._algorithms = frozenset(names) or None
        return ()

    def warnings(self, seat: Seat) -> Iterable[str]:
        if self._issuers is None and self._audiences is None:
            yield "neither issuer nor audience is given, so tokens for other applications pass too"
        yield from super().warnings(seat)

    def codes(self) -> dict[int, tuple[str, ...]]:
        codes = super().codes()
        return {**codes, 503: (*codes.get(503, ()), "JWKS_UNAVAILABLE")}

    def recall(self, ctx: Context, credential: bytes) -> AuthInfo | None:
        return None if self._key_set.is_old(ctx.runtime.clock) else super().recall(ctx, credential)

    async def authenticate(self, ctx: Context, credential: bytes) -> AuthInfo:
        # Before a remembered token counts: its key may have been taken back since.
        await self._key_set.replace_old_keys(ctx)
        return await super().authenticate(ctx, credential)

    async def _claims(self, ctx: Context, token: bytes) -> dict[str, Any] | None:
        try:
            key_id = import_module("jwt").get_unverified_header(token).get("kid")
        except Exception:  # whatever a text does to the parser, it is no token of ours
            return None
        if key_id is not None and not isinstance(key_id, str):
            return None
        key = await self._key_set.find(ctx, key_id)
        if key is not None and self._algorithms is not None:
            key = key.narrow_to(self._algorithms)
        return None if key is None or not key.algorithms else await verify_aside(ctx, token, [key])


# Tokens that were checked before, by digest: checking a signature costs as much as a whole read.


MOST_TOKENS = 10_000
MOST_REMEMBERED_BYTES = 8 * 1024 * 1024  # of the tokens as they were sent


class TokenMemory:
    """Remembers good tokens; the oldest are forgotten first. Bad ones are not remembered."""

    def __init__(self, most: int = MOST_TOKENS, most_bytes: int = MOST_REMEMBERED_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._tokens: dict[bytes, VerifiedToken] = {}
        self._bytes = 0
        self.generation = 0  # another one after each `clear`

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, token: bytes) -> VerifiedToken | None:
        """The token, if it was found good before."""
        return self._tokens.get(blake2b(token).digest())

    def add(self, token: bytes, good_token: VerifiedToken) -> None:
        digest = blake2b(token).digest()
        if digest in self._tokens:
            return
        self._tokens[digest] = good_token
        self._bytes += good_token.size
        while len(self._tokens) > self._most or self._bytes > self._most_bytes:
            oldest = next(iter(self._tokens))
            self._bytes -= self._tokens.pop(oldest).size

    def forget(self, token: bytes) -> None:
        good_token = self._tokens.pop(blake2b(token).digest(), None)
        self._bytes -= 0 if good_token is None else good_token.size

    def clear(self) -> None:
        """Forget all tokens, because a key they were checked with is no longer good."""
        self.generation += 1
        self._tokens.clear()
        self._bytes = 0
