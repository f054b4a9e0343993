"""How much one query may ask for."""

from __future__ import annotations

DEFAULT_LIMIT = 20
MAX_LIMIT = 200
MAX_PAGE = 1_000_000_000
MAX_FILTERS = 50
MAX_SORTS = 10
