"""Superusers: people with a password of the panel, made on the command line. There is no default one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

from maniflex.admin.tables import AdminUser
from maniflex.db.records import Records
from maniflex.errors import Conflict, DeclarationError
from maniflex.middleware.auth.passwords import hash_password, needs_rehash, verify_password
from maniflex.pipeline.runtime import Runtime

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
