"""Entries about rows: which ones a caller may touch, how often and how many; caches; audit trails.

from maniflex.middleware import db

server.pipeline.auth.register(db.tenancy("org_id", lambda ctx: ctx.require_auth().claims["org"]))
"""

from maniflex._callables import explain_section
from maniflex.audit.entries import audit_action, audit_log, audit_reads
from maniflex.middleware.db.cache_query import cache_query, invalidate
from maniflex.middleware.db.rate_limit import rate_limit, rate_limit_field
from maniflex.middleware.db.scopes import force_filter, force_filter_via, paginate, tenancy
from maniflex.pipeline.rules.scopes import ALL

__all__ = [
    "ALL",
    "audit_action",
    "audit_log",
    "audit_reads",
    "cache_query",
    "force_filter",
    "force_filter_via",
    "invalidate",
    "paginate",
    "rate_limit",
    "rate_limit_field",
    "tenancy",
]

explain_section(globals(), "db", __all__)
