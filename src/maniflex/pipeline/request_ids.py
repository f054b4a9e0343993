"""The id of a request: the one the client sent, or a new one."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping
from typing import Any

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestIds:
    """Gives every request its id."""

    def __init__(self) -> None:
        # An id must be unique and cheap, not secret: a random start and a counter are both.
        self._prefix = secrets.token_hex(8).encode()
        self._count = itertools.count(1)

    def identify(self, scope: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """The ids of the request and of the trace it belongs to."""
        request_id = trace_id = b""
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                if _REQUEST_ID.fullmatch(value):
                    request_id = value
            elif name == b"traceparent":
                trace_id = value
        return request_id or b"%s-%x" % (self._prefix, next(self._count)), trace_id
