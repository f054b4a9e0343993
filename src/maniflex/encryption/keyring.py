"""The keys of one server: its provider, and how strictly stored values are opened."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

from maniflex.encryption.envelope import CURRENT_VERSION, head_of
from maniflex.encryption.local import MISSING, LocalKeyProvider
from maniflex.encryption.port import KeyProvider, context_of
from maniflex.errors import DecryptionError, EncryptionNotConfigured

SEALED_COPY = b"enc:"  # neither msgpack nor zlib begins so


class Keyring:
    """What seals and opens values for a server; without a provider nothing is sealed or opened."""

    def __init__(
        self,
        provider: KeyProvider | None = None,
        *,
        legacy: str = "allow",
        min_version: int = 1,
        on_error: str = "fail",
        is_declared: bool = True,
    ) -> None:
        self.provider = provider
        self.is_declared = is_declared  # by the application; otherwise it is that of the environment
        self.takes_plain = legacy == "allow"
        self.min_version = min_version
        self.shows_null = on_error == "null"
        self.own_key: str | None = None  # of copies that the framework keeps; None: they are kept as they are
        self.plain_values = 0  # legacy texts that were read so far
        self.failures = 0  # values that did not open
        # What needs no waiting; None of a remote provider, whose values are opened a page at a time.
        self.local: LocalKeyProvider | None = cast(Any, provider) if _is_local(provider) else None

    @property
    def waits(self) -> bool:
        """Whether values are sealed and opened elsewhere."""
        return self.provider is not None and self.local is None

    def current_head(self, key_id: str) -> bytes:
        """How the envelopes begin that are written now for a declared key id."""
        return head_of(self.current_key(key_id), CURRENT_VERSION)

    def current_key(self, key_id: str) -> str:
        """The key id under which values of a declared key id are written now."""
        current = getattr(self.provider, "current_key", None)
        return key_id if current is None else str(current(key_id))

    @property
    def index_key(self) -> str | None:
        """The key id of all digests; None: that of each field."""
        key: str | None = getattr(self.provider, "index_key", None)
        return key

    def require(self) -> KeyProvider:
        """The provider, or `EncryptionNotConfigured`."""
        if self.provider is None:
            raise EncryptionNotConfigured("there is no key provider")
        return self.provider

    async def problems(self, key_ids: Collection[str]) -> list[str]:
        """What is wrong with the keys of these ids."""
        if isinstance(self.provider, LocalKeyProvider) and not _has_cryptography():
            return [MISSING]
        return [] if self.provider is None else await self.provider.check(key_ids)

    async def problems_of_exactly(self, key_id: str) -> list[str]:
        """What is wrong with this key, whatever is written under another one in its place."""
        local = self.local
        if local is None:
            return []
        try:
            local.secret_of(key_id)
        except EncryptionNotConfigured as error:
            return [error.problem]
        return []

    # -- values of rows, which keys of this process seal and open at once

    def seal_now(self, key_id: str, plain: bytes, context: bytes) -> bytes:
        """An envelope of the value."""
        return self._require_local().seal(key_id, plain, context)

    def seal_under(self, head: bytes, plain: bytes, context: bytes) -> bytes:
        """An envelope of the value that begins with this head."""
        return self._require_local().seal_under(head, plain, context)

    def open_now(self, envelope: bytes, context: bytes) -> bytes:
        """The value of an envelope, unless its version is refused."""
        local = self.local
        if local is None or (self.min_version > 1 and envelope and envelope[0] < self.min_version):
            local = self._require_local()
            raise DecryptionError(f"version {envelope[0]} is refused by encryption_min_version")
        return local.open(envelope, context)

    def digest_now(self, key_id: str, data: bytes) -> bytes:
        """The digest of a value that is matched."""
        return self._require_local().digest(key_id, data)

    def _require_local(self) -> LocalKeyProvider:
        if self.local is None:
            raise EncryptionNotConfigured("there is no key provider")
        return self.local

    # -- copies of answers and files that may hold such values

    def seal_copy(self, content: bytes, label: str, name: str) -> bytes:
        """The content as it may be kept: sealed, where a model of the server has encrypted fields."""
        if self.own_key is None:
            return content
        return SEALED_COPY + self.seal_now(self.own_key, content, context_of(label, name))

    def open_copy(self, stored: bytes, label: str, name: str) -> bytes:
        """The content of what was kept."""
        if not stored.startswith(SEALED_COPY):
            return stored
        return self.open_now(stored[len(SEALED_COPY) :], context_of(label, name))

    # -- values of any place, such as kept answers and payloads

    async def seal(self, key_id: str, plain: bytes, context: bytes) -> bytes:
        """An envelope of the value."""
        if self.local is not None:
            return self.local.seal(key_id, plain, context)
        return await self.require().encrypt(key_id, plain, context=context)

    async def seal_many(self, key_id: str, values: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """Envelopes of pairs of value and context."""
        many: Any = getattr(self.provider, "encrypt_many", None)
        if many is not None:
            return list(await many(key_id, values))
        return [await self.seal(key_id, plain, context) for plain, context in values]

    async def open(self, envelope: bytes, context: bytes) -> bytes:
        """The value of an envelope."""
        if self.local is not None:
            return self.local.open(envelope, context)
        return await self.require().decrypt(envelope, context=context)

    async def open_many(self, envelopes: Sequence[tuple[bytes, bytes]]) -> list[bytes | Exception]:
        """The values of pairs of envelope and context; an exception for each that does not open."""
        many: Any = getattr(self.provider, "decrypt_many", None)
        if many is not None:
            return list(await many(envelopes))
        values: list[bytes | Exception] = []
        for envelope, context in envelopes:
            try:
                values.append(await self.open(envelope, context))
            except EncryptionNotConfigured:
                raise
            except Exception as error:
                if getattr(error, "retryable", False):
                    raise
                values.append(error)
        return values

    async def digest(self, key_id: str, data: bytes) -> bytes:
        """The digest of a value that is matched."""
        if self.local is not None:
            return self.local.digest(key_id, data)
        return await self.require().hmac(self.index_key or key_id, data)


def _is_local(provider: Any) -> bool:
    """Whether all that a provider does is what `LocalKeyProvider` does; a subclass may ask elsewhere."""
    methods = ("encrypt", "decrypt", "hmac", "key_id_of")
    return isinstance(provider, LocalKeyProvider) and all(
        getattr(type(provider), name) is getattr(LocalKeyProvider, name) for name in methods
    )


def _has_cryptography() -> bool:
    from importlib.util import find_spec

    return find_spec("cryptography") is not None
