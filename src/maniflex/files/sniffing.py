"""The type of a file by its first bytes, as far as they tell.

Only types whose beginning is unmistakable are known. What begins like none of them may be anything,
except a type that would have begun otherwise.
"""

from __future__ import annotations

from maniflex.storage.port import OCTET_STREAM

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
    found = sniff(head)
    if declared in (found, OCTET_STREAM):
        return False
    if found in (OCTET_STREAM, "text/plain"):
        return declared in _ALWAYS_BEGIN_SO
    if found in ("text/html", "image/svg+xml"):
        return not (declared.startswith("text/") or "xml" in declared or "html" in declared) or (
            declared == "text/plain"
        )
    return not declared.startswith(_MADE_OF.get(found, ()))


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
