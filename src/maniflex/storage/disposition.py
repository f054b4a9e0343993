"""Content-Disposition: which files a browser may show, and the header that names a file.

Only types that run no script of their own are shown; HTML, SVG, XML and all others are downloads. The name is
written as RFC 6266 and RFC 8187 have it, and nothing of it can end the value or the header.
"""

from __future__ import annotations

import re
from urllib.parse import quote

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
