"""Idempotency keys: a request that is sent again has its effect once and gets the first answer."""

from maniflex._callables import explain_section
from maniflex.middleware.idempotency.keys import keys

__all__ = ["keys"]

explain_section(globals(), "idempotency", __all__)
