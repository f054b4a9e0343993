"""`auth.api_keys`: a key in a header, known to the code or kept in the table of `ApiKeys`."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from typing import Any, Literal, Protocol

from maniflex.middleware.auth.authenticator import Authenticator, Verify
from maniflex.middleware.auth.request import header_values
from maniflex.middleware.auth.schemes import Schemes, header_scheme
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.entry import Seat

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
