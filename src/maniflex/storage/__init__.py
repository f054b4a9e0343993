"""Places for files: a directory, memory, S3, Google Cloud Storage, Azure, or one of your own.

A storage keeps bytes under keys and knows nothing of records, requests and tenants.
"""

from maniflex.errors import (
    FileExists,
    FileNotFound,
    InvalidKey,
    PresignUnsupported,
    StorageError,
    StorageFull,
)
from maniflex.storage.address import from_address
from maniflex.storage.local import LocalStorage
from maniflex.storage.memory import MemoryStorage
from maniflex.storage.object_store import AzureStorage, GCSStorage
from maniflex.storage.port import (
    FileMeta,
    PresignedUpload,
    Reader,
    Storage,
    check_key,
    key_problem,
    new_key,
    sign_urls,
)
from maniflex.storage.s3 import S3Storage
from maniflex.storage.signer import UrlSigner

__all__ = [
    "AzureStorage",
    "FileExists",
    "FileMeta",
    "FileNotFound",
    "GCSStorage",
    "InvalidKey",
    "LocalStorage",
    "MemoryStorage",
    "PresignUnsupported",
    "PresignedUpload",
    "Reader",
    "S3Storage",
    "Storage",
    "StorageError",
    "StorageFull",
    "UrlSigner",
    "check_key",
    "from_address",
    "key_problem",
    "new_key",
    "sign_urls",
]
