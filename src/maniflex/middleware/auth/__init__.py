"""Auth entries: who is asking, and whether they may."""

from maniflex.middleware.auth.owner import require_owner

__all__ = ["require_owner"]
