"""`auth.api_keys`: a key in a header, known to the code or kept in the table of `ApiKeys`."""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, ClassVar, Literal

from maniflex._callables import explain_class, is_async
from maniflex._caller import keep_answer_secret
from maniflex.db.current import reading
from maniflex.errors import (
    Abort,
    CallbackFailed,
    Conflict,
    Forbidden,
    NotFound,
    RequestError,
    ValidationFailed,
)
from maniflex.middleware.arguments import as_timedelta
from maniflex.middleware.auth.authenticator import (
    BASIC,
    Authenticator,
    Schemes,
    Verify,
    header_scheme,
    header_values,
    moment,
)
from maniflex.middleware.auth.credential_store import (
    LETTERS,
    SECRET_LETTERS,
    ApiKey,
    Host,
    digest_of,
    new_secret,
    revoke,
    rotate,
    touch,
)
from maniflex.middleware.auth.guards import require_auth
from maniflex.middleware.auth.passwords import checking_password
from maniflex.middleware.stores.port import Duration
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.entry import ANYWHERE, Entry, EntryDocs, Seat, SecretKeeper, answer_header
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import ACTION, takes
from maniflex.pipeline.response import Response

HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
MOST_BYTES = 1024
KEY_METHOD = "api_key"  # what `ctx.auth.auth_method` says of a caller with a key
SHORT = 16  # characters; a shorter key can be guessed
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")


def header_mistakes(header: str) -> Iterable[str]:
    """Why a credential cannot be read from a header."""
    if not HEADER_NAME.fullmatch(header):
        yield f"{header!r} is no name of a header"
    elif header.lower() == "cookie":
        yield "a cookie is sent by browsers unasked, so no key is read from it"


def api_keys(
    header: str = "X-API-Key",
    keys: Mapping[str, AuthInfo] | None = None,
    *,
    store: ApiKeys | None = None,
    verify: Verify | Literal[False] | None = None,
) -> Authenticator:
    """Authenticate by a key in a header: one of `keys`, which maps each to its identity, or one of `store`.

    A key of the form `sha256:<hex>` stands for the key that has this digest, so that code need not have it.
    `verify(ctx, claims, info)` is asked beside `auth.verify`; False asks neither, for machines.
    """
    return KeyHeader(header, keys, store, verify)


class KeyHeader(Authenticator, SecretKeeper):
    """Knows the digests of the keys, not the keys."""

    name = "auth.api_keys"
    challenge = "ApiKey"
    grants_are_fixed = True

    def __init__(
        self,
        header: str,
        keys: Mapping[str, AuthInfo] | None,
        store: ApiKeys | None,
        verify: Verify | Literal[False] | None,
    ) -> None:
        super().__init__(verify)
        self.is_issued_here = store is not None
        self.header = header.lower().encode("latin-1", "replace")
        self._header_name = header
        self._store = store
        self._by_digest: list[tuple[bytes, AuthInfo]] = []
        self._has_short_key = False
        self.mistakes += header_mistakes(header)
        if not keys and store is None:
            self.mistakes.append("it needs keys= or store=, or nobody could pass")
        if store is not None and not callable(getattr(store, "problems", None)):
            self.mistakes.append(f"store is an auth.ApiKeys, not {store!r}")
        for key, info in (keys or {}).items():
            self._add(key, info)

    def _add(self, key: Any, info: Any) -> None:
        if not isinstance(key, str) or not key.strip():
            self.mistakes.append("a key is empty")
        elif not isinstance(info, AuthInfo) or not info.user_id:
            self.mistakes.append("a key leads to an AuthInfo with a user_id")
        elif key.startswith("sha256:") and not _DIGEST.fullmatch(key):
            self.mistakes.append("what follows sha256: in a key is a digest of 64 hexadecimal digits")
        else:
            digest_text = _DIGEST.fullmatch(key)
            self._has_short_key = self._has_short_key or (digest_text is None and len(key) < SHORT)
            digest = bytes.fromhex(digest_text[1]) if digest_text else sha256(key.encode()).digest()
            kind = "service_account" if info.identity_type == "human" else info.identity_type
            self._by_digest.append((digest, replace(info, auth_method=KEY_METHOD, identity_type=kind)))

    def problems(self, seat: Seat) -> Iterable[str]:
        return () if self._store is None else self._store.problems(seat)

    def warnings(self, seat: Seat) -> Iterable[str]:
        return self.production_problems(seat)

    def production_problems(self, seat: Seat) -> Iterable[str]:
        if self._has_short_key:
            yield f"a key is shorter than {SHORT} characters and can be guessed"

    def knows_secret(self, text: str) -> bool:
        digest = sha256(text.encode(errors="surrogatepass")).digest()
        return any(digest == known for known, _ in self._by_digest)

    def schemes(self) -> Schemes:
        return header_scheme(self._header_name)

    def credential(self, ctx: Context) -> list[bytes] | None:
        return header_values(ctx, self.header) or None

    def proves_itself(self, ctx: Context) -> bool:
        return True

    async def authenticate(self, ctx: Context, credential: list[bytes]) -> AuthInfo:
        key = credential[0].strip()
        info = None
        if len(credential) == 1 and 0 < len(key) <= MOST_BYTES:
            info = self._find_known(key)
            if info is None and self._store is not None and key.isascii():
                info = await self._store.identify(ctx, key.decode("ascii"))
        if info is None:
            raise self.refusal("UNAUTHORIZED", "the API key is missing or not valid")
        return info

    def _find_known(self, key: bytes) -> AuthInfo | None:
        digest = sha256(key).digest()
        matches = [info for key_digest, info in self._by_digest if hmac.compare_digest(key_digest, digest)]
        # A copy for each request: what one does to its roles or claims, no other may see.
        return deepcopy(matches[0]) if matches else None


# `auth.basic`: user name and password with every request.


Check = Callable[[str, str], AuthInfo | Awaitable[AuthInfo | None] | None]
MOST_CREDENTIAL_BYTES = 8192
_REALM = re.compile(r"[\x20-\x7e]*")


def basic(
    check: Check, *, realm: str = "maniflex", verify: Verify | Literal[False] | None = None
) -> Authenticator:
    """Authenticate by `Authorization: Basic`; `check(username, password)` says who that is, or None.

    A plain `check` runs in a thread, because checking a password takes long.
    `verify(ctx, claims, info)` is asked beside `auth.verify`; False asks neither.
    """
    return Basic(check, realm, verify)


class Basic(Authenticator):
    """Asks the application for every user name and password."""

    name = "auth.basic"
    scheme = "basic"

    def __init__(self, check: Check, realm: str, verify: Verify | Literal[False] | None) -> None:
        super().__init__(verify)
        self._check = check
        self._is_async = is_async(check)
        if not takes(check, 2):
            self.mistakes.append("check is called with (username, password), which it does not take")
        if not _REALM.fullmatch(realm) or '"' in realm or "\\" in realm:
            self.mistakes.append("realm is plain text without quotes")
        self.challenge = f'Basic realm="{realm}", charset="UTF-8"'

    def schemes(self) -> Schemes:
        return BASIC

    def credential(self, ctx: Context) -> bytes | None:
        return self.authorization(ctx)

    async def authenticate(self, ctx: Context, credential: bytes) -> AuthInfo:
        pair = _user_and_password(credential)
        info = None if pair is None else await self._ask(ctx, *pair)
        if info is None:
            raise self.refusal("UNAUTHORIZED", "the user name or the password is wrong")
        return replace(info, auth_method="basic")

    async def _ask(self, ctx: Context, username: str, password: str) -> AuthInfo | None:
        check: Callable[[str, str], Any] = self._check
        try:
            with checking_password():
                if self._is_async:
                    outcome = await check(username, password)
                else:
                    outcome = await ctx.runtime.threads.run(check, username, password)
        except RequestError:
            raise
        except Exception as error:
            raise CallbackFailed("the check of auth.basic failed") from error
        if outcome is not None and not isinstance(outcome, AuthInfo):
            raise CallbackFailed("the check of auth.basic returned neither an AuthInfo nor None")
        return outcome


def _user_and_password(credential: bytes) -> tuple[str, str] | None:
    if len(credential) > MOST_CREDENTIAL_BYTES:
        return None
    try:
        text = b64decode(credential, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    username, colon, password = text.partition(":")
    return (username, password) if colon else None


# `auth.ApiKeys`: keys that callers make, rotate and revoke themselves.


MOST_OVERLAP = timedelta(days=30)
PAGE, MOST_PAGES = 100, 10**12
_NO_STORE = {"cache-control": "no-store"}
_SECRET = {"Cache-Control": answer_header("`no-store`: the answer has a secret.")}
_DOCS = {  # by the handler
    "create": EntryDocs(refusals={403: ["FORBIDDEN"]}, answer_headers=_SECRET, status=201),
    "list": EntryDocs(refusals={400: ["INVALID_QUERY"]}),
    "read": EntryDocs(),
    "revoke": EntryDocs(status=204),
    "rotate": EntryDocs(
        refusals={
            400: ["BODY_READ_ERROR", "INVALID_JSON"],
            403: ["FORBIDDEN"],
            409: ["CONFLICT"],
            413: ["BODY_READ_ERROR"],
            415: ["UNSUPPORTED_MEDIA_TYPE"],
            422: ["VALIDATION_FAILED"],
        },
        answer_headers=_SECRET,
    ),
}
_SHOWN = ("id", "name", "actor", "tenant", "roles", "scopes")
_SHOWN_TIMES = ("expires_at", "last_used_at", "revoked_at", "created_at")


@dataclass(slots=True)
class KeyRequest:
    """What a new key takes: at most what its maker has."""

    name: str
    roles: list[str] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)
    expires_at: datetime | None = None


@dataclass(slots=True)
class RotateRequest:
    """For how many seconds the old secret still counts."""

    overlap: float = 0


@dataclass(frozen=True, slots=True)
class ShownApiKey:
    """A key, without its secret."""

    id: str
    name: str
    actor: str
    tenant: str
    roles: list[str]
    scopes: list[str]
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewApiKey(ShownApiKey):
    """A key with its secret, which is shown this once."""

    key: str


class KeyRoute(Entry):
    """Says what a route of the keys answers."""

    name = "auth.ApiKeys"
    homes: ClassVar = {ACTION: ANYWHERE}

    def __init__(self, docs: EntryDocs) -> None:
        super().__init__()
        self._docs = docs

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return self._docs


@explain_class
class ApiKeys:
    """Keys in the table `api_key`; as `auth.api_keys(store=...)` they authenticate.

    A caller makes and rotates keys of its own, with at most the roles and scopes it has now. A key does so
    only with `made_by_keys=True`, and then what it makes ends no later than itself.
    """

    def __init__(
        self,
        prefix: str = "mfx",
        admin_role: str = "admin",
        max_ttl: Duration | None = None,
        *,
        made_by_keys: bool = False,
    ) -> None:
        self._prefix = prefix
        self._admin_role = admin_role
        self._made_by_keys = made_by_keys
        self._max_ttl = None if max_ttl is None else as_timedelta(max_ttl)
        self._host: Host | None = None
        self._key = re.compile(rf"{re.escape(prefix)}_([0-9a-f-]{{36}})_([{LETTERS}]{{{SECRET_LETTERS}}})")

    def problems(self, seat: Seat) -> Iterable[str]:
        """What keeps the keys from being used: they are kept in a table that is made by `mount`."""
        if self._host is None:
            yield "its store is not mounted: keys.mount(server)"
        if not re.fullmatch("[a-z][a-z0-9]{0,15}", self._prefix):
            yield "the prefix of keys is a short word of small letters"
        if self._max_ttl is not None and self._max_ttl <= timedelta(0):
            yield "max_ttl is a duration above zero"

    def mount(self, server: Host, path: str = "/api_keys") -> None:
        """Add the routes by which callers make, list, rotate and revoke keys, and the table they need."""
        self._host = server
        server.register(ApiKey)
        creating = {"request": KeyRequest, "response": NewApiKey}
        listing = {"query_params": {"page": int}, "response": list[ShownApiKey]}
        routes: tuple[tuple[str, str, Any, str, dict[str, Any]], ...] = (
            ("POST", path, self._create, "Make an API key", creating),
            (
                "GET",
                path,
                self._list,
                "List API keys",
                listing,
            ),
            ("GET", f"{path}/{{id}}", self._read, "Get one API key", {"response": ShownApiKey}),
            ("DELETE", f"{path}/{{id}}", self._revoke, "Revoke an API key", {}),
            ("POST", f"{path}/{{id}}/rotate", self._rotate, "Rotate an API key", {"response": NewApiKey}),
        )
        for method, place, handler, summary, options in routes:
            name = handler.__name__.strip("_")
            about = {"name": f"{name}_api_key", "summary": summary, "tags": ("API keys",), **options}
            guards = [require_auth(), KeyRoute(_DOCS[name])]
            server.action(method, place, middleware=guards, **about)(handler)

    # -- authenticating ------------------------------------------------------------------------

    async def identify(self, ctx: Context, key: str) -> AuthInfo | None:
        """Who has the key; None when it is unknown, expired or revoked."""
        parts = self._key.fullmatch(key)
        if parts is None or self._host is None:
            return None
        store = ctx.runtime.store(ApiKey)
        row = await store.find(parts[1], tx=reading(store.adapter))  # a replica may not know of a revocation
        record: Any = None if row is None else store.record(row)
        now = ctx.now()
        if record is None or not record.accepts(parts[2], now):
            return None
        await touch(self._host, record, now)
        ends_at = record.end_of(parts[2])
        return AuthInfo(
            user_id=record.actor,
            roles=tuple(record.roles),
            claims={} if ends_at is None else {"exp": ends_at.timestamp()},
            tenant_id=record.tenant,
            identity_type="service_account",
            scopes=tuple(record.scopes),
            session_id=record.id,
            auth_method=KEY_METHOD,
        )

    # -- routes --------------------------------------------------------------------------------

    async def _create(self, ctx: Context) -> Response:
        """Make a key of the caller's own, with at most the caller's roles and scopes."""
        info, wish, now = ctx.require_auth(), ctx.body, ctx.now()
        self._require_maker(info, wish.roles, wish.scopes)
        expires_at = _read_expiry(wish.expires_at, self._latest_end(info, now), now)
        secret = new_secret()
        record = (
            await ctx.unscoped()
            .db(ApiKey)
            .create(
                name=wish.name,
                digest=digest_of(secret),
                actor=info.user_id,
                tenant=info.tenant_id,
                roles=sorted(set(wish.roles)),
                scopes=sorted(set(wish.scopes)),
                expires_at=expires_at,
            )
        )
        return self._answer(201, record, secret)

    def _require_maker(self, info: AuthInfo, roles: Iterable[str], scopes: Iterable[str]) -> None:
        """403 unless the caller may hand out a secret with these roles and scopes."""
        if info.auth_method == KEY_METHOD and not self._made_by_keys:
            raise Forbidden("an API key makes and rotates no keys; sign in to do so")
        if set(roles) - set(info.roles) or set(scopes) - set(info.scopes):
            raise Forbidden("a key has at most the roles and scopes of its maker")

    def _latest_end(self, info: AuthInfo, now: datetime) -> datetime | None:
        """When a key that the caller makes now ends at the latest; None for one that may last for good."""
        ends = [] if self._max_ttl is None else [now + self._max_ttl]
        end_of_caller = info.claims.get("exp")
        if info.auth_method == KEY_METHOD and isinstance(end_of_caller, int | float):
            ends.append(moment(end_of_caller))
        return min(ends, default=None)

    async def _list(self, ctx: Context) -> Response:
        """The caller's own keys, newest first; the admin role sees all."""
        page = int(ctx.query_param("page") or 1)
        if not 1 <= page <= MOST_PAGES:
            raise Abort(400, "INVALID_QUERY", f"page: a number from 1 to {MOST_PAGES}")
        records = ctx.unscoped().db(ApiKey)
        filters = self._own(ctx)
        total = await records.count(filters)
        keys = await records.list(filters, "created_at:desc", limit=PAGE, page=page)
        meta = {"total": total, "page": page, "limit": PAGE, "pages": -(-total // PAGE)}
        return Response(200, [_show(key) for key in keys], meta=meta)

    async def _read(self, ctx: Context) -> dict[str, Any]:
        """One key, without its secret."""
        return _show(await self._find(ctx))

    async def _revoke(self, ctx: Context) -> None:
        """Have the key refused from now on."""
        key, host = await self._find(ctx), self._require_host()
        async with host.transaction() as tx:
            await revoke(host, key, ctx.now())
            await host.events.revocations.note(tx=tx, session_id=key.id)

    async def _rotate(self, ctx: Context) -> Response:
        """Give the key a new secret."""
        wish = await ctx.bind_json(RotateRequest) if await _has_body(ctx) else RotateRequest()
        if not 0 <= wish.overlap <= MOST_OVERLAP.total_seconds():
            raise _unacceptable("overlap", "is a number of seconds, of at most 30 days")
        info, now = ctx.require_auth(), ctx.now()
        key = await self._find(ctx)
        if (key.actor, key.tenant) != (info.user_id, info.tenant_id):
            raise Forbidden("a key of somebody else can be revoked, not rotated")
        self._require_maker(info, key.roles, key.scopes)
        latest = self._latest_end(info, now)
        if latest is not None and (key.expires_at is None or key.expires_at > latest):
            raise Forbidden("the key lasts longer than one you could make now; make a new one")
        secret = await rotate(self._require_host(), key, now, timedelta(seconds=wish.overlap))
        if secret is None:
            raise Conflict("the key was revoked or rotated meanwhile")
        return self._answer(200, key, secret)

    async def _find(self, ctx: Context) -> ApiKey:
        """The key of the path, if it is the caller's to see."""
        filters = {**self._own(ctx), "id": ctx.url_param("id")}
        keys = await ctx.unscoped().db(ApiKey).list(filters)
        if not keys:
            raise NotFound()
        return keys[0]

    def _own(self, ctx: Context) -> dict[str, str]:
        """The conditions under which a key is the caller's: the admin role sees all of its tenant, or all."""
        info = ctx.require_auth()
        if self._admin_role in info.roles:
            return {"tenant": info.tenant_id} if info.tenant_id else {}
        return {"actor": info.user_id, "tenant": info.tenant_id}

    def _answer(self, status: int, key: ApiKey, secret: str) -> Response:
        """The key with its secret, this once."""
        keep_answer_secret()
        data = {**_show(key), "key": f"{self._prefix}_{key.id}_{secret}"}
        return Response(status, data, headers=_NO_STORE)

    def _require_host(self) -> Host:
        assert self._host is not None
        return self._host


async def _has_body(ctx: Context) -> bool:
    if ctx.raw_body is None:
        from maniflex.pipeline.body import read_body

        await read_body(ctx)
    return bool(ctx.raw_body)


def _read_expiry(wish: datetime | None, latest: datetime | None, now: datetime) -> datetime | None:
    """The end of a new key; 422 for one that lies in the past, or is later than keys may last."""
    if wish is None:
        return latest
    if wish.tzinfo is None:
        raise _unacceptable("expires_at", "a moment needs a time zone")
    if wish <= now or (latest is not None and wish > latest):
        raise _unacceptable("expires_at", "lies in the past, or later than keys may last")
    return wish


def _show(key: ApiKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in (*_SHOWN, *_SHOWN_TIMES)}


def _unacceptable(name: str, message: str) -> ValidationFailed:
    return ValidationFailed(details=[{"field": name, "message": message, "code": "invalid"}])
