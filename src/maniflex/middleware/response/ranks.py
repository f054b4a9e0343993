"""The order in which the entries of this package act on an answer; that of registration has no part in it.

Each acts when the rest of the step is through, so the one with the lowest rank is outermost and acts last.
"""

from __future__ import annotations

CACHE = -50
HEADERS = -40
ENVELOPE = -30
REDACT = -20
TRANSFORM = -10
