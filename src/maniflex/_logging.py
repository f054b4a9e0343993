"""How log lines look when maniflex serves: one line of text, or one JSON object.

Background work logs through a `GuardedLogger`, so that a log that fails does not fail the work.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, Protocol

_ATTRIBUTES = (
    "request_id", "trace_id", "service",
    "method", "route", "path", "status", "duration_ms", "bytes", "user_id", "tenant_id", "client_ip",
    "model", "operation", "resource_id",
)  # fmt: skip
_TEXT, _TIME = "%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"


class LogSettings(Protocol):
    """The settings this module reads."""

    @property
    def log_level(self) -> str: ...
    @property
    def log_json(self) -> bool: ...
    @property
    def service_name(self) -> str: ...


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the known attributes of the request."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in _ATTRIBUTES if (value := getattr(record, name, ""))}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level and message; the request id where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        request_id = getattr(record, "request_id", "")
        return f"{line} [{request_id}]" if request_id else line


def configure_logging(settings: LogSettings) -> None:
    """Send log lines to standard error, unless the application has set its own handlers up."""
    root = logging.getLogger()
    root.setLevel(settings.log_level.upper())
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if settings.log_json else TextFormatter(_TEXT, _TIME))
    root.addHandler(handler)


def logging_config(settings: LogSettings) -> dict[str, Any]:
    """The same for worker processes, which set their logging up from a mapping."""
    formatter: dict[str, Any] = (
        {"()": JsonFormatter} if settings.log_json else {"()": TextFormatter, "fmt": _TEXT, "datefmt": _TIME}
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"maniflex": formatter},
        "handlers": {"maniflex": {"class": "logging.StreamHandler", "formatter": "maniflex"}},
        "root": {"level": settings.log_level.upper(), "handlers": ["maniflex"]},
    }


class GuardedLogger(logging.Logger):
    """Logs as the logger it stands for. A log handler that raises costs the line, and not what logged it."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger.name)
        self._logger = logger

    def isEnabledFor(self, level: int) -> bool:  # the name is logging's
        return self._logger.isEnabledFor(level)

    def makeRecord(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        return self._logger.makeRecord(*args, **kwargs)

    def handle(self, record: logging.LogRecord) -> None:
        try:
            self._logger.handle(record)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # nothing is awaited in it, so none of this is meant for us
            _complain(error)


def _complain(error: BaseException) -> None:
    """Tell of a log handler that raised where logging itself would."""
    try:
        if logging.raiseExceptions and sys.stderr is not None:
            traceback.print_exception(error, limit=-5)
    except Exception:  # standard error is closed
        pass


def guard_logger(logger: logging.Logger) -> logging.Logger:
    """The logger, guarded if it is not yet."""
    return logger if isinstance(logger, GuardedLogger) else GuardedLogger(logger)
