"""`auth.csrf`: requests that a browser was made to send by another site.

Only a request whose credential a browser sends by itself (a cookie) can be forged, so requests that an
authenticator of the route knows by a token or a key in a header are not asked. A header that no authenticator
reads, or that another credential stands before, proves nothing. The others prove that their page could read
our token.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from typing import ClassVar
from urllib.parse import urlsplit

from maniflex.errors import Abort
from maniflex.middleware.auth.authenticator import Authenticator, cookie_values, header_values, is_https
from maniflex.middleware.auth.header_keys import HEADER_NAME
from maniflex.middleware.auth.keys import SHORT_SECRET
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import (
    ANYWHERE,
    AuthEntry,
    Entry,
    EntryDocs,
    Seat,
    SecretKeeper,
    acting,
    answer_header,
    cookie_parameter,
    header_parameter,
)
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import ACTION, FILES, Middleware, Next

MODES = ("double_submit", "signed")
_STATE = "maniflex.csrf"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*]+", re.IGNORECASE)
_HOST = re.compile(r"(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*(:[0-9]+)?", re.IGNORECASE)


def csrf(
    mode: str = "double_submit",
    *,
    secret: str | bytes | None = None,
    cookie: str = "csrf_token",
    header: str = "X-CSRF-Token",
    origins: Iterable[str] = (),
    enforce_bearer: bool = False,
    same_site: str = "lax",
    secure: bool | None = None,
    token_bytes: int = 32,
) -> Entry:
    """Refuse forged requests: the header must carry the token of the cookie, or the one made for the session.

    With a secret, tokens of `double_submit` are bound to the session, so a planted cookie does not pass.
    """
    return Csrf(mode, secret, cookie, header, origins, enforce_bearer, same_site, secure, token_bytes)


def csrf_token(ctx: Context) -> str:
    """The text that the header of this caller's next unsafe request must carry; sets its cookie if needed."""
    guard: Csrf | None = ctx.state.get(_STATE)
    if guard is None:
        raise RuntimeError("no auth.csrf stands before this code")
    return guard.token_for(ctx)


class Csrf(AuthEntry, SecretKeeper):
    """Checks unsafe requests, and gives safe ones a token."""

    name = "auth.csrf"
    homes: ClassVar = {"auth": ANYWHERE, ACTION: ANYWHERE, FILES: ANYWHERE}
    _later: tuple[Authenticator, ...] = ()  # the authenticators that run after it on a route

    def __init__(
        self,
        mode: str,
        secret: str | bytes | None,
        cookie: str,
        header: str,
        origins: Iterable[str],
        enforce_bearer: bool,
        same_site: str,
        secure: bool | None,
        token_bytes: int,
    ) -> None:
        super().__init__()
        self._mode = mode
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._cookie = cookie
        self._header_name = header
        self._header = header.lower().encode("latin-1", "replace")
        self._origins = [
            one.lower().rstrip("/") for one in ([origins] if isinstance(origins, str) else origins)
        ]
        self._enforce_bearer = enforce_bearer
        self._same_site = same_site
        self._secure = secure
        self._token_bytes = token_bytes
        self._check_options(header)

    def production_problems(self, seat: Seat) -> Iterable[str]:
        if self._secret is not None and len(self._secret) < SHORT_SECRET:
            yield f"the secret is shorter than {SHORT_SECRET} bytes and can be guessed"

    def knows_secret(self, text: str) -> bool:
        return self._secret == text.encode(errors="surrogatepass")

    def _check_options(self, header: str) -> None:
        if self._mode not in MODES:
            self.mistakes.append(f"mode={self._mode!r} is none of {', '.join(MODES)}")
        if self._secret is not None and not self._secret.strip():
            self.mistakes.append("the secret is empty, so anybody could sign")
        if self._mode == "signed" and self._secret is None:
            self.mistakes.append('mode="signed" needs a secret')
        if not HEADER_NAME.fullmatch(header) or not HEADER_NAME.fullmatch(self._cookie):
            self.mistakes.append("header and cookie are plain names")
        if str(self._same_site).lower() not in ("lax", "strict", "none"):
            self.mistakes.append(f"same_site={self._same_site!r} is none of lax, strict, none")
        if type(self._token_bytes) is not int or not 16 <= self._token_bytes <= 512:
            self.mistakes.append("token_bytes is a number from 16 to 512")
        wrong = [one for one in self._origins if not (_ORIGIN.fullmatch(one) or _HOST.fullmatch(one))]
        self.mistakes += [f"{one!r} is no origin, host or *.host" for one in wrong]

    @property
    def is_bound(self) -> bool:
        """Whether its tokens belong to a session, which an authenticator must have found before."""
        return self._secret is not None

    def placed_before(self, later: Sequence[Middleware]) -> Middleware:
        authenticators = [entry for entry in later if isinstance(entry, Authenticator)]
        if not authenticators:
            return self
        variant = copy(self)
        # Each as it stands on the route: it passes on what an authenticator after it reads.
        placed_entries = (one.placed_before(authenticators[n + 1 :]) for n, one in enumerate(authenticators))
        variant._later = tuple(one for one in placed_entries if isinstance(one, Authenticator))
        return variant

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        return self._unsafe_docs() if operation in Operation.WRITES else None

    def method_docs(self, method: str, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        if method not in SAFE_METHODS:
            return self._unsafe_docs()
        if self._mode != "double_submit" or method == "OPTIONS":
            return None
        cookie = answer_header(f"The cookie `{self._cookie}`, for a caller that has none.")
        return EntryDocs(answer_headers={"Set-Cookie": cookie})

    def _unsafe_docs(self) -> EntryDocs:
        is_signed = self._mode == "signed"
        text = "The CSRF token; a request with a credential in a header of its own needs none."
        if self._enforce_bearer:
            text = "The CSRF token."
        parameters = [header_parameter(self._header_name, text)]
        if not is_signed:
            parameters.append(cookie_parameter(self._cookie, "The same token; `__Host-` before it by https."))
        codes = ["CSRF_TOKEN_MISSING", "CSRF_TOKEN_MISMATCH"]
        codes.append("CSRF_NO_SESSION" if is_signed else "CSRF_COOKIE_MISSING")
        if self._origins:
            codes.append("CSRF_ORIGIN_REJECTED")
        return EntryDocs(parameters=parameters, refusals={403: codes})

    # -- a request -----------------------------------------------------------------------------

    async def __call__(self, ctx: Context, next: Next) -> None:
        if not ctx.csrf_exempt:
            ctx.state[_STATE] = self
            if ctx.scope["method"] not in SAFE_METHODS:
                if not self._carries_own_proof(ctx):
                    self._check(ctx)
            elif self._mode == "double_submit" and self._good_cookie(ctx) is None:
                self.token_for(ctx)
        await next()

    def _carries_own_proof(self, ctx: Context) -> bool:
        """Whether the credential that decides here is one that no other site can have a browser send.

        Of the authenticators that come later, the first whose credential is there decides; a bad one is 401.
        """
        if self._enforce_bearer:
            return False
        reader: Authenticator | None = ctx.authenticator
        if reader is None and not ctx.authenticated:
            reader = next((one for one in self._later if one.credential(ctx) is not None), None)
        return reader is not None and reader.proves_itself(ctx)

    def _check(self, ctx: Context) -> None:
        if self._origins and not self._is_known_origin(ctx):
            raise _refusal("CSRF_ORIGIN_REJECTED", "the request comes from another site")
        texts = header_values(ctx, self._header)
        if len(texts) != 1 or not texts[0].strip():
            raise _refusal("CSRF_TOKEN_MISSING", "the CSRF token is not in its header")
        token = texts[0].strip().decode("latin-1")
        if self._mode == "signed":
            right_text = self._signature(_session(ctx))
        else:
            cookies = cookie_values(ctx, self._cookie_name(ctx))
            if not cookies:
                raise _refusal("CSRF_COOKIE_MISSING", "the CSRF cookie is missing")
            right_text = self._good_cookie(ctx) or ""
        if not right_text or not hmac.compare_digest(token.encode("latin-1"), right_text.encode("latin-1")):
            raise _refusal("CSRF_TOKEN_MISMATCH", "the CSRF token is not the one of this session")

    def _is_known_origin(self, ctx: Context) -> bool:
        """Whether `Origin`, or else `Referer`, is on the list; neither is not."""
        values = header_values(ctx, b"origin") or header_values(ctx, b"referer")
        if len(values) != 1:
            return False
        try:
            parts = urlsplit(values[0].decode("ascii").lower())
            origin, host, name = f"{parts.scheme}://{parts.netloc}", parts.netloc, parts.hostname or ""
        except ValueError:
            return False
        if not parts.scheme or not name or "@" in host:
            return False
        return any(_matches(pattern, origin, host, name) for pattern in self._origins)

    # -- tokens --------------------------------------------------------------------------------

    def token_for(self, ctx: Context) -> str:
        """The token of this caller; for `double_submit` that of the cookie, which is set if it is missing."""
        if self._mode == "signed":
            return self._signature(_session(ctx))
        token = self._good_cookie(ctx)
        if token is None:
            nonce = secrets.token_urlsafe(self._token_bytes)
            token = nonce if self._secret is None else f"{nonce}.{self._bind_to_session(ctx, nonce)}"
            secure = is_https(ctx) if self._secure is None else self._secure
            ctx.set_cookie(
                self._cookie_name(ctx), token, secure=secure, http_only=False, same_site=self._same_site
            )
        return token

    def _good_cookie(self, ctx: Context) -> str | None:
        """The token of the cookie; None when there is none, or several, or one that is not ours."""
        values = cookie_values(ctx, self._cookie_name(ctx))
        if len(set(values)) != 1 or len(values[0]) < 16:
            return None
        if self._secret is not None:
            nonce, _, signature = values[0].rpartition(".")
            right_text = self._bind_to_session(ctx, nonce)
            if not hmac.compare_digest(signature.encode("latin-1"), right_text.encode("latin-1")):
                return None
        return values[0]

    def _cookie_name(self, ctx: Context) -> str:
        """Under https the name keeps other hosts from planting the cookie."""
        is_bound = self._secure is None and is_https(ctx)
        return f"__Host-{self._cookie}" if is_bound else self._cookie

    def _bind_to_session(self, ctx: Context, nonce: str) -> str:
        auth = ctx.auth
        session = "" if auth is None else f"{auth.user_id}\0{auth.session_id}"
        return self._signature(f"{session}\0{nonce}")

    def _signature(self, text: str) -> str:
        return hmac.new(self._secret or b"", text.encode(), sha256).hexdigest()


def _session(ctx: Context) -> str:
    if ctx.auth is None or not ctx.auth.session_id:
        raise _refusal("CSRF_NO_SESSION", "there is no session that a CSRF token could belong to")
    return ctx.auth.session_id


def _matches(pattern: str, origin: str, host: str, name: str) -> bool:
    if "://" in pattern:
        return origin == pattern
    if pattern.startswith("*."):
        return (host if ":" in pattern else name).endswith(pattern[1:])
    return pattern == (host if ":" in pattern else name)


def _refusal(code: str, message: str) -> Abort:
    return Abort(403, code, message)


# Which routes a browser could be made to use: a cookie alone must not be enough where something changes.
#
# The start asks here about every route as it runs, with all that stands before it, so no kind of route is
# left out: records, actions, files, search, durable work.


SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


@dataclass(frozen=True, slots=True)
class RouteMiddleware:
    """A route, and the middleware that a request to it passes, in order."""

    method: str
    label: str  # as messages name it: "create of Post", "POST /pay"
    middleware: Sequence[Middleware]

    @property
    def entries(self) -> list[Entry]:
        """The entries that act on it: one may silence another."""
        return acting([fn for fn in self.middleware if isinstance(fn, Entry)])


def is_csrf(fn: Middleware) -> bool:
    """Whether it is the entry that refuses forged requests."""
    return isinstance(fn, Entry) and fn.name == "auth.csrf"


def forgery_problems(routes: Iterable[RouteMiddleware]) -> Iterator[str]:
    """The mistakes of cookies and of `auth.csrf`, one sentence for each entry with its routes."""
    names_by_route: dict[tuple[str, str], list[str]] = {}
    too_early: dict[str, list[str]] = {}
    for route in routes:
        entries = route.entries
        places = [place for place, entry in enumerate(entries) if is_csrf(entry)]
        for entry in entries if not places and route.method not in SAFE_METHODS else ():
            if cookie := getattr(entry, "forgeable_by", ""):
                names_by_route.setdefault((entry.name, cookie), []).append(route.label)
        for place in places:
            # One of a kind that stands before it too has nothing left to read: the first one decides.
            earlier = {entry.name for entry in entries[:place] if isinstance(entry, Authenticator)}
            readers = [entry.name for entry in entries[place + 1 :] if isinstance(entry, Authenticator)]
            later = [name for name in readers if name not in earlier]
            if later and getattr(entries[place], "is_bound", False):
                too_early.setdefault(later[-1], []).append(route.label)
    for (name, cookie), labels in names_by_route.items():
        yield (
            f"{name}: {cookie} is sent by browsers unasked, so auth.csrf must cover {_list(labels)};"
            " csrf=False of the authenticator says that this is meant"
        )
    for name, labels in too_early.items():
        yield (
            "auth.csrf: with a secret its tokens are bound to the session; register it after the"
            f" authenticators: {name} comes later on {_list(labels)}"
        )


def _list(labels: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(labels))
