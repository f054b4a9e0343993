"""Under which code a route that nobody decided about is found, and by which names it is silenced."""

from __future__ import annotations

from maniflex.pipeline.operation import Operation
from maniflex.pipeline.routes import Endpoint

WRITES, ACTIONS, FILES_AND_SEARCH, READS = "T101", "T102", "T103", "T104"
_OF_FILES = frozenset({*Operation.FILES, Operation.PRESIGN_UPLOAD})


def code_of_open_route(endpoint: Endpoint) -> str:
    """The code of the check that names the route; empty for those that no check is about."""
    operation, model = endpoint.operation, endpoint.model
    if operation is Operation.ACTION:
        return ACTIONS
    if operation in _OF_FILES or (operation is Operation.SEARCH and model is None):
        return FILES_AND_SEARCH
    if model is None or model.is_internal:
        return ""
    if operation in Operation.WRITES:
        return WRITES
    return READS if operation in Operation.READS else ""


def names_of_route(endpoint: Endpoint, path: str) -> tuple[str, ...]:
    """What `server.doctor_ignore` may call the route: its model, its method and path, its path."""
    model = endpoint.model
    names = (f"{endpoint.method} {path}", path)
    return names if model is None else (model.name, *names)
