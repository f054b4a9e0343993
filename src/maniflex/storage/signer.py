"""Sign URLs of this server that open one file to whoever has them, and check them.

A signature covers the method, the key, when it expires and everything else the URL says; it is an
HMAC-SHA256 under a secret that all processes of the server share. The server makes one `UrlSigner` when it is
sealed, hands it to its storage (`ServedHere.bind`) and checks requests with it.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from urllib.parse import quote, urlencode

from maniflex._clock import Clock, SystemClock
from maniflex.errors import ConfigError, PresignUnsupported, StorageError
from maniflex.storage.port import PresignedUpload, check_key

SHORTEST_SECRET = 16  # bytes
_READ, _UPLOAD = "GET", "PUT"
_LATEST = 253402300799  # the last second of the year 9999


@dataclass(frozen=True, slots=True)
class ReadGrant:
    """What a signed URL allows: to read the file, as a download and under another name where it says so."""

    download: bool
    filename: str | None


@dataclass(frozen=True, slots=True)
class UploadGrant:
    """What a signed URL allows: to upload a file of this type, of `max_size` bytes at most."""

    max_size: int | None
    content_type: str
    filename: str


class UrlSigner:
    """Signs and checks URLs below `base_url`, such as `/api/files` or `https://example.com/api/files`."""

    def __init__(self, base_url: str, secret: bytes, *, clock: Clock | None = None) -> None:
        if len(secret) < SHORTEST_SECRET:
            raise ConfigError(f"files_signing_key: {SHORTEST_SECRET} bytes or more, not {len(secret)}")
        self.base_url = base_url.rstrip("/")
        self._secret = secret
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"UrlSigner({self.base_url!r})"

    def plain_url(self, key: str) -> str:
        """The URL of a file that needs no signature."""
        return f"{self.base_url}/{quote(key, safe='/')}"

    def read_url(
        self, key: str, *, ttl: timedelta, download: bool = False, filename: str | None = None
    ) -> str:
        """A URL that opens the file for GET and HEAD."""
        says = {"expires": str(self._expiry(ttl))}
        if download:
            says["download"] = "1"
        if filename is not None:
            says["filename"] = _whole_characters(filename)
        return self._signed_url(_READ, key, says)

    def upload(
        self, key: str, *, ttl: timedelta, max_size: int | None, content_type: str, filename: str
    ) -> PresignedUpload:
        """A URL that takes this file by PUT, and how to use it."""
        expiry = self._expiry(ttl)
        says = {"expires": str(expiry), "type": content_type, "filename": _whole_characters(filename)}
        if max_size is not None:
            says["max"] = str(max_size)
        return PresignedUpload(
            url=self._signed_url(_UPLOAD, key, says),
            method=_UPLOAD,
            expires_at=datetime.fromtimestamp(expiry, UTC),
            headers={"Content-Type": content_type},
        )

    def check_read(self, key: str, query: Mapping[str, str]) -> ReadGrant | None:
        """What the query of a URL allows on GET and HEAD; None if it is changed, expired or not signed."""
        if not self._is_valid(_READ, key, query, ("expires", "download", "filename")):
            return None
        return ReadGrant(query.get("download") == "1", query.get("filename"))

    def check_upload(self, key: str, query: Mapping[str, str]) -> UploadGrant | None:
        """What the query of a URL allows on PUT; None if it is changed, expired or not signed."""
        if not self._is_valid(_UPLOAD, key, query, ("expires", "max", "type", "filename")):
            return None
        most = int(query["max"]) if "max" in query else None
        return UploadGrant(most, query.get("type", ""), query.get("filename", ""))

    def _expiry(self, ttl: timedelta) -> int:
        return min(int((self._clock.now() + ttl).timestamp()), _LATEST)

    def _signed_url(self, method: str, key: str, says: dict[str, str]) -> str:
        query = {**says, "signature": self._signature(method, key, says)}
        return f"{self.plain_url(key)}?{urlencode(query, quote_via=quote)}"

    def _signature(self, method: str, key: str, says: Mapping[str, str]) -> str:
        # JSON, because with mere separators a key could end where another part seems to begin.
        text = json.dumps([method, key, sorted(says.items())])
        return hmac.new(self._secret, text.encode(), sha256).hexdigest()

    def _is_valid(self, method: str, key: str, query: Mapping[str, str], names: tuple[str, ...]) -> bool:
        says = {name: query[name] for name in names if name in query}
        right_signature = self._signature(method, key, says).encode()
        signature = query.get("signature", "").encode("utf-8", "replace")
        # Only after this is anything the query says believed, that is: made by us.
        if not hmac.compare_digest(right_signature, signature):
            return False
        return int(says["expires"]) > self._clock.now().timestamp()


def _whole_characters(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


# The URLs of storages without a server of their own: they lead to this one.


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


# Content-Disposition: which files a browser may show, and the header that names a file.
#
# Only types that run no script of their own are shown; HTML, SVG, XML and all others are downloads. The
# name is written as RFC 6266 and RFC 8187 have it, and nothing of it can end the value or the header.


INLINE_TYPES = frozenset(
    ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "application/pdf", "text/plain"]
)
_ATTR_CHAR = "!#$&+-.^_`|~"  # beside letters and digits, what RFC 8187 leaves unescaped
_NOT_PLAIN = re.compile(r"[^ -~]|[\"\\%]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def media_type(content_type: str) -> str:
    """A content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_inline(content_type: str) -> bool:
    """Whether a browser may show a file of this type instead of downloading it."""
    return media_type(content_type) in INLINE_TYPES


def content_disposition(filename: str, *, inline: bool) -> str:
    """The value of the header for a file of this name, which may be anything a client sent."""
    kind = "inline" if inline else "attachment"
    name = _CONTROL.sub("", filename.encode("utf-8", "replace").decode()).strip()
    if not name:
        return kind
    plain = _NOT_PLAIN.sub("_", name)
    if plain == name:
        return f'{kind}; filename="{plain}"'
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe=_ATTR_CHAR)}"
