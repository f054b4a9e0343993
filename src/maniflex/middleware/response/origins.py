"""Which origins a list of them allows: exact ones, subdomains of a domain, all.

>>> Origins(["https://*.example.com"]).allows("https://shop.example.com")
True
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_ORIGIN = re.compile(
    r"[a-z][a-z0-9+.-]*://(\*\.)?(\[[0-9a-f:.]+\]|[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?)(:\d{1,5})?"
)
_LABELS = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


class Origins:
    """The origins whose pages may read answers."""

    def __init__(self, origins: Iterable[str]) -> None:
        texts = [origin if origin == "null" else origin.lower() for origin in origins]
        self.allows_all = "*" in texts
        self._exact = frozenset(text for text in texts if "*" not in text)
        self._below = tuple(
            (scheme + "://", "." + domain)
            for scheme, _, domain in (text.partition("://*.") for text in texts)
            if domain
        )

    def allows(self, origin: str) -> bool:
        return self.allows_all or origin in self._exact or self._is_below(origin)

    def _is_below(self, origin: str) -> bool:
        return any(
            origin.startswith(start)
            and origin.endswith(end)
            and _LABELS.fullmatch(origin[len(start) : -len(end)]) is not None
            for start, end in self._below
        )


def origin_mistakes(origins: Iterable[object]) -> Iterator[str]:
    """The mistakes in a list of origins, one sentence each."""
    for origin in origins:
        if origin in ("*", "null"):
            continue
        if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin.lower()):
            yield f"{origin!r} is no origin such as 'https://app.example.com' or 'https://*.example.com'"
