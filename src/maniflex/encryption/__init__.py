"""Keys, and what is stored under them: envelopes, digests, and where keys come from.

It knows nothing of models: a value is bytes, and where it stands is a `context`.
"""

from maniflex.encryption.envelope import head_of
from maniflex.encryption.keyring import Keyring
from maniflex.encryption.local import EnvKeyProvider, LocalKeyProvider, MemoryKeyProvider
from maniflex.encryption.port import KeyProvider, context_of
from maniflex.encryption.rotation import KeyCount, RotationFailure, RotationReport
from maniflex.encryption.vault import VaultKeyProvider
from maniflex.errors import DecryptionError, EncryptionError, EncryptionNotConfigured

__all__ = [
    "DecryptionError",
    "EncryptionError",
    "EncryptionNotConfigured",
    "EnvKeyProvider",
    "KeyCount",
    "KeyProvider",
    "Keyring",
    "LocalKeyProvider",
    "MemoryKeyProvider",
    "RotationFailure",
    "RotationReport",
    "VaultKeyProvider",
    "context_of",
    "head_of",
]
