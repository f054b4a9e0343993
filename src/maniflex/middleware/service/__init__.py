"""Service entries: values that the server sets, hashes, copies or takes out before a record is stored.

from maniflex.middleware import service

server.pipeline.service.register(service.hash_field("password"), models=[User])
"""

from maniflex._callables import explain_section
from maniflex.background.feed.entry import emit
from maniflex.middleware.service.send_email import send_email
from maniflex.middleware.service.service_entry import (
    SKIP,
    copy_field,
    hash_field,
    owner_scope,
    set_field,
    slugify_field,
    strip_field,
    timestamp,
    timestamp_when,
)
from maniflex.middleware.service.webhook import webhook

__all__ = [
    "SKIP",
    "copy_field",
    "emit",
    "hash_field",
    "owner_scope",
    "send_email",
    "set_field",
    "slugify_field",
    "strip_field",
    "timestamp",
    "timestamp_when",
    "webhook",
]

explain_section(globals(), "service", __all__)
