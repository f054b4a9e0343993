"""Entries for the answers of a server: headers, caching, the form of bodies, and who watches.

server.use(response.cors(["https://app.example.com"]))
server.pipeline.response.register(response.cache(60), models=[Article])
"""

from __future__ import annotations

from maniflex._callables import explain_section
from maniflex.middleware.response.cross_origin import cors
from maniflex.middleware.response.header import add_header, cache, security_headers
from maniflex.middleware.response.redact import envelope, redact_field, transform_field
from maniflex.middleware.response.request_observers import logging, metrics

__all__ = [
    "add_header",
    "cache",
    "cors",
    "envelope",
    "logging",
    "metrics",
    "redact_field",
    "security_headers",
    "transform_field",
]

explain_section(globals(), "response", __all__)
