"""Signatures of webhooks, made and checked side by side: what one half writes, the other reads.

Standard Webhooks 1.0: the bytes `id.timestamp.body` are signed with a secret (`whsec_…`, HMAC-SHA256, `v1,…`)
or a private key (`whsk_…`, Ed25519, `v1a,…`, checked with `whpk_…`). The header has one signature for each
key of a rotation. `hex_digest` is the older kind, over the body as it is.

>>> keys = [signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
>>> header = sign(keys, "msg_1", 1700000000, b"{}")
>>> [is_signed(keys, "msg_1", "1700000000", body, header) for body in (b"{}", b"[]")]
[True, False]
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from maniflex.errors import DeclarationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SECRET, PRIVATE_KEY, PUBLIC_KEY = "whsec_", "whsk_", "whpk_"
SHORTEST_SECRET, LONGEST_SECRET = 24, 64  # bytes, of a secret that is given; one that is made has 32
ALGORITHMS = ("sha256", "sha512")
_MOST_SIGNATURES = 20  # of one header that are compared
_SEED = 32


class Verifier(Protocol):
    """A key that signatures are checked with."""

    @property
    def version(self) -> str: ...

    def fits(self, content: bytes, signature: bytes) -> bool: ...


class Signer(Verifier, Protocol):
    """A key that signatures are made with."""

    def sign(self, content: bytes) -> bytes: ...


# Keys.


def new_secret() -> str:
    """A fresh secret of 32 random bytes."""
    return SECRET + base64.b64encode(secrets.token_bytes(32)).decode()


def new_key_pair() -> tuple[str, str]:
    """A fresh private key and its public one."""
    private = _ed25519().Ed25519PrivateKey.generate()
    return PRIVATE_KEY + _text(private.private_bytes_raw()), PUBLIC_KEY + _text(_public_bytes(private))


def public_key_of(private_key: str) -> str:
    """The public key that receivers check signatures of a private one with."""
    return PUBLIC_KEY + _text(_public_bytes(_private(private_key)))


def signing_key(text: str) -> Signer:
    """The key of a secret or of a private key; `ValueError` says why it is none."""
    if text.startswith(PRIVATE_KEY):
        return _PrivateKey(_private(text))
    return _Secret(_secret_bytes(text))


def checking_key(text: str) -> Verifier:
    """The key of a secret or of a public key; `ValueError` says why it is none."""
    if text.startswith(PUBLIC_KEY):
        return _PublicKey(_public(text))
    return _Secret(_secret_bytes(text))


# Signatures of Standard Webhooks.


def sign(keys: Sequence[Signer], id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`: one signature of each key."""
    content = _content(id, str(timestamp), body)
    return " ".join(f"{key.version},{_text(key.sign(content))}" for key in keys)


def is_signed(keys: Sequence[Verifier], id: str, timestamp: str, body: bytes, header: str) -> bool:
    """Whether one of the signatures in the header was made with one of the keys."""
    content = _content(id, timestamp, body)
    is_valid = False
    for one in header.split(" ", _MOST_SIGNATURES)[:_MOST_SIGNATURES]:
        version, _, text = one.partition(",")
        try:
            signature = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            continue
        for key in keys:
            is_valid |= key.version == version and key.fits(content, signature)
    return is_valid


def _content(id: str, timestamp: str, body: bytes) -> bytes:
    return f"{id}.{timestamp}.".encode() + body


# Signatures as hex digits, of the content as it is.


def hex_digest(secret: bytes, content: bytes, algorithm: str = "sha256") -> str:
    """The HMAC of the content, in hex digits."""
    return hmac.new(secret, content, algorithm).hexdigest()


def is_hex_digest(secrets: Sequence[bytes], content: bytes, text: str, algorithm: str = "sha256") -> bool:
    """Whether the text, with `algorithm=` before it or not, is the HMAC by one of the secrets."""
    digits = text.removeprefix(f"{algorithm}=").lower().encode(errors="replace")
    is_valid = False
    for secret in secrets:
        is_valid |= hmac.compare_digest(digits, hex_digest(secret, content, algorithm).encode())
    return is_valid


@dataclass(frozen=True, slots=True)
class _Secret:
    secret: bytes = field(repr=False)
    version: str = "v1"

    def sign(self, content: bytes) -> bytes:
        return hmac.new(self.secret, content, hashlib.sha256).digest()

    def fits(self, content: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self.sign(content), signature)


@dataclass(frozen=True, slots=True)
class _PublicKey:
    key: Ed25519PublicKey = field(repr=False)
    version: str = "v1a"

    def fits(self, content: bytes, signature: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self.key.verify(signature, content)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class _PrivateKey:
    key: Ed25519PrivateKey = field(repr=False)
    version: str = "v1a"

    def sign(self, content: bytes) -> bytes:
        return self.key.sign(content)

    def fits(self, content: bytes, signature: bytes) -> bool:
        return _PublicKey(self.key.public_key()).fits(content, signature)


def _secret_bytes(text: str) -> bytes:
    secret = _decode(text.removeprefix(SECRET), "a secret")
    if not SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET:
        raise ValueError(
            f"a secret is {SECRET} and base64 of {SHORTEST_SECRET} to {LONGEST_SECRET} bytes; this one has"
            f" {len(secret)}"
        )
    return secret


def _private(text: str) -> Ed25519PrivateKey:
    content = _decode(text.removeprefix(PRIVATE_KEY), "a private key")
    if len(content) not in (_SEED, 2 * _SEED):  # the latter with its public key behind it, as some keep it
        raise ValueError(f"a private key has {_SEED} bytes, this one {len(content)}")
    key: Ed25519PrivateKey = _ed25519().Ed25519PrivateKey.from_private_bytes(content[:_SEED])
    return key


def _public(text: str) -> Ed25519PublicKey:
    content = _decode(text.removeprefix(PUBLIC_KEY), "a public key")
    if len(content) != _SEED:
        raise ValueError(f"a public key has {_SEED} bytes, this one {len(content)}")
    key: Ed25519PublicKey = _ed25519().Ed25519PublicKey.from_public_bytes(content)
    return key


def _decode(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)  # some leave out the padding
    except (ValueError, binascii.Error):
        raise ValueError(f"{what} is base64 behind {SECRET}, {PRIVATE_KEY} or {PUBLIC_KEY}") from None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _public_bytes(private: Ed25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def _ed25519() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as missing:
        raise DeclarationError(
            "signatures with Ed25519 need cryptography: pip install 'maniflex[auth]'"
        ) from missing
    return ed25519
