"""`auth.Tokens`: access and refresh tokens of the application's own.

An access token is a signed text that is good for minutes. A refresh token is a random text that is good once:
using it gives the next one of its family. One that comes a second time was copied, so its family ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from typing import Any, Unpack

from maniflex._callables import explain_class
from maniflex._caller import act_on, keep_answer_secret
from maniflex._ids import new_id
from maniflex.db.current import current_tx
from maniflex.db.port import Tx
from maniflex.errors import Abort, DeclarationError
from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.auth.authenticator import (
    member_name,
    moment,
    revocation_unavailable,
    revoker_mistakes,
)
from maniflex.middleware.auth.bearer import Bearer, TokenOptions
from maniflex.middleware.auth.credential_store import (
    AccessToken,
    ApiKey,
    Host,
    RefreshStore,
    RefreshToken,
    revoke_all,
    token_digest,
)
from maniflex.middleware.auth.keys import (
    BadKey,
    VerifyingKey,
    library_mistake,
    missing_library,
    secret_key,
    signing_key,
)
from maniflex.middleware.auth.token_routes import Login, LoginLimits, TokenRoutes
from maniflex.middleware.stores.port import Duration, Revoker
from maniflex.pipeline.context import AuthInfo, Context

RESERVED = frozenset({"iss", "sub", "aud", "exp", "iat", "nbf", "jti", "sid", "roles", "scope", "tenant"})
MOST_LETTERS = 200  # of a refresh token that is worth looking up


@dataclass(frozen=True, slots=True)
class TokenPair:
    """What a login or a refresh gives to the client."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    expires_in: int
    token_type: str = "Bearer"


@explain_class
class Tokens:
    """Issues access and refresh tokens, and checks what it issued."""

    def __init__(
        self,
        secret: str | bytes | None = None,
        *,
        private_key: Any = None,
        key_id: str | None = None,
        issuer: str,
        audience: str | None = None,
        access_ttl: Duration = 900,
        refresh_ttl: Duration = timedelta(days=30),
        reuse_grace: Duration = 10,
        refresh: str = "body",
        revoker: Revoker | None = None,
    ) -> None:
        self.mistakes: list[str] = []
        self.refresh_mode = refresh
        self.revoker = revoker
        self.access_ttl, self.refresh_ttl = as_timedelta(access_ttl), as_timedelta(refresh_ttl)
        self._reuse_grace = as_timedelta(reuse_grace)
        self._issuer, self._audience = issuer, audience
        self._headers = None if key_id is None else {"kid": key_id}
        self._signer: Any = None
        self._key = self._read_key(secret, private_key)
        self._store: RefreshStore | None = None
        self._host: Host | None = None
        self._verifying: list[Bearer] = []  # the authenticators with a `verify` of their own
        self._check_options()

    def _read_key(self, secret: Any, private_key: Any) -> VerifyingKey | None:
        if (secret is None) == (private_key is None):
            self.mistakes.append("auth.Tokens: give either secret or private_key")
            return None
        missing = missing_library(asymmetric=secret is None)
        if missing is not None:
            self.mistakes.append(library_mistake("auth.Tokens", missing))
            return None
        try:
            if secret is not None:
                key = secret_key(secret)
                self._signer = key.key
            else:
                self._signer, key = signing_key(private_key)
        except BadKey as error:
            self.mistakes.append(f"auth.Tokens: {error}")
            return None
        return key

    def _check_options(self) -> None:
        durations = (self.access_ttl, self.refresh_ttl)
        if self._reuse_grace < timedelta(0):
            self.mistakes.append("auth.Tokens: reuse_grace is a duration that is not negative")
        if min(durations) <= timedelta(0):
            self.mistakes.append("auth.Tokens: access_ttl and refresh_ttl are durations above zero")
        if self.refresh_mode not in ("body", "cookie"):
            self.mistakes.append(f'auth.Tokens: refresh={self.refresh_mode!r} is neither "body" nor "cookie"')
        if self.revoker is not None:
            self.mistakes += [f"auth.Tokens: {mistake}" for mistake in revoker_mistakes(self.revoker)]
        if not self._issuer:
            self.mistakes.append("auth.Tokens: issuer is a text that is not empty")

    def bearer(self, **options: Unpack[TokenOptions]) -> Bearer:
        """The authenticator for the tokens that are issued here; takes the options of `auth.jwt`."""
        is_secret = self._key is None or isinstance(self._key.key, bytes)
        all_options: TokenOptions = {
            "issuer": self._issuer or None,
            "audience": self._audience,
            "tenant_claim": "tenant",
            "revoker": self.revoker,
        }
        all_options.update(options)
        key = None if self._key is None else self._key.key
        authenticator = Bearer(
            key if is_secret else None, public_key=None if is_secret else key, **all_options
        )
        if self.mistakes:
            authenticator.mistakes = self.mistakes
        authenticator.is_issued_here = True
        if authenticator.has_verify:
            self._verifying.append(authenticator)
        return authenticator

    def mount(
        self,
        server: Host,
        *,
        login: Login | None = None,
        path: str = "/auth",
        request: Any = None,
        account: str = "email",
        limits: LoginLimits | None = None,
    ) -> None:
        """Add the routes `login`, `refresh`, `logout` and `logout-all` below `path`, and the table they need.

        `login(ctx, credentials)` says whose credentials they are, or None; `credentials` is an instance of
        `request`, whose attribute `account` names the account that attempts are counted for.
        """
        if self._host is not None:
            raise DeclarationError("auth.Tokens: it is mounted already")
        self._host, self._store = server, RefreshStore(server)
        TokenRoutes(self, server, path, account, limits or LoginLimits()).mount(login, request, self._store)

    @property
    def is_mounted(self) -> bool:
        """Whether a server has its routes and its table."""
        return self._host is not None

    # -- issuing -------------------------------------------------------------------------------

    async def issue(self, auth_info: AuthInfo, claims: Mapping[str, Any] | None = None) -> TokenPair:
        """A new pair of tokens for this identity, with further claims; joins the open transaction."""
        return await self.issue_at(None, auth_info, claims)

    async def issue_at(
        self, place: str | None, auth_info: AuthInfo, claims: Mapping[str, Any] | None = None
    ) -> TokenPair:
        """A new pair of tokens for a login; the account is known at this network from now on."""
        if not auth_info.user_id:
            raise ValueError("an identity without a user_id gets no tokens")
        if any(" " in scope for scope in auth_info.scopes):
            raise ValueError("a scope has no spaces")
        reserved_names = sorted(RESERVED & set(claims or ()))
        if reserved_names:
            raise ValueError(f"the claims {', '.join(reserved_names)} are set by the issuer")
        identity = {
            "roles": list(auth_info.roles),
            "scopes": list(auth_info.scopes),
            "claims": dict(claims or {}),
        }
        return await self._issue(auth_info.user_id, auth_info.tenant_id, identity, new_id(), place)

    async def _issue(
        self, actor: str, tenant: str, identity: dict[str, Any], family: str, place: str | None
    ) -> TokenPair:
        host, store = self._require_host()
        now = host.now()
        access, expires_at = AccessToken(new_id(), now + self.access_ttl), now + self.refresh_ttl
        token = secrets.token_urlsafe(32)
        await store.add(
            RefreshToken(
                digest=token_digest(token),
                family=family,
                actor=actor,
                tenant=tenant,
                issued_at=now,
                expires_at=expires_at,
                claims=identity,
                access_jti=access.jti,
                access_expires_at=access.expires_at,
                place=place,
            )
        )
        text = self._sign(actor, tenant, identity, family, access, now)
        keep_answer_secret()  # the request that asks will show them
        return TokenPair(text, token, int(self.access_ttl.total_seconds()))

    def _sign(
        self,
        actor: str,
        tenant: str,
        identity: Mapping[str, Any],
        family: str,
        access: AccessToken,
        now: datetime,
    ) -> str:
        # With fractions: a login in the second of "log out everywhere" is after it, not before.
        times = {"iat": now.timestamp(), "exp": access.expires_at.timestamp()}
        claims = {**identity["claims"], "iss": self._issuer, "sub": actor, **times, "jti": access.jti}
        claims |= {"sid": family, "roles": identity["roles"]}
        optional = {"aud": self._audience, "scope": " ".join(identity["scopes"]), "tenant": tenant}
        claims |= {name: value for name, value in optional.items() if value}
        assert self._key is not None
        algorithm = "RS256" if "RS256" in self._key.algorithms else self._key.algorithms[0]
        text: str = import_module("jwt").encode(claims, self._signer, algorithm, headers=self._headers)
        return text

    # -- refreshing ----------------------------------------------------------------------------

    async def refresh(self, token: str, ctx: Context | None = None) -> TokenPair:
        """The next pair of a family; 401 unless the token is the family's last one, and good.

        With a `ctx`, a caller whom `auth.verify` or every `verify` of the authenticators refuses gets none;
        the family ends.
        """
        host, store = self._require_host()
        if not 0 < len(token) <= MOST_LETTERS:
            raise _invalid()
        async with host.transaction():
            row = await store.use(token, host.now())
            if row is not None:
                pair = await self._issue(row.actor, row.tenant, row.claims, row.family, row.place)
                if ctx is None or await self._is_welcome(ctx, pair):
                    return pair
                ended_tokens = await self._end_family(row.family, row.actor)
        if row is not None:
            await self.revoke(ended_tokens)
            raise _invalid()
        raise await self._refusal(store, token, host.now())

    async def _is_welcome(self, ctx: Context, pair: TokenPair) -> bool:
        """Whether the application would take the new access token on some route."""
        if not self._verifying and not ctx.runtime.caller_checks:
            return True
        for authenticator in self._verifying or (self.bearer(),):
            try:
                await authenticator.identify(ctx, pair.access_token.encode())
            except Abort as refusal:
                if refusal.status != 401:
                    raise
            else:
                return True
        return False

    async def _refusal(self, store: RefreshStore, token: str, now: datetime) -> Abort:
        """Why a token cannot be used; one that was used long ago ends its family."""
        row = await store.find(token)
        if row is None or row.used_at is None or row.expires_at <= now:
            return _invalid()
        if now - row.used_at <= self._reuse_grace:  # a client that asked twice at once, or lost the answer
            return _invalid()
        await self.revoke(await self._end_family(row.family, row.actor))
        return _refuse("REFRESH_TOKEN_REUSED", "the refresh token was used before; sign in again")

    # -- ending --------------------------------------------------------------------------------

    async def end(self, info: AuthInfo) -> None:
        """End the session of an identity: its refresh family and, with a revoker, its access tokens."""
        self._require_host()
        family = info.claims.get("sid")
        tokens = []
        if isinstance(family, str) and family:
            tokens = await self._end_family(family, info.user_id)
        await self.revoke([*tokens, *_own_token(info)])

    async def _end_family(self, family: str, actor: str) -> list[AccessToken]:
        """End the tokens of a session, and its streams; the access tokens that have not expired."""
        host, store = self._require_host()
        async with host.transaction() as tx:
            tokens = await store.end_family(family, actor, host.now())
            await host.events.revocations.note(tx=tx, session_id=family, user_id=actor)
        return tokens

    async def end_all(self, who: AuthInfo | str) -> None:
        """End every session and API key of an identity, in its tenant; of a user id, those in every tenant.

        Refresh tokens and keys end in the open transaction, if there is one; access tokens end
        with a revoker, once it has committed.
        """
        host, store = self._require_host()
        is_inside = current_tx(store.adapter) is not None
        async with host.transaction() as tx:
            revocation = await self._end_rows(who, tx)
            if is_inside:
                tx.after_commit(revocation)
        if not is_inside:
            await revocation()

    async def end_all_in(self, who: AuthInfo | str, tx: Tx) -> None:
        """End every session and API key in this open transaction on the server's database."""
        tx.after_commit(await self._end_rows(who, tx))

    async def _end_rows(self, who: AuthInfo | str, tx: Tx) -> Callable[[], Awaitable[None]]:
        """End the rows of refresh tokens and API keys; returns what to revoke after the commit."""
        host, store = self._require_host()
        user_id, tenant = (who, None) if isinstance(who, str) else (who.user_id, who.tenant_id)
        if not user_id:
            raise ValueError("whose sessions end? The user_id is empty")
        now = host.now()
        await store.end_all(user_id, tenant, now, tx)
        if host.has_model(ApiKey):
            await revoke_all(store.adapter, user_id, tenant, now, tx)
        await host.events.revocations.note(tx=tx, user_id=user_id, tenant_id=tenant, before=now.timestamp())
        name = user_id if tenant is None else member_name(user_id, tenant)
        return partial(self._revoke_user, name, now, [] if isinstance(who, str) else _own_token(who))

    async def _revoke_user(self, name: str, now: datetime, tokens: list[AccessToken]) -> None:
        if self.revoker is None:
            return
        try:
            with act_on(self._database()):
                await self.revoker.revoke_user(name, now, now + self.access_ttl)
        except Exception as error:
            raise revocation_unavailable() from error
        await self.revoke(tokens)

    async def revoke(self, tokens: list[AccessToken]) -> None:
        """Have these access tokens refused from now on; without a revoker they are good until they expire."""
        if self.revoker is None:
            return
        try:
            with act_on(self._database()):
                for token in tokens:
                    await self.revoker.revoke_token(token.jti, token.expires_at)
        except Exception as error:
            raise revocation_unavailable() from error

    def _database(self) -> object:
        """The database of the server on which the routes are mounted: revocations belong to that server."""
        return self._require_host()[1].adapter

    def _require_host(self) -> tuple[Host, RefreshStore]:
        if self._host is None or self._store is None:
            raise DeclarationError("auth.Tokens: mount it on the server first")
        return self._host, self._store


def _own_token(info: AuthInfo) -> list[AccessToken]:
    jti, expires = info.claims.get("jti"), info.claims.get("exp")
    if not isinstance(jti, str) or not isinstance(expires, int | float):
        return []
    return [AccessToken(jti, moment(expires))]


def _invalid() -> Abort:
    return _refuse("INVALID_REFRESH_TOKEN", "the refresh token is not valid")


def _refuse(code: str, message: str) -> Abort:
    return Abort(401, code, message, headers={"www-authenticate": "Bearer"})
