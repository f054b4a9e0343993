"""The routes of `auth.Tokens`: sign in, refresh, sign out here, sign out everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from maniflex._callables import is_async
from maniflex.errors import Abort, CallbackFailed, RequestError
from maniflex.middleware.auth.csrf_cover import is_csrf
from maniflex.middleware.auth.guards import require_auth
from maniflex.middleware.auth.host import Host
from maniflex.middleware.auth.login_limits import LoginLimiter, LoginLimits
from maniflex.middleware.auth.passwords import checking_password
from maniflex.middleware.auth.refresh_store import RefreshStore, RefreshToken
from maniflex.middleware.auth.request import LOOPBACK, cookie_values, host_name
from maniflex.middleware.auth.schemes import cookie_scheme
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.entry_docs import EntryDocs, answer_header
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next, takes
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


class OpenRoute(Entry):
    """Lets a route be reached without an identity, past every authenticator: it makes identities itself."""

    name = "auth.Tokens"
    homes: ClassVar = {}
    in_actions = True
    is_exemption = True

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
        self.tables, self.stores = tables, stores
        self.needs_no_csrf = not is_forgeable

    @property
    def forgeable_by(self) -> str:
        """The cookie by which another site could make a browser send requests; empty if none can."""
        return "" if self.needs_no_csrf else f'the cookie {COOKIE!r} (refresh="cookie")'

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return self._docs

    def silences(self, other: Entry) -> bool:
        return other.is_authenticator or (self.needs_no_csrf and is_csrf(other))

    async def __call__(self, ctx: Context, next: Next) -> None:
        # An expired token that a client sends along must not keep it from getting a new one.
        ctx.authenticated = ctx.lets_anonymous_pass = True
        ctx.csrf_exempt = self.needs_no_csrf
        await next()


class SignOutNotes(Entry):
    """Says what signing out answers."""

    name = "auth.Tokens"
    homes: ClassVar = {}
    in_actions = True

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
