"""The bytes of one upload on their way to the storage: counted, hashed, held to the rules of the field."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from maniflex.errors import FileTooLarge, FileTypeNotAllowed, ManiflexError, StorageError
from maniflex.model.field import FileRules
from maniflex.storage.port import OCTET_STREAM

if TYPE_CHECKING:
    from maniflex.files.owner import Owner
    from maniflex.files.store import FileStore

_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+( ?;[ -~]*)?", re.ASCII)
_LONGEST_TYPE = 255


def clean_content_type(text: str | None) -> str:
    """A media type as a client or a storage says it; empty where it can be none."""
    bare = (text or "").strip()
    return bare if len(bare) <= _LONGEST_TYPE and _TYPE.fullmatch(bare) else ""


class Intake:
    """Chunks as a storage takes them; `look` comes first, because the type goes before the bytes."""

    def __init__(
        self,
        chunks: AsyncIterable[bytes],
        rules: FileRules,
        *,
        content_type: str | None,
        on_chunk: Callable[[], Awaitable[None]],
        room: int | None = None,
    ) -> None:
        self._chunks = aiter(chunks)
        self._rules = rules
        self._on_chunk = on_chunk
        self._room = room  # bytes that the caller may still store
        self._head: list[bytes] = []
        self._digest = sha256()
        self.content_type = clean_content_type(content_type)
        self.size = 0
        self.failure: BaseException | None = None  # of the chunks or the rules, and not of the storage

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    async def look(self) -> None:
        """Find the type of the file and hold it against the rules; nothing is stored yet."""
        if self.content_type and not self._is_unsaid() and not self._rules.sniff:
            self._check_type()
            return
        size = 0
        while size < ENOUGH and (chunk := await anext(self._chunks, None)) is not None:
            self._head.append(chunk)
            size += len(chunk)
        head = b"".join(self._head)[:ENOUGH]
        if self._is_unsaid():
            self.content_type = sniff(head)
        elif self._rules.sniff and contradicts(head, self.content_type):
            raise FileTypeNotAllowed("the file is not of the type it says")
        self._check_type()

    def _is_unsaid(self) -> bool:
        return self.content_type.partition(";")[0].strip().lower() in ("", OCTET_STREAM)

    def _check_type(self) -> None:
        if not self._rules.accepts(self.content_type):
            raise FileTypeNotAllowed(f"the file must be {' or '.join(self._rules.accept)}")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for chunk in self._head:
                yield await self._take(chunk)
            self._head.clear()
            async for chunk in self._chunks:
                yield await self._take(chunk)
            await self._on_chunk()  # before the storage completes the object
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = error
            raise

    async def _take(self, chunk: bytes) -> bytes:
        self.size += len(chunk)
        if self._rules.max_size is not None and self.size > self._rules.max_size:
            raise FileTooLarge(f"the file has more than {self._rules.max_size} bytes")
        if self._room is not None and self.size > self._room:
            raise no_room()
        self._digest.update(chunk)
        await self._on_chunk()
        return chunk


# The type of a file by its first bytes, as far as they tell.
#
# Only types whose beginning is unmistakable are known. What begins like none of them may be anything,
# except a type that would have begun otherwise.


ENOUGH = 2048  # bytes

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (  # at which offset, which bytes, which type
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypavis", "image/avif"),
    (4, b"ftypheic", "image/heic"),
    (0, b"II*\x00", "image/tiff"),
    (0, b"MM\x00*", "image/tiff"),
    (0, b"BM", "image/bmp"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"PK\x05\x06", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"Rar!\x1a\x07", "application/vnd.rar"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (8, b"WAVE", "audio/wav"),
    (0, b"MZ", "application/vnd.microsoft.portable-executable"),
    (0, b"\x7fELF", "application/x-elf"),
)
# Containers that other types are made of: what begins so may be any of these.
_MADE_OF = {
    "application/zip": ("application/vnd.", "application/epub+zip", "application/java-archive"),
    "application/gzip": ("application/x-gzip", "application/x-tar", "application/x-gtar", "image/svg+xml"),
    "video/mp4": ("video/", "audio/", "image/heif", "image/heic", "image/avif"),
    "video/webm": ("video/", "audio/"),
    "audio/ogg": ("video/ogg", "application/ogg", "audio/"),
    "audio/mpeg": ("audio/mp3", "audio/x-mp3"),
    "audio/wav": ("audio/x-wav", "audio/wave", "audio/vnd.wave"),
    "audio/flac": ("audio/x-flac",),
    "image/heic": ("image/heif",),
    "image/bmp": ("image/x-ms-bmp",),
    "image/tiff": ("image/",),  # raw images of cameras
    "image/jpeg": ("image/jpg", "image/pjpeg"),
    "application/vnd.rar": ("application/x-rar-compressed", "application/x-rar"),
    "application/vnd.microsoft.portable-executable": ("application/x-msdownload", "application/x-dosexec"),
}
_ALWAYS_BEGIN_SO = frozenset(
    {
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
        "image/avif",
        "application/pdf",
        "application/zip",
        "application/gzip",
    }
)
_MARKUP = ((b"<!doctype html", "text/html"), (b"<html", "text/html"), (b"<svg", "image/svg+xml"))


def sniff(head: bytes) -> str:
    """The type of a file that begins like this; `application/octet-stream` where nothing can be told."""
    for offset, signature, content_type in _SIGNATURES:
        if head.startswith(signature, offset) and (offset < 8 or head.startswith(b"RIFF")):
            return content_type
    if not head or not _is_text(head):
        return OCTET_STREAM
    begin = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:200].lower()
    for tag, content_type in _MARKUP:
        if begin.startswith(tag) or (begin.startswith(b"<?xml") and tag in head.lower()):
            return content_type
    return "text/plain"


def contradicts(head: bytes, declared: str) -> bool:
    """Whether a file of the declared type cannot begin like this."""
    declared = declared.partition(";")[0].strip().lower()
    sniffed_type = sniff(head)
    if declared in (sniffed_type, OCTET_STREAM):
        return False
    if sniffed_type in (OCTET_STREAM, "text/plain"):
        return declared in _ALWAYS_BEGIN_SO
    if sniffed_type in ("text/html", "image/svg+xml"):
        return not (declared.startswith("text/") or "xml" in declared or "html" in declared) or (
            declared == "text/plain"
        )
    return not declared.startswith(_MADE_OF.get(sniffed_type, ()))


def _is_text(head: bytes) -> bool:
    """Whether it is UTF-8 without control characters; the last character may have been cut."""
    if any(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head):
        return False
    for cut in range(4):
        try:
            head[: len(head) - cut].decode()
        except UnicodeDecodeError:
            continue
        return True
    return False


# `file_quota`: how many bytes the files of one caller may have in all.
#
# The sum is that of the files whose keys the caller minted and that are not given up. A presigned upload
# holds the bytes that its URL lets through until the object is seen. Uploads that run side by side are
# looked at again once they are stored, so that together they do not pass it either.


class FileQuota:
    """Asks the hook of the settings; without one there is always room."""

    def __init__(
        self,
        ask: Callable[..., Any] | None,
        rows: Callable[[], FileStore],
        see_uploads: Callable[[Owner], Awaitable[None]],
    ) -> None:
        self._ask = ask
        self._rows = rows
        self._see_uploads = see_uploads  # presigned ones: what came may have fewer bytes than it holds

    async def room(self, owner: Owner) -> int | None:
        """The bytes that further files of this caller may have; None where there is no limit."""
        most = await self._most(owner)
        return None if most is None else max(most - await self._rows().used_bytes(owner.scope), 0)

    async def require_room(self, owner: Owner, size: int) -> int | None:
        """The same, if a file of this size would fit; `FileTooLarge` otherwise."""
        room = await self.room(owner)
        if room is not None and _is_short(room, size):
            await self._see_uploads(owner)
            room = await self.room(owner)
            if room is not None and _is_short(room, size):
                raise no_room()
        return room

    async def is_passed(self, owner: Owner) -> bool:
        """Whether the files of this caller have more than they may."""
        most = await self._most(owner)
        return most is not None and await self._rows().used_bytes(owner.scope) > most

    async def _most(self, owner: Owner) -> int | None:
        if self._ask is None:
            return None
        try:
            outcome = self._ask(owner.name)
            most = await outcome if inspect.isawaitable(outcome) else outcome
        except ManiflexError:
            raise
        except Exception as error:
            raise StorageError(f"file_quota raised {type(error).__name__}") from error
        if most is not None and (not isinstance(most, int) or isinstance(most, bool)):
            raise StorageError(f"file_quota gave {type(most).__name__}, which is no number of bytes")
        return most


def _is_short(room: int, size: int) -> bool:
    return size > room or room == 0


def no_room() -> FileTooLarge:
    """The refusal of a file for which there is no room."""
    return FileTooLarge("there is no room for this file: your files have as many bytes as they may")
