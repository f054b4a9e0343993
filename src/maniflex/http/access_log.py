"""One log line for every request that was answered, or whose client left: the logger `maniflex.access`.

A line says method, path, status, milliseconds, bytes, the request id and who asked; never a query
string or a body. In JSON each is a field of its own, and the route too. Probes and metrics are left out.
Only our own servers write it (`maniflex run`, `server.run()`): others have access logs of their own.
"""

from __future__ import annotations

import logging
from typing import Any

from maniflex.http.observing import Observed
from maniflex.http.protocol import PatientProtocol
from maniflex.pipeline.exchange import App
from maniflex.pipeline.observation import Observation, write_access_line

log = logging.getLogger("maniflex.access")

_QUIET = frozenset({"/health", "/live", "/ready", "/metrics"})


class LoggingProtocol(PatientProtocol):
    """One connection whose requests are logged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = AccessLog(self.app)


class AccessLog(Observed):
    """The application, and a line about each request."""

    def __init__(self, app: App) -> None:
        super().__init__(app, (_write,))


def _write(seen: Observation) -> None:
    if seen.path not in _QUIET:
        write_access_line(log, seen)
