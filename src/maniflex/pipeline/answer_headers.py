"""Headers that code adds to every kind of answer: a record, a refusal, a stream."""

from __future__ import annotations

import re
from datetime import timedelta

Header = tuple[bytes, bytes]

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_COOKIE_TEXT = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
_ATTRIBUTE = re.compile(r"[\x20-\x3a\x3c-\x7e]*")
_OURS = frozenset({"connection", "content-length", "content-type", "transfer-encoding", "x-request-id"})
_SAME_SITE = {"lax": "Lax", "strict": "Strict", "none": "None"}


class AnswerHeaders:
    """The part of a context that adds headers to its answer."""

    extra_headers: list[Header] | None = None

    def add_header(self, name: str, value: str) -> None:
        """Send this header with the answer, also with a refusal; the same name may be added several times."""
        if not _TOKEN.fullmatch(name) or name.lower() in _OURS:
            raise ValueError(f"{name!r} is no name of a header that can be added")
        if any(ord(letter) < 32 and letter != "\t" for letter in value):
            raise ValueError(f"the header {name!r} contains a control character")
        header = name.lower().encode("ascii"), value.encode("latin-1")
        if self.extra_headers is None:
            self.extra_headers = [header]
        else:
            self.extra_headers.append(header)

    def set_cookie(
        self,
        name: str,
        value: str,
        *,
        max_age: timedelta | float | None = None,
        path: str = "/",
        domain: str | None = None,
        secure: bool = True,
        http_only: bool = True,
        same_site: str = "lax",
    ) -> None:
        """Have the client keep a cookie; `max_age=0` takes one away."""
        if not _TOKEN.fullmatch(name) or not _COOKIE_TEXT.fullmatch(value):
            raise ValueError(f"the cookie {name!r} has letters that no cookie can carry")
        if not _ATTRIBUTE.fullmatch(path + (domain or "")):
            raise ValueError(f"the path or domain of the cookie {name!r} cannot be written")
        parts = [f"{name}={value}", f"Path={path}"]
        if max_age is not None:
            seconds = max_age.total_seconds() if isinstance(max_age, timedelta) else max_age
            parts.append(f"Max-Age={int(seconds)}")
        if domain is not None:
            parts.append(f"Domain={domain}")
        parts += [*(["Secure"] if secure else []), *(["HttpOnly"] if http_only else [])]
        self.add_header("set-cookie", "; ".join([*parts, f"SameSite={_SAME_SITE[same_site.lower()]}"]))
