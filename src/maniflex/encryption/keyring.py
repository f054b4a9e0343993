"""The keys of one server: its provider, and how strictly stored values are opened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from maniflex.encryption.envelope import CURRENT_VERSION, from_text, head_of, is_sealed, to_text
from maniflex.encryption.local import MISSING, LocalKeyProvider
from maniflex.encryption.memory import OpenedValues
from maniflex.encryption.port import KeyProvider, context_of
from maniflex.encryption.waiting import wait_for
from maniflex.errors import DecryptionError, EncryptionError, EncryptionNotConfigured, Unavailable

T = TypeVar("T")
SEALED_COPY = b"enc:"  # neither msgpack nor zlib begins so

# Values of a page, by envelope and context, which a provider elsewhere has opened with one question.
Sealed = tuple[bytes, bytes]
_opened_ahead: ContextVar[Mapping[Sealed, bytes]] = ContextVar("_opened_ahead")
_MOST_NOTED = 256
_NOTHING: Mapping[Sealed, bytes] = {}


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
        cache: int = 0,
        patience: float = 15.0,
    ) -> None:
        self._patience = patience  # seconds that a provider may take
        self.provider = provider
        self.is_declared = is_declared  # by the application; otherwise it is that of the environment
        self.takes_plain = legacy == "allow"
        self.min_version = min_version
        self.shows_null = on_error == "null"
        self.own_key: str | None = None  # of copies that the framework keeps; None: they are kept as they are
        self.work_key: str | None = None  # of durable work, where no field is encrypted
        self.plain_values = 0  # legacy texts that were read so far
        self.failures = 0  # values that did not open
        # What needs no waiting; None of a provider that is asked elsewhere.
        self.local: LocalKeyProvider | None = cast(Any, provider) if _is_local(provider) else None
        # A provider elsewhere decides each time whether a value may be seen.
        self.opened = OpenedValues(cache if self.local is not None else 0)
        self.has_answered = False  # the provider elsewhere, since the start
        self.loop: asyncio.AbstractEventLoop | None = None  # on which threads let it be asked
        # What was sealed elsewhere a moment ago, because most of it is read again with the row it went into.
        self._just_sealed: dict[Sealed, bytes] = {}

    @property
    def framework_key(self) -> str | None:
        """The key id for what the framework seals by itself; None where that is kept as it is."""
        has_provider = self.is_declared and self.provider is not None
        return self.own_key or (self.work_key or "default" if has_provider else None)

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
        if self.provider is None:
            return []
        return await self._ask(self.provider.check([self.current_key(key_id) for key_id in key_ids]))

    async def problems_of_exactly(self, key_id: str) -> list[str]:
        """What is wrong with this key, whatever is written under another one in its place."""
        try:
            head_of(key_id)
            if self.local is not None:
                self.local.secret_of(key_id)
            elif self.provider is not None:
                return await self._ask(self.provider.check([key_id]))
        except EncryptionNotConfigured as error:
            return [error.problem]
        except Unavailable:  # which the next value that is opened tells
            return []
        except ValueError as error:
            return [f"key {key_id[:40]!r}: {error}"]
        return []

    async def _ask(self, question: Awaitable[T]) -> T:
        """The answer of the provider; `Unavailable` where it does not give one in time."""
        try:
            async with asyncio.timeout(self._patience):
                return await question
        except TimeoutError:
            error = Unavailable()
            error.place = f"the key provider (no answer in {self._patience:g} s)"
            raise error from None

    # -- values of rows, which keys of this process seal and open at once; others are waited for

    def seal_now(self, key_id: str, plain: bytes, context: bytes) -> bytes:
        """An envelope of the value."""
        if self.local is not None:
            return self.local.seal(key_id, plain, context)
        return self._note_sealed(wait_for(self.seal(key_id, plain, context), self.loop), plain, context)

    def _note_sealed(self, envelope: bytes, plain: bytes, context: bytes) -> bytes:
        noted = self._just_sealed
        while len(noted) >= _MOST_NOTED:
            noted.pop(next(iter(noted)), None)
        noted[envelope, context] = plain
        return envelope

    def seal_under(self, head: bytes, plain: bytes, context: bytes) -> bytes:
        """An envelope of the value that begins with this head."""
        if self.local is not None:
            return self.local.seal_under(head, plain, context)
        return wait_for(self.seal(head[3:].decode(), plain, context), self.loop)

    def open_now(self, envelope: bytes, context: bytes) -> bytes:
        """The value of an envelope, unless its version is refused."""
        if self.min_version > 1 and envelope and envelope[0] < self.min_version:
            raise DecryptionError(f"version {envelope[0]} is refused by encryption_min_version")
        if self.local is not None:
            return self.local.open(envelope, context)
        value = _opened_ahead.get(_NOTHING).get((envelope, context))
        if value is None:
            value = self._just_sealed.pop((envelope, context), None)
        return wait_for(self.open(envelope, context), self.loop) if value is None else value

    def digest_now(self, key_id: str, data: bytes) -> bytes:
        """The digest of a value that is matched."""
        if self.local is not None:
            return self.local.digest(key_id, data)
        return wait_for(self.digest(key_id, data), self.loop)

    async def open_ahead(self, envelopes: Sequence[Sealed]) -> Mapping[Sealed, bytes]:
        """The values of envelopes with their contexts, by one question; those that open."""
        if not self.waits or len(envelopes) < 2:
            return {}
        values = zip(envelopes, await self.open_many(envelopes), strict=True)
        return {pair: value for pair, value in values if isinstance(value, bytes)}

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

    def seal_text(self, text: str, label: str, name: str) -> str:
        """As `seal_copy`, of a text that the framework keeps."""
        return text if self.own_key is None else self.seal_text_under(self.own_key, text, label, name)

    def seal_text_under(self, key_id: str, text: str, label: str, name: str) -> str:
        """The text, sealed under this key."""
        return to_text(self.seal_now(key_id, text.encode(), context_of(label, name)))

    def open_text(self, stored: str, label: str, name: str) -> str:
        """The text of what was kept; what was kept before there were keys is as it is."""
        if not is_sealed(stored):
            return stored
        return self.open_now(from_text(stored), context_of(label, name)).decode()

    def is_current(self, stored: str) -> bool:
        """Whether a kept text is as it would be kept now."""
        if self.own_key is None or not is_sealed(stored):
            return self.own_key is None
        return from_text(stored).startswith(self.current_head(self.own_key))

    # -- values of any place, such as kept answers and payloads

    async def seal(self, key_id: str, plain: bytes, context: bytes) -> bytes:
        """An envelope of the value."""
        if self.local is not None:
            return self.local.seal(key_id, plain, context)
        envelope = await self._ask(self.require().encrypt(key_id, plain, context=context))
        head = self.current_head(key_id)
        if not envelope.startswith(head):
            raise EncryptionError(f"the envelope of the key provider does not begin with head_of({key_id!r})")
        return envelope

    async def seal_exactly(self, key_id: str, plain: bytes, context: bytes) -> bytes:
        """An envelope of the value under this key, whatever is written under another one in its place."""
        if self.local is not None:
            return self.local.seal_under(head_of(key_id), plain, context)
        return await self._ask(self.require().encrypt(key_id, plain, context=context))

    async def seal_many(self, key_id: str, values: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """Envelopes of pairs of value and context."""
        many: Any = getattr(self.provider, "encrypt_many", None)
        if many is not None:
            return list(await self._ask(many(key_id, values)))
        return [await self.seal(key_id, plain, context) for plain, context in values]

    async def open(self, envelope: bytes, context: bytes) -> bytes:
        """The value of an envelope."""
        if self.local is not None:
            return self.local.open(envelope, context)
        return await self._ask(self.require().decrypt(envelope, context=context))

    async def open_many(self, envelopes: Sequence[tuple[bytes, bytes]]) -> list[bytes | Exception]:
        """The values of pairs of envelope and context; an exception for each that does not open."""
        many: Any = getattr(self.provider, "decrypt_many", None)
        if many is not None:
            return list(await self._ask(many(envelopes)))
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
        return await self._ask(self.require().hmac(self.index_key or key_id, data))


@contextmanager
def opened_ahead(values: Mapping[Sealed, bytes]) -> Iterator[None]:
    """A block in which these values are there without asking."""
    token = _opened_ahead.set(values)
    try:
        yield
    finally:
        _opened_ahead.reset(token)


def _is_local(provider: Any) -> bool:
    """Whether all that a provider does is what `LocalKeyProvider` does; a subclass may ask elsewhere."""
    methods = ("encrypt", "decrypt", "hmac", "key_id_of")
    return isinstance(provider, LocalKeyProvider) and all(
        getattr(type(provider), name) is getattr(LocalKeyProvider, name) for name in methods
    )


def _has_cryptography() -> bool:
    from importlib.util import find_spec

    return find_spec("cryptography") is not None
