"""`auth.api_keys`: a key in a header, known to the code or kept in the table of `ApiKeys`."""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from typing import Any, Literal, Protocol

from maniflex._callables import is_async
from maniflex.errors import CallbackFailed, RequestError
from maniflex.middleware.auth.authenticator import (
    BASIC,
    Authenticator,
    Schemes,
    Verify,
    header_scheme,
    header_values,
)
from maniflex.middleware.auth.passwords import checking_password
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.entry import Seat
from maniflex.pipeline.registration import takes

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


class KeyStore(Protocol):
    """Where keys are looked up that the code does not know."""

    async def identify(self, ctx: Context, key: str) -> AuthInfo | None:
        """The identity of the key; None when it is unknown, expired or revoked."""

    def problems(self, seat: Seat) -> Iterable[str]:
        """What keeps the store from being used there."""


def api_keys(
    header: str = "X-API-Key",
    keys: Mapping[str, AuthInfo] | None = None,
    *,
    store: KeyStore | None = None,
    verify: Verify | Literal[False] | None = None,
) -> Authenticator:
    """Authenticate by a key in a header: one of `keys`, which maps each to its identity, or one of `store`.

    A key of the form `sha256:<hex>` stands for the key that has this digest, so that code need not have it.
    `verify(ctx, claims, info)` is asked beside `auth.verify`; False asks neither, for machines.
    """
    return KeyHeader(header, keys, store, verify)


class KeyHeader(Authenticator):
    """Knows the digests of the keys, not the keys."""

    name = "auth.api_keys"
    challenge = "ApiKey"
    grants_are_fixed = True

    def __init__(
        self,
        header: str,
        keys: Mapping[str, AuthInfo] | None,
        store: KeyStore | None,
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
