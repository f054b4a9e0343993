"""Budgets and caches around the database step."""

from maniflex.middleware.db.paginate import paginate
from maniflex.middleware.db.rate_limit import rate_limit, rate_limit_field

__all__ = ["paginate", "rate_limit", "rate_limit_field"]
