"""How the API description names the ways of proving who is asking: one name for each form of credential."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Schemes = dict[str, Mapping[str, Any]]

BEARER: Schemes = {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
BASIC: Schemes = {"basic": {"type": "http", "scheme": "basic"}}
_UNUSABLE = re.compile(r"[^A-Za-z0-9._-]")  # in the name of a scheme


def header_scheme(header: str) -> Schemes:
    """A credential that stands alone in a header."""
    return {f"header_{_plain(header)}": {"type": "apiKey", "in": "header", "name": header}}


def cookie_scheme(cookie: str) -> Schemes:
    """A credential in a cookie."""
    return {f"cookie_{_plain(cookie)}": {"type": "apiKey", "in": "cookie", "name": cookie}}


def _plain(name: str) -> str:
    return _UNUSABLE.sub(lambda match: f".{ord(match[0]):x}", name)
