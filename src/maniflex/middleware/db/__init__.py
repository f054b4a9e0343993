"""Budgets and caches around the database step."""

from maniflex.middleware.db.cache_query import cache_query
from maniflex.middleware.db.invalidate import invalidate
from maniflex.middleware.db.paginate import paginate
from maniflex.middleware.db.rate_limit import rate_limit, rate_limit_field

__all__ = ["cache_query", "invalidate", "paginate", "rate_limit", "rate_limit_field"]
