"""The suite of storages on every backend there is a server for."""

from __future__ import annotations

from pathlib import Path

import pytest

from maniflex.storage import (
    AzureStorage,
    GCSStorage,
    LocalStorage,
    MemoryStorage,
    S3Storage,
    Storage,
    UrlSigner,
)
from maniflex.testing.conformance import StorageConformance
from tests.kit.object_stores import azure_storage, s3_storage

SIGNER = UrlSigner("/api/files", b"s" * 32)


class TestLocalStorage(StorageConformance):
    @pytest.fixture
    async def storage(self, tmp_path: Path) -> LocalStorage:
        local = LocalStorage(tmp_path / "uploads")
        local.bind(SIGNER)
        return local


class TestMemoryStorage(StorageConformance):
    @pytest.fixture
    async def storage(self) -> MemoryStorage:
        memory = MemoryStorage()
        memory.bind(SIGNER)
        return memory


class TestS3Storage(StorageConformance):
    @pytest.fixture
    async def storage(self, s3_endpoint: str) -> S3Storage:
        return s3_storage(s3_endpoint, key_prefix="some/prefix")


class TestS3StorageWithoutPrefix(StorageConformance):
    @pytest.fixture
    async def storage(self, s3_endpoint: str) -> S3Storage:
        return s3_storage(s3_endpoint, presign="post")


class TestAzureStorage(StorageConformance):
    @pytest.fixture
    async def storage(self, azure_endpoint: str) -> AzureStorage:
        return azure_storage(azure_endpoint, key_prefix="some/prefix")


@pytest.mark.parametrize("kind", [LocalStorage, MemoryStorage, S3Storage, GCSStorage, AzureStorage])
def test_every_backend_has_what_the_protocol_asks_for(kind: type) -> None:
    asked = [name for name in vars(Storage) if not name.startswith("_")]
    assert asked
    assert [name for name in asked if not callable(getattr(kind, name, None))] == []
