"""The id of a request: the one the client sent, or a new one; and the trace it is a part of."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping
from typing import Any

MOST_TRACEPARENT = 200
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


# Version, trace, span and flags; zeros are no id.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LENGTH = 55  # of all of them; a later version may have more behind it


def read_traceparent(text: str) -> str:
    """The header `traceparent` as W3C defines it; empty for anything else."""
    text = text.strip()
    if len(text) > MOST_TRACEPARENT or not _TRACEPARENT.match(text):
        return ""
    rest = text[_LENGTH:]
    return text if not rest or (rest[0] == "-" and text[:2] != "00") else ""


class RequestIds:
    """Gives every request its id."""

    def __init__(self) -> None:
        # An id must be unique and cheap, not secret: a random start and a counter are both.
        self._prefix = secrets.token_hex(8).encode()
        self._count = itertools.count(1)

    def identify(self, scope: Mapping[str, Any]) -> tuple[bytes, str]:
        """The id of the request, and the `traceparent` it came with; an unreadable one is as good as none."""
        request_id, traceparent = b"", ""
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                if _REQUEST_ID.fullmatch(value):
                    request_id = value
            elif name == b"traceparent":
                traceparent = read_traceparent(value.decode("latin-1"))
        return request_id or b"%s-%x" % (self._prefix, next(self._count)), traceparent
