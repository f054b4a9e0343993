"""Warnings of a start, kept instead of logged: a strict server does not start with any."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LOGGERS = ("maniflex", "maniflex.db", "maniflex.migrate", "maniflex.work")
_collecting: ContextVar[list[str] | None] = ContextVar("maniflex_start_warnings", default=None)


class _Keep(logging.Filter):
    """Takes the warnings of a start that collects them; all other lines pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        warnings = _collecting.get()
        if warnings is None or record.levelno != logging.WARNING:
            return True
        warnings.append(record.getMessage())
        return False


@contextmanager
def collect_warnings(logger: logging.Logger) -> Iterator[list[str]]:
    """Keep what this block would warn of, by this logger or one of ours."""
    warnings: list[str] = []
    loggers = {logger, *map(logging.getLogger, _LOGGERS)}
    keep, token = _Keep(), _collecting.set(warnings)
    for one in loggers:
        one.addFilter(keep)
    try:
        yield warnings
    finally:
        for one in loggers:
            one.removeFilter(keep)
        _collecting.reset(token)


def stop_collecting() -> None:
    """Let what this start still warns of be logged: nothing stops it any more."""
    _collecting.set(None)
