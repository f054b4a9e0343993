"""Idempotency keys: a request that is sent again has its effect once and gets the first answer."""

from maniflex.middleware.idempotency.keys import keys

__all__ = ["keys"]
