"""Names of models, tables and fields as people read them."""

from __future__ import annotations

import re

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def title_of(name: str) -> str:
    """`OrderLine` and `order_line` → `Order line`.

    >>> title_of("HTTPRequest"), title_of("publish_at")
    ('HTTP request', 'Publish at')
    """
    words = [word for word in _CAMEL.sub(" ", name).replace("_", " ").split() if word]
    if len(words) > 1 and words[-1].lower() == "id":
        words.pop()
    text = " ".join(word if word.isupper() and len(word) > 1 else word.lower() for word in words)
    return text[:1].upper() + text[1:] or name
