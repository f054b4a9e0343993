"""What a storage of files is: the protocol every backend keeps, and the values that pass through it.

`Storage` is all that a backend must have. What it may have besides is a protocol of its own, which
callers ask for by `isinstance`: `TellsOfFiles` (what is known of a file, without opening it),
`PresignsUploads`, `SignsBatches` (many URLs in one call), `ListsKeys` (what is stored), `ServedHere`
(its URLs lead to this server) and `HasProblems` (mistakes to be reported at the start).
A backend of your own passes `maniflex.testing.conformance.StorageConformance`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable
from uuid import uuid4

from maniflex.errors import InvalidKey, PresignUnsupported

if TYPE_CHECKING:
    from maniflex.storage.signer import UrlSigner


OCTET_STREAM = "application/octet-stream"
MOST_AT_ONCE = 1024 * 1024  # bytes of a chunk that a reader gives or a thread writes


@dataclass(frozen=True, slots=True)
class FileMeta:
    """What is known of a stored file. `size`, `etag` and `created_at` are the storage's to fill in."""

    filename: str = ""
    content_type: str = OCTET_STREAM
    size: int = 0
    etag: str = ""
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PresignedUpload:
    """How a client uploads to the storage by itself: a form with `fields` (POST), or the bytes (PUT)."""

    url: str
    method: str
    expires_at: datetime
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)


class Reader:
    """The bytes of a stored file, chunk by chunk, of at most 1 MB each; `meta` is of the whole file.

    Close it, or use it as a context manager: an open one holds a file or a connection.
    """

    def __init__(
        self,
        meta: FileMeta,
        chunks: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.meta = meta
        self._chunks = chunks
        self._close = close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def read(self) -> bytes:
        """All that is left of it, in memory."""
        return b"".join([chunk async for chunk in self._chunks])

    async def aclose(self) -> None:
        """Let go of the file; a second call does nothing."""
        close, self._close = self._close, None
        if close is not None:
            await close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@runtime_checkable
class Storage(Protocol):
    """A place for files. Every method refuses a key that breaks the rules with `InvalidKey`."""

    async def store(self, key: str, chunks: AsyncIterable[bytes], meta: FileMeta) -> FileMeta:
        """Keep a file whose size nobody knows yet, or nothing at all if it fails or is cancelled.

        `FileExists` if the key has a file: stored files are never overwritten.
        """
        ...

    async def open(self, key: str, *, start: int = 0, length: int | None = None) -> Reader:
        """The bytes from `start` on, `length` of them or all; none behind the end. `FileNotFound`."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the file. For a key that has none: `FileNotFound` or success, both mean it is gone."""
        ...

    async def exists(self, key: str) -> bool: ...

    async def url(
        self, key: str, *, ttl: timedelta | None, download: bool = False, filename: str | None = None
    ) -> str:
        """A URL that opens the file to whoever has it, for `ttl`; for None one that lasts."""
        ...


METHODS = ("store", "open", "delete", "exists", "url")


@runtime_checkable
class TellsOfFiles(Protocol):
    """A storage that tells of a file without opening it."""

    async def stat(self, key: str) -> FileMeta:
        """What is known of the file. `FileNotFound`."""
        ...


@runtime_checkable
class PresignsUploads(Protocol):
    """A storage that clients can upload to by themselves."""

    async def presign_upload(
        self,
        key: str,
        *,
        ttl: timedelta,
        max_size: int | None,
        content_type: str,
        filename: str,
    ) -> PresignedUpload:
        """A URL that a client may upload this file to, or `PresignUnsupported`."""
        ...


@runtime_checkable
class SignsBatches(Protocol):
    """A storage that signs the URLs of many keys in one call."""

    async def urls(self, keys: Sequence[str], *, ttl: timedelta | None) -> list[str]: ...


@runtime_checkable
class ListsKeys(Protocol):
    """A storage that can tell what it holds."""

    def list_keys(self, prefix: str = "") -> AsyncIterator[str]: ...


@runtime_checkable
class ServedHere(Protocol):
    """A storage whose URLs lead to this server, which hands it the signer of them once, at the start."""

    def bind(self, signer: UrlSigner) -> None: ...


@runtime_checkable
class HasProblems(Protocol):
    """A storage that can find out at the start whether it is usable."""

    def problems(self) -> list[str]: ...


@runtime_checkable
class SignsDownloads(Protocol):
    """A storage whose URLs can say that a file is to be saved, whatever its type."""

    async def download_url(self, key: str, *, ttl: timedelta, filename: str) -> str | None:
        """Such a URL; None where it cannot sign one."""


def missing_methods(storage: object) -> list[str]:
    """The methods of a storage that this object lacks."""
    return [name for name in METHODS if not callable(getattr(storage, name, None))]


async def stat_file(storage: Storage, key: str) -> FileMeta:
    """What is known of a file; of a storage that cannot tell, what its reader says. `FileNotFound`."""
    if isinstance(storage, TellsOfFiles):
        return await storage.stat(key)
    async with await storage.open(key, length=1) as reader:
        return reader.meta


async def presign_file(
    storage: Storage, key: str, *, ttl: timedelta, max_size: int | None, content_type: str, filename: str
) -> PresignedUpload:
    """A URL that a client may upload a file to; `PresignUnsupported` where the storage makes none."""
    if not isinstance(storage, PresignsUploads):
        raise PresignUnsupported()
    return await storage.presign_upload(
        key, ttl=ttl, max_size=max_size, content_type=content_type, filename=filename
    )


async def sign_urls(storage: Storage, keys: Sequence[str], *, ttl: timedelta | None) -> list[str]:
    """The URLs of these keys, in one call where the storage can."""
    if isinstance(storage, SignsBatches):
        return await storage.urls(keys, ttl=ttl)
    return [await storage.url(key, ttl=ttl) for key in keys]


def pins_upload_size(storage: Storage) -> bool:
    """Whether a presigned upload cannot be larger than its URL says."""
    return isinstance(storage, ServedHere) or bool(getattr(storage, "pins_upload_size", False))


def check_range(start: int, length: int | None) -> None:
    """Refuse a range that begins before the file or has less than no bytes."""
    if start < 0 or (length is not None and length < 0):
        raise ValueError(f"a range has a start and a length of 0 or more, not {start} and {length}")


# Storage keys: what one may look like, and the key of a new upload. The only home of these rules.
#
# A key is a relative path of components with `/` between them. All backends refuse the same keys, so that
# an application may move from a directory to a bucket and back.


META_SUFFIX = ".meta.json"  # LocalStorage keeps what is known of `name` in `name.meta.json`
LONGEST_KEY = 900  # bytes; S3 and Azure allow 1024, and a prefix needs room
LONGEST_COMPONENT = 255 - len(META_SUFFIX)  # bytes; a file name has 255
LONGEST_NAME = 120
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")


def check_key(key: str) -> str:
    """The key as it is, or `InvalidKey`."""
    if problem := key_problem(key):
        raise InvalidKey(problem)
    return key


def key_problem(key: object) -> str | None:
    """What is wrong with a key, as a sentence for logs; None when nothing is."""
    if not isinstance(key, str) or not key:
        return f"a storage key is text that is not empty, not {key!r}"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return f"storage key {key!a} has half a character"
    if size > LONGEST_KEY:
        return f"storage key {key[:50]!r}… is longer than {LONGEST_KEY} bytes"
    if _CONTROL.search(key):
        return f"storage key {key!r} has a control character or a backslash"
    for component in key.split("/"):
        if problem := _component_problem(component):
            return f"storage key {key!r} {problem}"
    return None


def _component_problem(component: str) -> str | None:
    if not component:
        return "has an empty component, or begins or ends with a slash"
    if component.startswith("."):
        return "has a component that begins with a dot"
    if component.lower().endswith(META_SUFFIX):
        return f"has a component that ends with {META_SUFFIX}, where metadata is kept"
    if len(component.encode()) > LONGEST_COMPONENT:
        return f"has a component longer than {LONGEST_COMPONENT} bytes"
    return None


def new_key(filename: str) -> str:
    """The key of a new upload: `uploads/<random>/<name>`.

    Random, because the ids of records count upwards and a key must not be guessed from the one before.
    """
    return f"uploads/{uuid4()}/{safe_name(filename)}"


def safe_name(filename: str) -> str:
    """A file name as the last component of a key: ASCII letters, digits, `.`, `_` and `-`."""
    name = _UNSAFE.sub("_", filename).strip(".")[:LONGEST_NAME].strip(".")
    if name.lower().endswith(META_SUFFIX):
        name = f"{name[: -len(META_SUFFIX)]}_meta_json"
    return name or "file"
