"""uvicorn's HTTP protocol, ours, with an access log."""

from __future__ import annotations

from typing import Any

from maniflex.http.access_log import AccessLog, log
from maniflex.http.protocol import PatientProtocol
from maniflex.pipeline.observation import Observation, write_access_line


class LoggingProtocol(PatientProtocol):
    """One connection whose requests are logged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = getattr(self._server, "serve_logged", None) or AccessLog(self.app).serve

    def note_refused(self, seen: Observation) -> None:
        super().note_refused(seen)
        settings = getattr(self._server, "config", None)
        write_access_line(log, seen._replace(service=getattr(settings, "service_name", "")))
