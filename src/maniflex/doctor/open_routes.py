"""Which routes nobody decided about: judged here for the doctor, for `production` and for the start alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.routes import Endpoint, Mount

if TYPE_CHECKING:
    from maniflex.doctor.check import Ignore

WRITES, ACTIONS, FILES_AND_SEARCH, READS = "T101", "T102", "T103", "T104"
_OF_FILES = frozenset({*Operation.FILES, Operation.PRESIGN_UPLOAD})


@dataclass(frozen=True, slots=True)
class GuardedRoute:
    """One method on one path, and whether the application said who may use it."""

    path: str  # with the prefix
    endpoint: Endpoint
    is_decided: bool
    authenticators: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.endpoint.method} {self.path}"

    @property
    def passes_auth(self) -> bool:
        """Whether requests to it pass the auth step; probes and the description have their own guards."""
        is_plain = self.endpoint.method not in ("HEAD", "OPTIONS")
        return is_plain and self.endpoint.mount is Mount.API and self.endpoint.context is Context

    @property
    def is_open(self) -> bool:
        """Whether anybody may use it, and nobody said that this is meant."""
        return self.passes_auth and not self.is_decided

    @property
    def code(self) -> str:
        """The code of the check that names it while it is open; empty for those that no check is about."""
        operation, model = self.endpoint.operation, self.endpoint.model
        if operation is Operation.ACTION:
            return ACTIONS
        if operation in _OF_FILES or (operation is Operation.SEARCH and model is None):
            return FILES_AND_SEARCH
        if model is None or model.is_internal:
            return ""
        if operation in Operation.WRITES:
            return WRITES
        return READS if operation in Operation.READS else ""

    @property
    def names(self) -> tuple[str, ...]:
        """What `server.doctor_ignore` may call it: its model, its method and path, its path."""
        model, names = self.endpoint.model, (str(self), self.path)
        return names if model is None else (model.name, *names)

    def is_meant(self, ignores: Iterable[Ignore]) -> bool:
        """Whether a `doctor_ignore` of the application says that it is open on purpose."""
        return any(rule.silences(self.code, self.names) for rule in ignores)
