"""Entries about rows: which ones a caller may touch.

from maniflex.middleware import db

server.pipeline.auth.register(db.tenancy("org_id", lambda ctx: ctx.require_auth().claims["org"]))
"""

from maniflex.middleware.db.scopes import force_filter, force_filter_via, tenancy
from maniflex.pipeline.scope_rules import ALL

__all__ = ["ALL", "force_filter", "force_filter_via", "tenancy"]
