"""URLs that open a file to those who have them.

They lead to the storage, or to this server where the storage has none of its own. A file that is to be saved
whatever its type has a URL that says so: where the store cannot sign one, it leads here too.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Protocol

from maniflex.config import Config
from maniflex.storage.port import ServedHere, SignsDownloads, Storage, sign_urls
from maniflex.storage.signer import UrlSigner


class Desk(Protocol):
    """The part of a desk that makes URLs."""

    config: Config
    signer: UrlSigner | None

    @property
    def storage(self) -> Storage: ...


async def url_of(desk: Desk, key: str, *, ttl: timedelta | None, download: bool, filename: str | None) -> str:
    """The URL of one file, for so long; without a time, a lasting one."""
    if download and (url := await _download_url(desk, key, ttl, filename)):
        return url
    return await desk.storage.url(key, ttl=ttl, download=download, filename=filename)


async def urls_of(
    desk: Desk, keys: Collection[str], *, ttl: timedelta | None, download: bool
) -> dict[str, str]:
    """The URLs of several files, signed in one call where that is possible."""
    urls: dict[str, str] = {}
    for key in dict.fromkeys(keys) if download else ():
        if url := await _download_url(desk, key, ttl, None):
            urls[key] = url
    others = [key for key in dict.fromkeys(keys) if key not in urls]
    if others:
        urls.update(zip(others, await sign_urls(desk.storage, others, ttl=ttl), strict=True))
    return urls


async def _download_url(desk: Desk, key: str, ttl: timedelta | None, filename: str | None) -> str | None:
    """The URL that saves a file; None where the usual one does, or no other can be made."""
    storage, signer = desk.storage, desk.signer
    if isinstance(storage, ServedHere):
        return None
    if isinstance(storage, SignsDownloads) and ttl is not None:
        name = filename or key.rpartition("/")[2]
        if url := await storage.download_url(key, ttl=ttl, filename=name):
            return url
    if signer is None or not desk.config.files_routes:
        return None
    if ttl is None:
        return signer.plain_url(key)
    return signer.read_url(key, ttl=ttl, download=True, filename=filename)
