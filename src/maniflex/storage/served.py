"""The URLs of storages without a server of their own: they lead to this one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from maniflex.errors import PresignUnsupported, StorageError
from maniflex.storage.keys import check_key
from maniflex.storage.port import PresignedUpload
from maniflex.storage.signer import UrlSigner


class ServedByUs:
    """Signs URLs with the signer that the server handed over."""

    _signer: UrlSigner | None = None

    def bind(self, signer: UrlSigner) -> None:
        self._signer = signer

    async def url(
        self, key: str, *, ttl: timedelta | None, download: bool = False, filename: str | None = None
    ) -> str:
        check_key(key)
        signer = self._require_signer()
        if ttl is None:
            return signer.plain_url(key)
        return signer.read_url(key, ttl=ttl, download=download, filename=filename)

    async def urls(self, keys: Sequence[str], *, ttl: timedelta | None) -> list[str]:
        return [await self.url(key, ttl=ttl) for key in keys]

    async def presign_upload(
        self, key: str, *, ttl: timedelta, max_size: int | None, content_type: str, filename: str
    ) -> PresignedUpload:
        check_key(key)
        if self._signer is None:
            raise PresignUnsupported
        return self._signer.upload(
            key, ttl=ttl, max_size=max_size, content_type=content_type, filename=filename
        )

    def _require_signer(self) -> UrlSigner:
        if self._signer is None:
            raise StorageError(f"{type(self).__name__} has no URLs of its own and no server gave it a signer")
        return self._signer
