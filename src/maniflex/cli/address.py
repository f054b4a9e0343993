"""Addresses of databases and brokers as they may be printed: without the secrets in them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

MASK = "********"
# Up to the last @: a password that nobody percent-encoded may hold one.
_PASSWORD = re.compile(r"(://[^:/@\s]*):\S*@")
_PARAMETER = re.compile(r"([?&][^=&\s]*(?:pass|secret|token|key|credential)[^=&\s]*=)[^&\s]*", re.IGNORECASE)
_OURS = "pgbouncer="  # which the programs of PostgreSQL refuse


def mask_address(text: str) -> str:
    """The text with a mask in place of the passwords and keys of the addresses in it."""
    return _PARAMETER.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text))


def address_for_programs(url: str) -> str:
    """The address for a program of PostgreSQL, without the secrets, which it asks for or reads elsewhere."""
    parts = urlsplit(_PASSWORD.sub(r"\1@", url))
    query = [
        parameter
        for parameter in parts.query.split("&")
        if not _PARAMETER.match(f"?{parameter}") and not parameter.startswith(_OURS)
    ]
    return parts._replace(query="&".join(query)).geturl()
