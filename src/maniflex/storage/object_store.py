"""Files in an object store, by obstore: what all have in common, Google Cloud Storage, and Azure.

A small file is one conditional request, so two uploads to one key cannot both succeed. A large one goes in
parts, which the stores complete unconditionally: it is refused if the key is taken when it begins, or by
another upload of this process.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

from maniflex._callables import explain_class
from maniflex._clock import Clock, SystemClock
from maniflex.errors import ConfigError, FileExists, FileNotFound, StorageError, Unavailable
from maniflex.storage.port import (
    MOST_AT_ONCE,
    OCTET_STREAM,
    FileMeta,
    PresignedUpload,
    Reader,
    check_key,
    check_range,
    key_problem,
)
from maniflex.storage.signer import content_disposition, is_inline

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store


CONNECT_TIMEOUT = timedelta(seconds=5)
SILENCE_TIMEOUT = timedelta(seconds=30)
ANSWER_TIMEOUT = timedelta(seconds=30)
LONGEST_URL_TTL = timedelta(days=7)  # more is signed by none of them under all kinds of credentials
MOST_OF_NAME = 255  # bytes of the original name; all metadata of an object has 2 KB
_READ_AT_ONCE = 512 * 1024
_FILENAME, _UPLOAD = "filename", "upload"  # metadata of an object


def require_obstore(owner: str) -> None:
    if find_spec("obstore") is None:
        raise ConfigError(f'{owner} needs obstore: pip install "maniflex[storage]"')


class ObjectStorage:
    """What object stores have in common; they differ in how the store is made and how an upload is signed."""

    longest_url_ttl: ClassVar[timedelta] = LONGEST_URL_TTL
    _store: S3Store | GCSStore | AzureStore

    def __init__(
        self,
        place: str,
        *,
        key_prefix: str,
        public_url: str | None,
        connect_timeout: timedelta,
        silence_timeout: timedelta,
        answer_timeout: timedelta,
        clock: Clock | None,
    ) -> None:
        require_obstore(type(self).__name__)
        self._prefix = _folder(key_prefix, type(self).__name__)
        self._place = place
        self._public_url = public_url.rstrip("/") if public_url else None
        self._silence = silence_timeout.total_seconds()
        self._answer = answer_timeout.total_seconds()
        self._connect_timeout = connect_timeout
        self._errors = ObjectErrors(place)
        self._clock = clock or SystemClock()
        self._uploading: set[str] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._place!r})"

    def _options(self, *, allow_http: bool = False) -> dict[str, Any]:
        """How obstore connects and retries."""
        answer = timedelta(seconds=self._answer)
        return {
            "client_options": {
                "allow_http": allow_http,
                "connect_timeout": self._connect_timeout,
                "read_timeout": timedelta(seconds=self._silence),
                # Of a whole request: a large download takes as long as it takes, while it moves.
                "timeout": timedelta(days=7),
            },
            "retry_config": {"retry_timeout": answer},
        }

    # -- files

    async def store(self, key: str, chunks: AsyncIterable[bytes], meta: FileMeta) -> FileMeta:
        path = self._path(key)
        if path in self._uploading:
            raise FileExists(f"{self._place}: {key} is being stored")
        self._uploading.add(path)
        try:
            async with aclosing(pieces(chunks, PART)) as parts:
                size, result = await self._send(path, parts, _attributes(meta))
        finally:
            self._uploading.discard(path)
        return replace(meta, size=size, etag=result["e_tag"] or "", created_at=self._clock.now())

    async def _send(
        self, path: str, parts: AsyncIterator[bytes], attributes: dict[str, str]
    ) -> tuple[int, Any]:
        first = await anext(parts, b"")
        if len(first) < PART:
            return len(first), await self._send_whole(path, first, attributes)
        if await self._is_there(path):
            raise FileExists(f"{self._place}: stored already")
        upload = PartsUpload(self._store, path, attributes)
        size = 0
        try:
            part: bytes | None = first
            while part is not None:
                size += len(part)
                async with self._errors.translate("storing a part", within=self._answer, storing=True):
                    await upload.put(part)
                part = await anext(parts, None)
            async with self._errors.translate("completing an upload", within=self._answer, storing=True):
                return size, await upload.finish()
        except BaseException:
            if not await upload.abandon():
                await self._remove_own(path, attributes[_UPLOAD])
            raise

    async def _send_whole(self, path: str, data: bytes, attributes: dict[str, str]) -> Any:
        import obstore

        try:
            async with self._errors.translate("storing a file", within=self._answer, storing=True):
                return await obstore.put_async(
                    self._store,
                    path,
                    data,
                    attributes=attributes,
                    mode="create",
                )
        except FileExists:
            # A request whose answer was lost is sent again by obstore, and then finds its own file.
            if own := await self._own(path, attributes[_UPLOAD]):
                return own
            raise
        except StorageError:
            raise
        except BaseException:  # it was cut off: the store may have it, or get it yet
            await self._remove_own(path, attributes[_UPLOAD])
            raise

    async def _remove_own(self, path: str, upload: str) -> None:
        """Remove what this upload stored, and not what another one did."""
        import obstore

        with suppress(Exception):
            async with self._errors.translate("cleaning up", within=FAREWELL):
                if await self._own(path, upload):
                    await obstore.delete_async(self._store, path)

    async def _own(self, path: str, upload: str) -> Any:
        """What is known of the object at a path, if this upload stored it."""
        import obstore

        async with self._errors.translate("looking at a file", within=self._answer):
            result = await obstore.get_async(self._store, path, options={"head": True})
        return result.meta if dict(result.attributes).get(_UPLOAD) == upload else None

    async def open(self, key: str, *, start: int = 0, length: int | None = None) -> Reader:
        import obstore

        check_range(start, length)
        path = self._path(key)
        if length == 0:
            return Reader(await self.stat(key), _nothing())
        options: dict[str, Any] = {}
        if length is not None:
            options["range"] = (start, start + length)
        elif start:
            options["range"] = {"offset": start}
        try:
            async with self._errors.translate("opening a file", within=self._answer):
                result = await obstore.get_async(self._store, path, options=options)  # type: ignore[arg-type]
        except StorageError:
            meta = await self.stat(key)
            if start < meta.size:
                raise
            return Reader(meta, _nothing())
        chunks = self._chunks(result)
        return Reader(_file_meta(result), chunks, chunks.aclose)

    async def _chunks(self, result: Any) -> AsyncGenerator[bytes]:
        stream = result.stream(min_chunk_size=_READ_AT_ONCE)
        while True:
            async with self._errors.translate("reading a file", within=self._silence):
                chunk = await anext(stream, None)
            if chunk is None:
                return
            for offset in range(0, len(chunk), MOST_AT_ONCE):
                yield bytes(memoryview(chunk)[offset : offset + MOST_AT_ONCE])

    async def delete(self, key: str) -> None:
        import obstore

        path = self._path(key)
        async with self._errors.translate("deleting a file", within=self._answer):
            await obstore.delete_async(self._store, path)

    async def exists(self, key: str) -> bool:
        return await self._is_there(self._path(key))

    async def stat(self, key: str) -> FileMeta:
        import obstore

        path = self._path(key)
        async with self._errors.translate("looking at a file", within=self._answer):
            return _file_meta(await obstore.get_async(self._store, path, options={"head": True}))

    async def _is_there(self, path: str) -> bool:
        import obstore

        try:
            async with self._errors.translate("looking for a file", within=self._answer):
                await obstore.head_async(self._store, path)
        except FileNotFound:
            return False
        return True

    async def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        import obstore

        # Stores list by folders, and the rest of a prefix is compared here.
        folder = self._name(self._prefix + prefix).rpartition("/")[0]
        batches = obstore.list(self._store, prefix=folder or None)
        while True:
            async with self._errors.translate("listing files", within=self._answer):
                batch = await anext(batches, None)
            if batch is None:
                return
            for entry in batch:
                key = self._name_read(entry["path"])[len(self._prefix) :]
                if key.startswith(prefix) and not key_problem(key):
                    yield key

    # -- URLs

    async def url(
        self, key: str, *, ttl: timedelta | None, download: bool = False, filename: str | None = None
    ) -> str:
        """The object itself says how it is shown, unless the store can sign something else."""
        [url] = await self.urls([key], ttl=ttl)
        return url

    async def urls(self, keys: Sequence[str], *, ttl: timedelta | None) -> list[str]:
        paths = [self._path(key) for key in keys]
        if ttl is None and self._public_url is not None:
            return [f"{self._public_url}/{quote(path, safe='/')}" for path in paths]
        return await self._sign("GET", paths, self._within_reach(ttl))

    async def presign_upload(
        self, key: str, *, ttl: timedelta, max_size: int | None, content_type: str, filename: str
    ) -> PresignedUpload:
        """A URL for a PUT. It binds method, key and time; size and type are checked when the file is used."""
        ttl = self._within_reach(ttl)
        [url] = await self._sign("PUT", [self._path(key)], ttl)
        return PresignedUpload(
            url=url,
            method="PUT",
            expires_at=self._clock.now() + ttl,
            headers=self._upload_headers(FileMeta(filename, content_type)),
        )

    def _upload_headers(self, meta: FileMeta) -> dict[str, str]:
        attributes = _attributes(meta)
        return {name: attributes[name] for name in ("Content-Type", "Content-Disposition")}

    async def _sign(self, method: Any, paths: list[str], ttl: timedelta) -> list[str]:
        import obstore

        if not paths:
            return []
        async with self._errors.translate("signing a URL", within=self._answer):
            return list(await obstore.sign_async(self._store, method, paths, ttl))

    def _within_reach(self, ttl: timedelta | None) -> timedelta:
        return self.longest_url_ttl if ttl is None else min(ttl, self.longest_url_ttl)

    def _path(self, key: str) -> str:
        return self._name(self._prefix + check_key(key))

    def _name(self, path: str) -> str:
        """The name of the object at a path; the path itself, unless a store has trouble with it."""
        return path

    def _name_read(self, name: str) -> str:
        """The path of an object of this name."""
        return name


def _folder(prefix: str, owner: str) -> str:
    """A prefix of keys, with the slash that ends it."""
    inner = prefix.strip("/")
    if not inner:
        return ""
    if problem := key_problem(inner):
        raise ConfigError(f"{owner}: key_prefix: {problem}")
    return f"{inner}/"


def _attributes(meta: FileMeta) -> dict[str, str]:
    content_type = meta.content_type if meta.content_type.isprintable() else OCTET_STREAM
    if not content_type.isascii():
        content_type = OCTET_STREAM
    name = meta.filename.encode("utf-8", "replace")[:MOST_OF_NAME].decode("utf-8", "ignore")
    return {
        "Content-Type": content_type or OCTET_STREAM,
        "Content-Disposition": content_disposition(name, inline=is_inline(content_type)),
        _FILENAME: quote(name, safe=""),
        _UPLOAD: secrets.token_hex(16),
    }


def _file_meta(result: Any) -> FileMeta:
    attributes = dict(result.attributes)
    return FileMeta(
        filename=unquote(attributes.get(_FILENAME, "")),
        content_type=attributes.get("Content-Type", OCTET_STREAM),
        size=result.meta["size"],
        etag=result.meta["e_tag"] or "",
        created_at=result.meta["last_modified"],
    )


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


# What becomes of obstore's exceptions: `FileNotFound`, `FileExists`, `Unavailable`, or `StorageError`.
#
# Their texts are kept for logs without what follows a question mark in a URL, where signatures are, and
# the exceptions themselves are not kept as causes.


_QUERY = re.compile(r"\?[^\s\"'<>)]*")
# The request was understood and is our mistake: another attempt would end in the same way.
_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d|Wanted range")
_LONGEST = 300


class ObjectErrors:
    """Translates what is raised in its blocks; `place` says where the files are, for logs."""

    def __init__(self, place: str) -> None:
        self._place = place

    @asynccontextmanager
    async def translate(
        self, doing: str, *, within: float | None = None, storing: bool = False
    ) -> AsyncIterator[None]:
        """Give it up after `within` seconds. What is not found while `storing` is the bucket."""
        from obstore import exceptions

        try:
            async with asyncio.timeout(within):
                yield
        except FileNotFoundError:
            raise StorageError(f"{self._place} does not exist") if storing else FileNotFound() from None
        except TimeoutError:
            raise self.unavailable(f"no answer in {within:g} s while {doing}") from None
        except exceptions.AlreadyExistsError:
            raise FileExists(f"{self._place}: stored already") from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise StorageError(f"{self._place}: not allowed while {doing}: {error_text(error)}") from None
        except exceptions.BaseError as error:
            text = error_text(error)
            if isinstance(error, exceptions.GenericError) and not _REFUSED.search(text):
                raise self.unavailable(f"{doing}: {text}") from None
            raise StorageError(f"{self._place}: {doing}: {text}") from None

    def unavailable(self, problem: str) -> Unavailable:
        error = Unavailable("the file storage is temporarily unavailable")
        error.place = f"{self._place}: {problem}"
        return error


def error_text(error: BaseException) -> str:
    """The first paragraph of an exception's text, without the queries of URLs."""
    return _QUERY.sub("?…", str(error).partition("\n\n")[0])[:_LONGEST]


# One upload to an object store: in one request if it is small, else in parts.
#
# The caller's own task reads the file and hands it on, and obstore takes it from there in a task of its
# own, two parts at most under way. An upload that fails or is cancelled ends obstore's task by an error
# where it waits for bytes, because then obstore aborts the parts; a task that is merely cancelled leaves
# them in the bucket.


PART = 5 * 1024 * 1024  # the least that S3 takes
PARTS_AT_ONCE = 2
FAREWELL = 0.8  # seconds that an upload which was given up has to abort its parts


class Abandoned(Exception):
    """Raised to obstore where it waits for more of a file that does not come any more."""


async def pieces(chunks: AsyncIterable[bytes], size: int) -> AsyncGenerator[bytes]:
    """The same bytes in pieces of at least this size, the last excepted."""
    buffer: list[bytes] = []
    size_so_far = 0
    async for chunk in chunks:
        buffer.append(chunk)
        size_so_far += len(chunk)
        if size_so_far >= size:
            yield b"".join(buffer)
            buffer, size_so_far = [], 0
    if buffer:
        yield b"".join(buffer)


class Feed:
    """The bytes of an upload, handed from one task to another, one piece at a time."""

    def __init__(self) -> None:
        self._piece: bytes | None = None
        self._room, self._filled = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._abandoned = False

    async def put(self, piece: bytes | None) -> None:
        """Hand a piece on once there is room; None is the end."""
        await self._room.wait()
        if not self._abandoned:
            self._piece = piece
            self._room.clear()
            self._filled.set()

    def abandon(self) -> None:
        """Whoever takes from it gets an error, and whoever puts is let go."""
        self._abandoned = True
        self._room.set()
        self._filled.set()

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> bytes:
        await self._filled.wait()
        if self._abandoned:
            raise Abandoned
        piece, self._piece = self._piece, None
        if piece is None:
            raise StopAsyncIteration
        self._filled.clear()
        self._room.set()
        return piece


class PartsUpload:
    """An upload in parts; `put` and `finish` raise what obstore's task raised."""

    def __init__(self, store: ObjectStore, path: str, attributes: dict[str, str]) -> None:
        self._feed = Feed()
        self._task: asyncio.Task[Any] = asyncio.create_task(self._send(store, path, attributes))
        self._task.add_done_callback(lambda _: self._feed.abandon())

    async def _send(self, store: ObjectStore, path: str, attributes: dict[str, str]) -> Any:
        import obstore

        return await obstore.put_async(
            store,
            path,
            self._feed,
            attributes=attributes,
            use_multipart=True,
            chunk_size=PART,
            max_concurrency=PARTS_AT_ONCE,
        )

    async def put(self, piece: bytes) -> None:
        view = memoryview(piece)
        for offset in range(0, len(view), MOST_AT_ONCE):
            await self._feed.put(bytes(view[offset : offset + MOST_AT_ONCE]))
            if self._task.done():
                self._task.result()

    async def finish(self) -> Any:
        await self._feed.put(None)
        return await asyncio.shield(self._task)

    async def abandon(self) -> bool:
        """Let obstore abort the parts; False if it did not in time, or the upload is complete."""
        self._feed.abandon()
        done, _ = await asyncio.wait({self._task}, timeout=FAREWELL)
        if not done:
            self._task.cancel()
            return False
        return not self._task.cancelled() and self._task.exception() is not None


# The address of a service that is not at its usual place.


def is_http(endpoint: str | None) -> bool:
    return endpoint is not None and endpoint.lower().startswith("http://")


def endpoint_problems(owner: str, endpoint: str | None, *, allow_http: bool) -> list[str]:
    """What is wrong with the address of a service."""
    if endpoint is None:
        return []
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        return [f"{owner}: endpoint is a URL such as https://minio.example.com:9000, without credentials"]
    if parts.scheme == "http" and not allow_http and not _is_loopback(parts.hostname):
        return [f"{owner}: endpoint has no TLS; on this machine that is fine, elsewhere say allow_http=True"]
    return []


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def has_no_subdomains(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        ip_address(host)
    except ValueError:
        return "." not in host
    return True


# Files in Google Cloud Storage.


@explain_class
class GCSStorage(ObjectStorage):
    """A bucket. Credentials are those given here, else those that obstore finds in the environment."""

    def __init__(
        self,
        bucket: str,
        *,
        key_prefix: str = "",
        public_url: str | None = None,
        service_account_key: str | None = None,
        connect_timeout: timedelta = CONNECT_TIMEOUT,
        silence_timeout: timedelta = SILENCE_TIMEOUT,
        answer_timeout: timedelta = ANSWER_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        if not bucket:
            raise ConfigError("GCSStorage: the name of the bucket is empty")
        super().__init__(
            f"gs://{bucket}",
            key_prefix=key_prefix,
            public_url=public_url,
            connect_timeout=connect_timeout,
            silence_timeout=silence_timeout,
            answer_timeout=answer_timeout,
            clock=clock,
        )
        from obstore.store import GCSStore

        credentials = {} if service_account_key is None else {"service_account_key": service_account_key}
        self._store = GCSStore(bucket, **credentials, **self._options())  # type: ignore[arg-type]


# Files in Azure Blob Storage.


# obstore signs a name as it stands in the URL, and Azure checks the name itself: where the two differ, the
# signature is wrong. So no name has a character that a URL escapes.
_ESCAPED_IN_URLS = re.compile(r"[^A-Za-z0-9/._~!$&'()*+,;:@-]")
_ESCAPE = re.compile(r"(?:=[0-9A-F]{2})+")


@explain_class
class AzureStorage(ObjectStorage):
    """A container. Credentials are those given here, else those that obstore finds in the environment."""

    def __init__(
        self,
        container: str,
        *,
        account: str | None = None,
        account_key: str | None = None,
        endpoint: str | None = None,
        key_prefix: str = "",
        public_url: str | None = None,
        allow_http: bool = False,
        connect_timeout: timedelta = CONNECT_TIMEOUT,
        silence_timeout: timedelta = SILENCE_TIMEOUT,
        answer_timeout: timedelta = ANSWER_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        problems = endpoint_problems("AzureStorage", endpoint, allow_http=allow_http)
        if not container:
            problems.append("AzureStorage: the name of the container is empty")
        if problems:
            raise ConfigError(*problems)
        super().__init__(
            f"az://{container}",
            key_prefix=key_prefix,
            public_url=public_url,
            connect_timeout=connect_timeout,
            silence_timeout=silence_timeout,
            answer_timeout=answer_timeout,
            clock=clock,
        )
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore

        settings: dict[str, Any] = {"account_name": account, "account_key": account_key, "endpoint": endpoint}
        try:
            self._store = AzureStore(
                container,
                **{name: value for name, value in settings.items() if value is not None},
                **self._options(allow_http=is_http(endpoint)),
            )
        except BaseError as error:
            raise ConfigError(f"AzureStorage: {str(error).partition(chr(10))[0]}") from None

    def _upload_headers(self, meta: FileMeta) -> dict[str, str]:
        headers = super()._upload_headers(meta)
        disposition = headers.pop("Content-Disposition")
        return {**headers, "x-ms-blob-type": "BlockBlob", "x-ms-blob-content-disposition": disposition}

    def _name(self, path: str) -> str:
        return _ESCAPED_IN_URLS.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), path)

    def _name_read(self, name: str) -> str:
        return _ESCAPE.sub(
            lambda found: bytes.fromhex(found[0].replace("=", "")).decode("utf-8", "replace"), name
        )
