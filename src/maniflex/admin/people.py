"""Who works in the panel: the person of a request, superusers of the panel's own, and sessions."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from importlib.resources import files
from typing import Any, Protocol, Unpack

from maniflex.admin.tables import AdminSession, AdminUser
from maniflex.db.records import Records
from maniflex.errors import Conflict, DeclarationError
from maniflex.middleware.auth.passwords import hash_password, needs_rehash, verify_password
from maniflex.pipeline.context import AuthInfo
from maniflex.pipeline.in_process import RequestOptions
from maniflex.pipeline.response import Response
from maniflex.pipeline.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """An identity that may enter, and what its session needs."""

    auth: AuthInfo | None  # None: an open panel, whose requests are anonymous
    name: str
    csrf: str
    session_id: str = ""
    forwarded_headers: Mapping[str, str] = field(default_factory=dict)  # for the auth step

    @property
    def id(self) -> str:
        return "" if self.auth is None else self.auth.user_id

    @property
    def tenant_id(self) -> str:
        return "" if self.auth is None else self.auth.tenant_id

    @property
    def may_choose_tenant(self) -> bool:
        """Whether the person belongs to no tenant and has a session that keeps the one it chooses."""
        auth = self.auth
        return auth is not None and bool(self.session_id) and (not auth.tenant_id or auth.tenant_chosen)

    @property
    def key(self) -> tuple[Any, ...]:
        """What two people have in common whom every rule of the auth step answers alike."""
        if self.auth is None:
            return ("", ())
        return (self.auth.user_id, tuple(self.auth.roles), self.auth.tenant_id, tuple(self.auth.scopes))


class Origin(Protocol):
    """A request, as far as it says where it came from."""

    @property
    def request_id(self) -> str: ...
    @property
    def client_ip(self) -> str: ...
    @property
    def scope(self) -> Mapping[str, Any]: ...


class Visitor(Protocol):
    """A request to the panel, as far as it says who asks."""

    @property
    def ctx(self) -> Origin: ...
    @property
    def person(self) -> Person | None: ...


class Requests(Protocol):
    """Asks the API as one person."""

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Response:
        """The answer to a request as a client would send it."""


class ActingRequest(Protocol):
    """A request that code of the application acts in, or the one that asked for it."""

    @property
    def request_id(self) -> str: ...
    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]: ...


class AdminContext:
    """What actions, cards and pages of the application are given: the person, and requests as that person."""

    def __init__(self, person: Person, api: Requests, ctx: ActingRequest, form: Any = None) -> None:
        self._person = person
        self._api = api
        self.form = form
        self.request_id: str = ctx.request_id
        self.logger: logging.LoggerAdapter[logging.Logger] = ctx.logger

    @property
    def auth(self) -> AuthInfo | None:
        """Who acts."""
        return self._person.auth

    @property
    def tenant_id(self) -> str:
        """The tenant that the person works in; empty without one."""
        return self._person.tenant_id

    async def call(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Response:
        """Ask a route of the API as this person; the path is written as a client would."""
        return await self._api.request(method, path, **options)


# Superusers: people with a password of the panel, made on the command line. There is no default
# one.


ROLE = "superuser"  # of everybody who is made without other roles, and what the panel asks for
LEAST_LENGTH = 12
MOST_LENGTH = 200
_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s]{1,189}")
_ROWS = (
    "abcdefghijklmnopqrstuvwxyz",
    "1234567890",
    "qwertyuiopasdfghjklzxcvbnm",
    "qwertzuiopasdfghjklyxcvbnm",
)
_COMMON = frozenset((files("maniflex.admin") / "common_passwords.txt").read_text().split())


def password_problems(password: str, email: str) -> Iterator[str]:
    """What is wrong with a password, one sentence each."""
    plain = password.casefold()
    if len(password) < LEAST_LENGTH:
        yield f"a password has at least {LEAST_LENGTH} characters"
    if len(password) > MOST_LENGTH:
        yield f"a password has at most {MOST_LENGTH} characters"
    name = email.casefold().partition("@")[0]
    if plain == email.casefold() or (len(name) > 3 and plain.strip("0123456789!._-") == name):
        yield "the password is made of the email address"
    if plain in _COMMON or len(set(plain)) < 5 or _is_run(plain):
        yield "the password is one of those that are guessed first"


def _is_run(plain: str) -> bool:
    """Whether it is letters or digits in the order of a keyboard or of the alphabet."""
    return any(plain in row * 3 or plain in row[::-1] * 3 for row in _ROWS)


class Superusers:
    """The superusers of a server."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def _records(self) -> Records[AdminUser]:
        return Records(self._runtime.store(AdminUser))

    async def create(
        self, email: str, password: str, *, roles: Sequence[str] = (ROLE,), tenant_id: str | None = None
    ) -> AdminUser:
        """Store a new superuser; `DeclarationError` with every reason why not."""
        email = email.strip()
        problems = [] if _EMAIL.fullmatch(email) else [f"{email!r} is no email address"]
        problems += password_problems(password, email)
        if problems:
            raise DeclarationError(*problems)
        password_hash = await hash_password(password)
        try:
            return await self._records.create(
                email=email.lower(), password=password_hash, roles=list(roles), tenant_id=tenant_id
            )
        except Conflict:
            raise DeclarationError(f"there is a superuser {email.lower()} already") from None

    async def list(self) -> list[AdminUser]:
        """All of them, by email."""
        return await self._records.list(sorts="email", limit=1000)

    async def any(self) -> bool:
        """Whether there is one."""
        return bool(await self._records.list(limit=1))

    async def find(self, email: str) -> AdminUser | None:
        """The superuser with this email address."""
        text = email.strip().lower()
        if not text or "\x00" in text:
            return None
        users = await self._records.list({"email": text}, limit=1)
        return users[0] if users else None

    async def read(self, user_id: str) -> AdminUser | None:
        """The superuser with this id, if it is active."""
        store = self._runtime.store(AdminUser)
        row = await store.find(user_id)
        user: AdminUser | None = None if row is None else store.record(row)  # type: ignore[assignment]
        return user if user is not None and user.active else None

    async def verify(self, email: str, password: str) -> AdminUser | None:
        """Who signs in; an unknown or inactive account takes as long as a wrong password."""
        user = await self.find(email)
        stored_hash = user.password if user is not None and user.active else None
        if not await verify_password(password, stored_hash) or user is None:
            return None
        changes: dict[str, object] = {"last_login_at": self._runtime.clock.now()}
        if await needs_rehash(user.password):
            changes["password"] = await hash_password(password)
        return await self._records.update(user.id, changes)

    async def set_password(self, user: AdminUser, password: str) -> None:
        """Change a password; `DeclarationError` with every reason why not."""
        problems = list(password_problems(password, user.email))
        if problems:
            raise DeclarationError(*problems)
        await self._records.update(user.id, password=await hash_password(password))

    async def set_active(self, user: AdminUser, active: bool) -> None:
        """Let a superuser sign in, or not any more."""
        await self._records.update(user.id, active=active)


# Sessions of the panel: 32 random bytes in a cookie, their SHA-256 in the database.


COOKIE = "maniflex_admin"
METHOD = "admin"  # `AuthInfo.auth_method` of everybody who comes through the panel
_TOUCH = timedelta(seconds=60)
_MOST_SWEPT = 200


def digest_of(token: str) -> str:
    """The id of the session with this token."""
    return sha256(token.encode("utf-8", "replace")).hexdigest()


def identity_of(user: AdminUser) -> AuthInfo:
    """A superuser as rules of the application see it."""
    return AuthInfo(
        user_id=user.id,
        roles=tuple(user.roles),
        claims={"email": user.email},
        tenant_id=user.tenant_id or "",
        auth_method=METHOD,
    )


def identity_values(auth: AuthInfo) -> dict[str, Any]:
    """An identity as a row keeps it; `read_identity` gives it back."""
    roles, scopes = list(auth.roles), list(auth.scopes)
    return asdict(replace(auth, claims=dict(auth.claims), roles=roles, scopes=scopes))


def read_identity(values: Mapping[str, Any], session_id: str, tenant_id: str | None) -> AuthInfo:
    """The identity that a session keeps, in the tenant that was chosen."""
    auth = AuthInfo(**values)
    auth.roles, auth.scopes = tuple(auth.roles), tuple(auth.scopes)
    return put_into_tenant(auth, session_id, tenant_id)


def put_into_tenant(auth: AuthInfo, session_id: str, tenant_id: str | None) -> AuthInfo:
    """The identity in its own tenant, or in the one that was chosen; nobody leaves its own."""
    choice = "" if auth.tenant_id else tenant_id or ""
    return replace(
        auth,
        session_id=session_id[:16],
        auth_method=METHOD,
        tenant_id=auth.tenant_id or choice,
        tenant_chosen=bool(choice),
    )


class Sessions:
    """The sessions of one panel."""

    def __init__(self, runtime: Runtime, lifetime: timedelta, idle: timedelta) -> None:
        self._runtime = runtime
        self._lifetime = lifetime
        self._idle = idle

    @property
    def _records(self) -> Records[AdminSession]:
        return Records(self._runtime.store(AdminSession))

    def _now(self) -> datetime:
        return self._runtime.clock.now()

    async def open(self, auth: AuthInfo, name: str, *, address: str, user_agent: str) -> str:
        """Begin a session and give its token; sessions that ended are removed."""
        await self._sweep()
        token, now = secrets.token_urlsafe(32), self._now()
        await self._records.create(
            id=digest_of(token),
            user_id=auth.user_id,
            name=name[:200],
            identity=identity_values(auth),
            seen_at=now,
            checked_at=now,
            expires_at=now + self._lifetime,
            address=address,
            user_agent=user_agent[:300],
        )
        return token

    async def find(self, token: str) -> AdminSession | None:
        """The session with this token, if it has not ended; notes that it was seen."""
        store = self._runtime.store(AdminSession)
        row = await store.find(digest_of(token))
        if row is None:
            return None
        session: Any = store.record(row)
        now = self._now()
        if session.expires_at <= now or session.seen_at + self._idle <= now:
            await self.close(session.id)
            return None
        if session.seen_at + min(_TOUCH, self._idle / 4) <= now:
            await self.update(session.id, seen_at=now)
        live_session: AdminSession = session
        return live_session

    async def read(self, session_id: str) -> AdminSession | None:
        """The session with this id."""
        store = self._runtime.store(AdminSession)
        row = await store.find(session_id) if session_id else None
        return None if row is None else store.record(row)  # type: ignore[return-value]  # of this store

    def is_due(self, session: AdminSession) -> bool:
        """Whether the person is to be asked after again."""
        return session.checked_at + _TOUCH <= self._now()

    async def update(self, session_id: str, **changes: Any) -> None:
        """Change a session that may have ended meanwhile."""
        if await self._runtime.store(AdminSession).find(session_id) is not None:
            await self._records.update(session_id, **changes)

    async def confirm(self, session_id: str, auth: AuthInfo) -> None:
        """Keep the identity as it is now."""
        identity = identity_values(auth)
        await self.update(session_id, identity=identity, checked_at=self._now())

    async def close(self, session_id: str) -> None:
        """End a session; it may have ended already."""
        if await self._runtime.store(AdminSession).find(session_id) is not None:
            await self._records.delete(session_id)

    async def of(self, user_id: str) -> list[AdminSession]:
        """The sessions of a person, the latest first."""
        now = self._now()
        sessions = await self._records.list({"user_id": user_id}, "seen_at:desc", limit=100)
        return [s for s in sessions if s.expires_at > now and s.seen_at + self._idle > now]

    async def close_all(self, user_id: str, *, besides: str = "") -> int:
        """End the sessions of a person, and say how many there were."""
        sessions = [s for s in await self._records.list({"user_id": user_id}) if s.id != besides]
        for session in sessions:
            await self.close(session.id)
        return len(sessions)

    async def _sweep(self) -> None:
        old_sessions = await self._records.list([("expires_at", "lt", self._now())], limit=_MOST_SWEPT)
        for session in old_sessions:
            await self.close(session.id)
