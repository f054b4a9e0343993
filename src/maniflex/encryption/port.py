"""The port of key providers: what keeps keys, and encrypts, decrypts and digests under them.

A provider of your own is a class with these methods; `KeyProviderConformance` of `maniflex.testing` says
whether it keeps its promises. It raises `DecryptionError` for an envelope that does not open,
`EncryptionNotConfigured` for a key that it does not have, and `Unavailable` where it cannot be reached.
Its messages hold neither values nor keys.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class KeyProvider(Protocol):
    """What encrypts values under keys that have names."""

    async def encrypt(self, key_id: str, plain: bytes, *, context: bytes) -> bytes:
        """An envelope of the value; it names its key, and opens only with the same context."""

    async def decrypt(self, envelope: bytes, *, context: bytes) -> bytes:
        """The value of an envelope; `DecryptionError` for one that was changed or has another context."""

    def key_id_of(self, envelope: bytes) -> str:
        """The name of the key that an envelope was made with, without opening it."""

    async def hmac(self, key_id: str, data: bytes) -> bytes:
        """The same 32 bytes for the same data under the same key, and other bytes for any other."""

    async def check(self, key_ids: Collection[str]) -> list[str]:
        """What is wrong with exactly these keys, one sentence each; asked at the start."""


# A provider may have these besides.


class EncryptsMany(Protocol):
    """A provider that takes many values at once, so that a remote one is asked once for a page."""

    async def encrypt_many(self, key_id: str, values: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """Envelopes of pairs of value and context, in their order."""

    async def decrypt_many(self, envelopes: Sequence[tuple[bytes, bytes]]) -> list[bytes | Exception]:
        """The values of pairs of envelope and context; an exception for each that does not open."""


def with_length(part: bytes) -> bytes:
    """A part and its length before it, so that no two lists of parts read the same when they are joined."""
    return len(part).to_bytes(4, "big") + part


def context_of(label: str, record_id: str) -> bytes:
    """The context of a value: what it stands in, such as `patients.ssn`, and the id of its record.

    >>> context_of("t.c", "7")
    b'\\x00\\x00\\x00\\x03t.c\\x00\\x00\\x00\\x017'
    """
    return with_length(label.encode()) + with_length(record_id.encode())
