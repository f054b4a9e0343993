"""What all authenticators have in common: which one decides, what anonymous callers get, `auth.verify`.

The first authenticator whose credential is present decides. Without any credential the last one answers
401, unless an exemption stands before it or the application's own middleware has set an identity. A caller
that was found passes `auth.verify`, which one server has for all its authenticators.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Literal

from maniflex.errors import Abort, CallbackFailed
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
