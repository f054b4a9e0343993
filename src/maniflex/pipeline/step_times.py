"""How long the steps of one request took, and its statements: the header `Server-Timing`.

The time of a middleware includes what it waits for (an admission waits for nothing behind it), so the times
of a request do not add up to its own.
"""

from __future__ import annotations

import re

from maniflex._caller import asking

_NO_TOKEN = re.compile(r"[^A-Za-z0-9!#$%&'*+.^_`|~-]+")


class StepTimes:
    """The times of one request, in the order its steps ended."""

    __slots__ = ("_statements", "_statements_seconds", "_steps")

    def __init__(self) -> None:
        self._steps: list[tuple[str, float]] = []
        self._statements = 0
        self._statements_seconds = 0.0

    def add(self, label: str, seconds: float) -> None:
        self._steps.append((label, seconds))

    def add_statement(self, seconds: float) -> None:
        self._statements += 1
        self._statements_seconds += seconds

    def header(self) -> str:
        """The times as a browser shows them."""
        entries = [_entry(label, seconds, label) for label, seconds in self._steps]
        count = f"{self._statements} statement{'' if self._statements == 1 else 's'}"
        return ", ".join([*entries, _entry("database", self._statements_seconds, count)])


def _entry(label: str, seconds: float, description: str) -> str:
    name = _NO_TOKEN.sub("-", label).strip("-") or "step"
    quoted = description.encode("ascii", "replace").decode().replace("\\", "").replace('"', "")
    described = "" if description == name else f';desc="{quoted}"'
    return f"{name};dur={seconds * 1000:.3f}{described}"


def add_to_request(text: str, began: float, ended: float, error: BaseException | None) -> None:
    """Add a statement to the times of the request that asked for it."""
    times: StepTimes | None = getattr(asking.get(), "step_times", None)
    if times is not None:
        times.add_statement(ended - began)
