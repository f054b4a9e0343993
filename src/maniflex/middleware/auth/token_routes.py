"""The routes of `auth.Tokens`: sign in, refresh, sign out here, sign out everywhere."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from maniflex._callables import explain_class, is_async
from maniflex.errors import Abort, CallbackFailed, RequestError
from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.auth.authenticator import (
    LOOPBACK,
    cookie_scheme,
    cookie_values,
    host_name,
    member_name,
    moment,
    revocation_unavailable,
    revoker_mistakes,
)
from maniflex.middleware.auth.credential_store import Host, RefreshStore, RefreshToken
from maniflex.middleware.auth.csrf_tokens import is_csrf
from maniflex.middleware.auth.guards import require_auth
from maniflex.middleware.auth.passwords import checking_password
from maniflex.middleware.db.query_text import network_of
from maniflex.middleware.db.rate_limit import Limiter
from maniflex.middleware.stores.port import Duration, RateLimitBackend, Revoker
from maniflex.middleware.stores.rate_limits import SqlRateLimit
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.entry import ANYWHERE, AuthEntry, Entry, EntryDocs, Kept, Seat, answer_header
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import ACTION, AuthPart, Next, demands_identity, part_of, takes
from maniflex.pipeline.response import Response

if TYPE_CHECKING:
    from maniflex.middleware.auth.tokens import TokenPair, Tokens


Login = Callable[[Context, Any], AuthInfo | Awaitable[AuthInfo | None] | None]
COOKIE = "refresh_token"
_NO_STORE = {"cache-control": "no-store"}
_NO_STORE_HEADER = {"Cache-Control": answer_header("`no-store`: the answer has secrets.")}
_COOKIE_HEADER = {"Set-Cookie": answer_header(f"The cookie `{COOKIE}`.")}


@dataclass(slots=True)
class Credentials:
    """What a login takes unless told otherwise."""

    email: str
    password: str = field(repr=False)


@dataclass(slots=True)
class RefreshRequest:
    """What a refresh takes."""

    refresh_token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AccessAnswer:
    """The token of the next requests; the refresh token is in a cookie."""

    access_token: str
    token_type: str
    expires_in: int


@dataclass(frozen=True, slots=True)
class TokensAnswer(AccessAnswer):
    """The token of the next requests, and the one that gives new ones."""

    refresh_token: str


class OpenRoute(AuthEntry):
    """Lets a route be reached without an identity, past authenticators and guards: it makes identities."""

    name = "auth.Tokens"
    homes: ClassVar = {ACTION: ANYWHERE}
    part = AuthPart.EXEMPTION

    def __init__(
        self,
        mistakes: Sequence[str] = (),
        *,
        docs: EntryDocs,
        is_forgeable: bool = False,
        tables: Sequence[type[Model]] = (),
        stores: Sequence[Any] = (),
    ) -> None:
        super().__init__()
        self._docs = docs
        self.mistakes = list(mistakes)
        self.keeps = Kept(stores, tables)
        self.needs_no_csrf = not is_forgeable

    @property
    def forgeable_by(self) -> str:
        """The cookie by which another site could make a browser send requests; empty if none can."""
        return "" if self.needs_no_csrf else f'the cookie {COOKIE!r} (refresh="cookie")'

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return self._docs

    def silences(self, other: Entry) -> bool:
        judges_callers = part_of(other) is AuthPart.GUARD
        return demands_identity(other) or judges_callers or (self.needs_no_csrf and is_csrf(other))

    async def __call__(self, ctx: Context, next: Next) -> None:
        # An expired token that a client sends along must not keep it from getting a new one.
        ctx.authenticated = ctx.lets_anonymous_pass = True
        ctx.csrf_exempt = self.needs_no_csrf
        await next()


class SignOutNotes(Entry):
    """Says what signing out answers."""

    name = "auth.Tokens"
    homes: ClassVar = {ACTION: ANYWHERE}

    def __init__(self, answer_headers: Mapping[str, Any]) -> None:
        super().__init__()
        self._answer_headers = answer_headers

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(status=204, answer_headers=self._answer_headers)


class TokenRoutes:
    """Mounts the routes of one `Tokens` on a server."""

    def __init__(self, tokens: Tokens, host: Host, path: str, account: str, limits: LoginLimits) -> None:
        self._tokens = tokens
        self._host = host
        self._path = path.rstrip("/")
        self._account = account
        self._limiter = LoginLimiter(limits, f"auth.Tokens {self._path}/login")
        self._uses_cookie = tokens.refresh_mode == "cookie"
        self._pair: Any = AccessAnswer if self._uses_cookie else TokensAnswer
        self._cookie_header = _COOKIE_HEADER if self._uses_cookie else {}

    def mount(self, login: Login | None, request: Any, store: RefreshStore) -> None:
        self._tokens.mistakes += [f"auth.Tokens: {mistake}" for mistake in self._limiter.mistakes]
        if login is not None:
            self._mount_login(login, Credentials if request is None else request, store)
        refresh_route = OpenRoute(
            self._tokens.mistakes,
            docs=self._refresh_docs(),
            is_forgeable=self._uses_cookie,
            tables=(RefreshToken,),
            stores=(store,),
        )
        refresh_body = {} if self._uses_cookie else {"request": RefreshRequest}
        self._action(
            "refresh", self._refresh, [refresh_route], "Get new tokens", response=self._pair, **refresh_body
        )
        bearer = self._tokens.bearer()
        bearer.mistakes = []  # said by the route above
        bearer.is_issued_here = False  # it ends sessions, which nobody has to be asked about
        guards = [bearer, require_auth(), SignOutNotes(self._cookie_header)]
        self._action("logout", self._log_out, guards, "Sign out")
        self._action("logout-all", self._log_out_everywhere, guards, "Sign out everywhere")

    def _mount_login(self, login: Login, request: Any, store: RefreshStore) -> None:
        mistakes = self._tokens.mistakes
        if not takes(login, 2):
            mistakes.append("auth.Tokens: login is called with (ctx, credentials), which it does not take")
        names = _field_names(request)
        if names is not None and self._account not in names:
            mistakes.append(
                f"auth.Tokens: the type of a login has no field {self._account!r}; name it: account="
            )
        ask = login if is_async(login) else _InThread(login)

        async def sign_in(ctx: Context) -> Response:
            """Sign in with the credentials of an account."""
            account = _get(ctx.body, self._account)
            place = await self._limiter.limit_login(ctx, str(account), store.is_known)
            info = await _identify(ask, ctx)
            if info is None:
                raise Abort(
                    401,
                    "INVALID_CREDENTIALS",
                    "the account or the password is wrong",
                    headers={"www-authenticate": "Bearer"},
                )
            return self._answer(ctx, await self._tokens.issue_at(place, info))

        docs = self._limiter.docs()
        refusals = {**docs.refusals, 401: ["INVALID_CREDENTIALS"]}
        headers = {**docs.answer_headers, **_NO_STORE_HEADER, **self._cookie_header}
        open_route = OpenRoute(
            docs=replace(docs, refusals=refusals, answer_headers=headers),
            stores=() if self._limiter.mistakes else (self._limiter.backend,),
        )
        self._action("login", sign_in, [open_route], "Sign in", request=request, response=self._pair)

    def _refresh_docs(self) -> EntryDocs:
        refusals: dict[int, list[str]] = {401: ["INVALID_REFRESH_TOKEN", "REFRESH_TOKEN_REUSED"]}
        if self._tokens.revoker is not None:
            refusals[503] = ["REVOCATION_UNAVAILABLE"]
        return EntryDocs(
            security=cookie_scheme(COOKIE) if self._uses_cookie else {},
            refusals=refusals,
            answer_headers={**_NO_STORE_HEADER, **self._cookie_header},
        )

    def _action(self, name: str, handler: Any, middleware: list[Entry], summary: str, **options: Any) -> None:
        title = f"{self._path.strip('/').replace('/', '_')}_{name.replace('-', '_')}"
        settings = {"tags": ("Sign-in",), **options}
        mount = self._host.action(
            "POST", f"{self._path}/{name}", middleware=middleware, name=title, summary=summary, **settings
        )
        mount(handler)

    # -- handlers ------------------------------------------------------------------------------

    async def _refresh(self, ctx: Context) -> Response:
        """Use up a refresh token for a new pair of tokens."""
        if self._uses_cookie:
            values = cookie_values(ctx, COOKIE)
            token = values[0] if len(set(values)) == 1 else ""
        else:
            token = ctx.body.refresh_token
        return self._answer(ctx, await self._tokens.refresh(token, ctx))

    async def _log_out(self, ctx: Context) -> None:
        """End this session."""
        await self._tokens.end(ctx.require_auth())
        self._take_cookie(ctx)

    async def _log_out_everywhere(self, ctx: Context) -> None:
        """End every session of the caller."""
        await self._tokens.end_all(ctx.require_auth())
        self._take_cookie(ctx)

    def _answer(self, ctx: Context, pair: TokenPair) -> Response:
        data: dict[str, Any] = {
            "access_token": pair.access_token,
            "token_type": pair.token_type,
            "expires_in": pair.expires_in,
        }
        if self._uses_cookie:
            self._set_cookie(ctx, pair.refresh_token, self._tokens.refresh_ttl.total_seconds())
        else:
            data["refresh_token"] = pair.refresh_token
        return Response(200, data, headers=_NO_STORE)

    def _take_cookie(self, ctx: Context) -> None:
        if self._uses_cookie:
            self._set_cookie(ctx, "", 0)

    def _set_cookie(self, ctx: Context, value: str, seconds: float) -> None:
        root = ctx.scope.get("root_path") or ""
        path = f"{root}{self._host.config.path_prefix}{self._path}/refresh"
        secure = host_name(ctx) not in LOOPBACK
        ctx.set_cookie(COOKIE, value, max_age=seconds, path=path, secure=secure, same_site="strict")


class _InThread:
    """A plain function of the application, run in a thread: checking a password takes long."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn

    async def __call__(self, ctx: Context, credentials: Any) -> Any:
        return await ctx.runtime.threads.run(self._fn, ctx, credentials)


async def _identify(ask: Callable[..., Any], ctx: Context) -> AuthInfo | None:
    """What the application says about the credentials; what it raises refuses them."""
    try:
        with checking_password():
            info = await ask(ctx, ctx.body)
    except RequestError:
        raise
    except Exception as error:
        raise CallbackFailed("the login of auth.Tokens failed") from error
    if info is not None and not isinstance(info, AuthInfo):
        raise CallbackFailed("the login of auth.Tokens returned neither an AuthInfo nor None")
    return info


def _field_names(request: Any) -> set[str] | None:
    """The names of the fields of a type; None when they cannot be known."""
    if is_dataclass(request):
        return {one.name for one in fields(request)}
    names = getattr(request, "model_fields", None) or getattr(request, "__annotations__", None)
    return None if names is None else set(names)


def _get(credentials: Any, name: str) -> Any:
    return credentials.get(name, "") if isinstance(credentials, Mapping) else getattr(credentials, name, "")


# `auth.mount_logout`: signing out with tokens that another system issued.


def mount_logout(
    server: Host,
    revoker: Revoker,
    *,
    keep: Duration,
    path: str = "/logout",
    all_path: str = "/logout-all",
) -> None:
    """Add routes that revoke the caller's token, and all of the caller's tokens.

    `keep` is the longest life a token can have: for so long a revocation must be remembered.
    """
    life = as_timedelta(keep)

    async def log_out(ctx: Context) -> None:
        """Revoke the token of this request."""
        claims = ctx.require_auth().claims
        jti, expires = claims.get("jti"), claims.get("exp")
        if not isinstance(jti, str) or not jti:
            raise Abort(
                401,
                "TOKEN_NOT_REVOCABLE",
                "the token has no id by which it could be revoked",
                headers={"www-authenticate": "Bearer"},
            )
        until = moment(expires) if isinstance(expires, int | float) else ctx.now() + life
        await _revoke(revoker.revoke_token, jti, until)
        await ctx.server.events.revocations.note(token_id=jti)

    async def log_out_everywhere(ctx: Context) -> None:
        """Revoke all tokens the caller has."""
        info, now = ctx.require_auth(), ctx.now()
        await _revoke(revoker.revoke_user, member_name(info.user_id, info.tenant_id), now, now + life)
        jti, expires = info.claims.get("jti"), info.claims.get("exp")
        if isinstance(jti, str) and jti and isinstance(expires, int | float):
            await _revoke(revoker.revoke_token, jti, moment(expires))
        await ctx.server.events.revocations.note(
            user_id=info.user_id, tenant_id=info.tenant_id, before=now.timestamp()
        )

    guard = LogoutGuard(revoker)
    if life.total_seconds() <= 0:
        guard.mistakes.append("keep is a duration above zero: the longest life of a token")
    for place, handler, summary in (
        (path, log_out, "Sign out"),
        (all_path, log_out_everywhere, "Sign out everywhere"),
    ):
        options = {"summary": summary, "tags": ("Sign-in",)}
        server.action("POST", place, middleware=[guard, require_auth()], **options)(handler)


class LogoutGuard(Entry):
    """Brings the tables of the revoker, and stops the start when nothing finds out who calls the route."""

    name = "auth.mount_logout"
    homes: ClassVar = {ACTION: ANYWHERE}

    def __init__(self, revoker: Revoker) -> None:
        super().__init__()
        self.mistakes += revoker_mistakes(revoker)
        self.keeps = Kept(() if self.mistakes else (revoker,))

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(refusals={401: ["TOKEN_NOT_REVOCABLE"], 503: ["REVOCATION_UNAVAILABLE"]}, status=204)

    def problems(self, seat: Seat) -> Iterable[str]:
        others = [r.fn for r in seat.registrations]
        if not any(not isinstance(fn, Entry) or demands_identity(fn) for fn in others):
            yield "no authenticator covers actions, so nobody could sign out"


async def _revoke(write: Any, subject: str, *moments: datetime) -> None:
    try:
        await write(subject, *moments)
    except Exception as error:
        raise revocation_unavailable() from error


# How often a login may be tried: from one network, for one account from one network, and for one account.
#
# Whoever knows the name of an account can use up what all networks together may try. Its owner comes in
# all the same: a network from which the account has signed in before is not counted among them.


_LIMIT = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")
_MESSAGE = "too many attempts; try again later"
IsKnown = Callable[[str], Awaitable[bool]]


@explain_class
@dataclass(frozen=True, slots=True)
class LoginLimits:
    """Attempts in a number of seconds: `"20/60"` is twenty in a minute.

    `per_address` is for one network, `per_pair` for one account from one network, `per_account` for one
    account from all networks where it has not signed in before. They are counted in the server's database,
    for all its processes, unless `backend` is another place.
    """

    per_address: str = "20/60"
    per_account: str = "100/3600"
    backend: RateLimitBackend | None = None
    per_pair: str = "10/900"

    def problems(self) -> Iterator[str]:
        for name in ("per_address", "per_account", "per_pair"):
            if not _LIMIT.fullmatch(str(getattr(self, name))):
                yield f'limits: {name} is written "attempts/seconds", such as "20/60"'


class LoginLimiter:
    """Counts the attempts on one login route."""

    def __init__(self, limits: LoginLimits, route: str) -> None:
        backend = SqlRateLimit() if limits.backend is None else limits.backend
        self.backend = backend
        self._per_address = _limiter(f"{route} by address", limits.per_address, backend)
        self._per_pair = _limiter(f"{route} by account and address", limits.per_pair, backend)
        self._per_account = _limiter(f"{route} by account", limits.per_account, backend)
        self.mistakes = [*limits.problems(), *self._per_address.mistakes]

    def docs(self) -> EntryDocs:
        """What the API description says of the route."""
        return self._per_address.docs()

    async def limit_login(self, ctx: Context, account: str, is_known: IsKnown) -> str:
        """Count an attempt to sign in; 429 when its network or its account has had too many.

        `is_known(place)` says whether the account has signed in from this place before. Gives the place.
        """
        name, network = " ".join(account.casefold().split()), network_of(ctx)
        digest = _digest(name)
        place = _digest(f"{digest} {network}")

        async def count_account() -> None:
            try:
                await self._per_account(f"{self._per_account.label} {digest}", ctx, _pass)
            except Abort as refusal:
                if refusal.status != 429 or not await is_known(place):
                    raise

        count_pair = partial(self._per_pair, f"{self._per_pair.label} {place}", ctx, count_account)
        await self._per_address(f"{self._per_address.label} {network}", ctx, count_pair)
        return place


async def _pass() -> None:
    """Nothing stands after the last limit; the login goes on by itself."""


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _limiter(name: str, limit: str, backend: RateLimitBackend) -> Limiter:
    attempts, seconds = limit.split("/") if _LIMIT.fullmatch(str(limit)) else ("1", "1")
    return Limiter(name, int(attempts), int(seconds), backend=backend, message=_MESSAGE)
