"""What a handler raises, knowingly or not, to leave its worker: a pause, a retry, the way back."""

from __future__ import annotations

from datetime import datetime, timedelta


class Suspend(BaseException):
    """The handler leaves the worker until a time or a signal; no `except Exception` stops it."""

    def __init__(self, until: datetime, waiting_for: str | None = None) -> None:
        self.until, self.waiting_for = until, waiting_for
        super().__init__()


class RetryIn(Exception):
    """The attempt failed, and the handler says when to try again."""

    def __init__(self, delay: timedelta, reason: str) -> None:
        self.delay = delay
        super().__init__(reason)


class Undone(Exception):
    """Raised where a failed saga would go forward again: it only goes back from here."""
