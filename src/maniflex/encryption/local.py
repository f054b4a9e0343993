"""Keys that this process holds: of the environment, or in memory.

What such a provider does takes microseconds, so it is also there without waiting (`seal`, `open`, `digest`),
which is what rows are read and written by. Keys are derived from the secret once for each purpose, and no
text of this module holds one.
"""

from __future__ import annotations

import base64
import binascii
import hmac as hmac_digest
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from maniflex.encryption.envelope import CURRENT_VERSION, head_of, key_id_of, split
from maniflex.encryption.port import with_length
from maniflex.errors import DeclarationError, DecryptionError, EncryptionNotConfigured

KEY_SIZE = 32
_NONCE = 12
_ENCRYPT = b"maniflex:encrypt:v3"
_INDEX = b"maniflex:index:v1"


_KEY_ID = re.compile(r"[\w.-]+", re.ASCII)
NAMES = "key ids have ASCII letters, digits, and - . _ alone"

Open = Callable[[bytes, bytes, bytes], bytes]  # of nonce, ciphertext and what is associated


class _Sealer(NamedTuple):
    """What seals and opens the envelopes of one head."""

    cipher: Any  # AESGCM
    data: bytes | None  # associated, before the context
    is_bound: bool  # whether the context follows


class LocalKeyProvider:
    """The keys of this process; a subclass says where the secrets come from (`secret_of`)."""

    def __init__(self, *, index_key: str | None = None, current: Mapping[str, str] | None = None) -> None:
        self.index_key = index_key  # the key id of digests; None: that of the field
        self._current = dict(current or {})
        self._sealers: dict[bytes, _Sealer] = {}  # by head
        self._heads: dict[str, bytes] = {}  # of what is written now, by declared key id
        self._index_keys: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def secret_of(self, key_id: str) -> bytes:
        """The 32 bytes of a key; `EncryptionNotConfigured` names what lacks, and never shows a secret."""
        raise NotImplementedError

    def current_key(self, key_id: str) -> str:
        """The key id under which a field that declares `key_id` is written now."""
        return self._current.get(key_id, key_id)

    @property
    def replaced_ids(self) -> tuple[str, ...]:
        """The declared key ids whose values are written under another key."""
        return tuple(self._current)

    # -- at once

    def seal(self, key_id: str, plain: bytes, context: bytes) -> bytes:
        """An envelope of the value, under the current key of `key_id`."""
        head = self._heads.get(key_id)
        if head is None:
            head = self._heads[key_id] = head_of(self.current_key(key_id))
        return self.seal_under(head, plain, context)

    def seal_under(self, head: bytes, plain: bytes, context: bytes) -> bytes:
        """An envelope of the value, with this head of the version of today."""
        sealer = self._sealers.get(head) or self._sealer(head)
        nonce = os.urandom(_NONCE)
        sealed: bytes = sealer.cipher.encrypt(nonce, plain, (sealer.data or b"") + context)
        return head + nonce + sealed

    def open(self, envelope: bytes, context: bytes) -> bytes:
        """The value of an envelope."""
        end = 3 + (envelope[1] << 8 | envelope[2]) if len(envelope) > 3 else 0
        sealer = self._sealers.get(envelope[:end]) or self._sealer(split(envelope)[0])
        data, body = sealer.data, end + _NONCE
        try:
            return sealer.cipher.decrypt(  # type: ignore[no-any-return]  # cryptography's
                envelope[end:body],
                envelope[body:],
                data + context if sealer.is_bound and data is not None else data,
            )
        except Exception as error:  # a tag that does not fit, a nonce that is cut off
            raise DecryptionError(_why_shut(error, key_id_of(envelope))) from None

    def bound_opener(self, envelope: bytes) -> tuple[bytes, Open, bytes]:
        """Of envelopes that begin like this one: the head, what opens them, what precedes a context."""
        head, _ = split(envelope)
        sealer = self._sealers.get(head) or self._sealer(head)
        return head, sealer.cipher.decrypt, sealer.data or b""

    def digest(self, key_id: str, data: bytes) -> bytes:
        """HMAC-SHA256 of the data, under the index key or else that of `key_id`."""
        key_id = self.index_key or key_id
        key = self._index_keys.get(key_id)
        if key is None:
            key = self._index_keys[key_id] = _derive(self.secret_of(key_id), _INDEX)
        return hmac_digest.digest(key, data, "sha256")

    def _sealer(self, head: bytes) -> _Sealer:
        key_id, version = key_id_of(head + b"."), head[0]
        secret = self.secret_of(key_id)
        gcm = _aes_gcm()
        if version == CURRENT_VERSION:
            data = with_length(str(version).encode()) + with_length(key_id.encode())
            sealer = _Sealer(gcm(_derive(secret, _ENCRYPT)), data, True)
        else:
            sealer = _Sealer(gcm(secret), head if version > 1 else None, False)
        self._sealers[head] = sealer
        return sealer

    # -- as every provider

    async def encrypt(self, key_id: str, plain: bytes, *, context: bytes) -> bytes:
        """An envelope of the value."""
        return self.seal(key_id, plain, context)

    async def decrypt(self, envelope: bytes, *, context: bytes) -> bytes:
        """The value of an envelope."""
        return self.open(envelope, context)

    def key_id_of(self, envelope: bytes) -> str:
        """The name of the key of an envelope."""
        return key_id_of(envelope)

    async def hmac(self, key_id: str, data: bytes) -> bytes:
        """The digest of the data."""
        return self.digest(key_id, data)

    async def check(self, key_ids: Collection[str]) -> list[str]:
        """What is wrong with these keys, and with the index key."""
        return self.problems(key_ids)

    def problems(self, key_ids: Collection[str]) -> list[str]:
        """As `check`, at once."""
        problems = []
        for key_id in dict.fromkeys([*key_ids, *filter(None, [self.index_key])]):
            try:
                self.secret_of(key_id)
                head_of(key_id)
            except EncryptionNotConfigured as error:
                problems.append(error.problem)
            except ValueError as error:
                problems.append(f"key {key_id[:40]!r}: {error}")
        return problems


class EnvKeyProvider(LocalKeyProvider):
    """Keys in environment variables: `MFX_KEY_PATIENT_PII` for the key id `patient-pii`.

    Each is the base64, plain or URL-safe, of exactly 32 bytes; `maniflex keys generate` makes one. With
    `current={"patient-pii": "patient-pii-2027"}` new values are written under that other key.
    """

    def __init__(
        self,
        prefix: str = "MFX_KEY",
        *,
        index_key: str | None = None,
        current: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(index_key=index_key, current=current)
        self.prefix = prefix
        self._environ = os.environ if environ is None else environ

    def variable_of(self, key_id: str) -> str:
        """The variable that holds a key."""
        return f"{self.prefix}_{key_id.upper().replace('-', '_')}"

    def variables(self) -> list[str]:
        """The variables that are set and may hold keys."""
        return sorted(name for name in self._environ if name.startswith(f"{self.prefix}_"))

    def secret_of(self, key_id: str) -> bytes:
        variable = self.variable_of(key_id)
        if not is_key_id(key_id):
            raise EncryptionNotConfigured(f"no variable holds the key {key_id[:40]!r}: {NAMES}")
        text = self._environ.get(variable, "").strip()
        if not text:
            raise EncryptionNotConfigured(f"{variable} is not set, which holds the key {key_id!r}")
        secret = _decode_key(text)
        if secret is None:
            raise EncryptionNotConfigured(f"{variable} is not base64")
        if len(secret) != KEY_SIZE:
            raise EncryptionNotConfigured(f"{variable} holds {len(secret)} bytes; a key has {KEY_SIZE}")
        return secret


class MemoryKeyProvider(LocalKeyProvider):
    """Keys given by code, for tests; without any it makes those that are asked for, and forgets them."""

    def __init__(
        self,
        keys: Mapping[str, bytes] | None = None,
        *,
        index_key: str | None = None,
        current: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(index_key=index_key, current=current)
        self._makes_keys = keys is None
        self._keys = dict(keys or {})

    def secret_of(self, key_id: str) -> bytes:
        secret = self._keys.get(key_id)
        if secret is None:
            if not self._makes_keys:
                raise EncryptionNotConfigured(f"there is no key {key_id!r}")
            secret = self._keys.setdefault(key_id, os.urandom(KEY_SIZE))
        if len(secret) != KEY_SIZE:
            raise EncryptionNotConfigured(f"the key {key_id!r} has {len(secret)} bytes; a key has {KEY_SIZE}")
        return secret


def generate_key() -> str:
    """A new key as a variable holds it."""
    return base64.b64encode(os.urandom(KEY_SIZE)).decode()


def is_key_id(text: str) -> bool:
    """Whether an environment variable can hold the key of this id."""
    return _KEY_ID.fullmatch(text) is not None


def _decode_key(text: str) -> bytes | None:
    """The bytes of a key; `=` at its end may be left out."""
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _derive(secret: bytes, purpose: bytes) -> bytes:
    try:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        raise DeclarationError(MISSING) from None
    return HKDF(algorithm=SHA256(), length=KEY_SIZE, salt=None, info=purpose).derive(secret)


def _aes_gcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise DeclarationError(MISSING) from None
    return AESGCM


MISSING = 'encrypted fields need cryptography: pip install "maniflex[encryption]"'


def _why_shut(error: Exception, key_id: str) -> str:
    kind = "it was changed or moved" if type(error).__name__ == "InvalidTag" else "the envelope is cut off"
    return f"{kind} (key {key_id!r})"
