"""How log lines look when maniflex serves: one line of text, or one JSON object.

A line that is written while a request or a run is worked on names it, whichever logger it comes from.
Background work logs through a `GuardedLogger`, so that a log that fails does not fail the work.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from maniflex._caller import current_log_fields

if TYPE_CHECKING:
    from maniflex.config import Config

# Of what a line is about, in the order they are shown.
_CONTEXT = (
    "request_id", "trace_id", "traceparent", "service", "user_id", "tenant_id", "route", "run_id", "run_type",
    "attempt",
)  # fmt: skip
_ATTRIBUTES = (
    *_CONTEXT, "method", "path", "status", "duration_ms", "bytes", "client_ip", "model", "operation",
    "resource_id", "event_type", "event_id", "subject",
)  # fmt: skip
_IN_TEXT = ("trace_id", "user_id", "tenant_id", "route", "run_id")  # behind the request id
_TEXT, _TIME = "%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"
TextValues = tuple[str, str, int, float, int, str, str]  # of a line of the access log, before it is made
Names = tuple[str, str, str]  # of a route, its model and its operation
# The moment, the names, method, path, status, milliseconds, bytes, request id, trace id, user, tenant,
# address of the client, id of the record.
AccessValues = tuple[float, Names, str, str, int, float, int, str, str, str, str, str, str]
WaitingLine = str | TextValues | AccessValues
ACCESS = "maniflex.access"  # the logger of these lines
_ACCESS_LINE = " INFO    %s %s %d %.1f ms %d B%s [%s]\n"
MOST_WAITING = 200  # lines of the access log, written together
FLUSH_AFTER = 0.05  # seconds


def _encode(line: Mapping[str, Any]) -> str:
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except (UnicodeError, TypeError, ValueError):  # half a surrogate pair, a number too large
        return json.dumps(line, default=str)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the known attributes of the request or run."""

    def __init__(self, service: str = "") -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        about = {"service": self.service, **current_log_fields()}
        for name in _ATTRIBUTES:
            if value := getattr(record, name, "") or about.get(name, ""):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encode(line)


class TextFormatter(logging.Formatter):
    """Time, level and message; then the request or run it is about, where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        about = current_log_fields()
        request_id = getattr(record, "request_id", "") or about.get("request_id", "")
        parts = [request_id] if request_id else []
        if not hasattr(record, "status"):  # a line of the access log has the rest in its words
            values = ((name, getattr(record, name, "") or about.get(name, "")) for name in _IN_TEXT)
            parts += [f"{name}={escape_breaks(str(value))}" for name, value in values if value]
        return f"{line} [{' '.join(parts)}]" if parts else line


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes to standard error; lines of the access log without a record for each, and several at once."""

    def __init__(self, *, as_json: bool, service: str) -> None:
        super().__init__()
        self.as_json = as_json
        self.setFormatter(JsonFormatter(service) if as_json else TextFormatter(_TEXT, _TIME))
        self._service = service
        self._objects = AccessObjects(ACCESS, service, _encode)
        # Others may append to it: written ones are taken out of it, and it stays the same list.
        self.waiting: list[WaitingLine] = []
        self._second = 0
        self._clock = ""  # that second, as it is written

    def write_text(self, level: int, message: str, request_id: str) -> None:
        """A line of the access log as `TextFormatter` writes it."""
        about = f" [{request_id}]" if request_id else ""
        self._add(f"{self._text_clock(int(time.time()))} {_LEVELS[level]} {message}{about}\n")

    def _text_clock(self, second: int) -> str:
        if second != self._second:
            self._second, self._clock = second, time.strftime(_TIME, time.localtime(second))
        return self._clock

    def write_json(self, level: int, logger: str, message: str, fields: Mapping[str, Any]) -> None:
        """The same as `JsonFormatter` writes it."""
        line = {
            "time": self._objects.clock(time.time()),
            "level": _LEVELS[level].strip().lower(),
            "logger": logger,
            "message": message,
        }
        if self._service:
            line["service"] = self._service
        line |= {name: value for name, value in fields.items() if value}
        self._add(_encode(line) + "\n")

    def _add(self, line: str) -> None:
        """Keep the line for a moment: a write for each would cost more than all the rest of the line."""
        self.waiting.append(line)  # no lock: other threads take out only what they have seen
        self.flush_in_time()

    def flush_in_time(self) -> None:
        """Write the lines that wait: in a moment after the first of them, at once when there are many."""
        count = len(self.waiting)
        if count >= MOST_WAITING:
            self.flush()
        elif count == 1:
            try:
                asyncio.get_running_loop().call_later(FLUSH_AFTER, self.flush)
            except RuntimeError:  # no loop is running
                self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self._write_waiting()
        super().emit(record)

    def flush(self) -> None:
        self._write_waiting()
        super().flush()

    def _write_waiting(self) -> None:
        if not self.waiting:
            return
        self.acquire()
        try:
            lines = self.waiting[:]
            del self.waiting[: len(lines)]
            self.stream.write(self._json_text(lines) if self.as_json else self._plain_text(lines))
        except Exception as error:
            _complain(error)
        finally:
            self.release()

    def _plain_text(self, lines: Sequence[Any]) -> str:
        pattern = self._text_clock(int(time.time())) + _ACCESS_LINE
        return "".join([pattern % one if isinstance(one, tuple) else one for one in lines])

    def _json_text(self, lines: Sequence[Any]) -> str:
        line = self._objects.line
        return "".join([line(one) if isinstance(one, tuple) else one for one in lines])


_LEVELS = {level: f"{logging.getLevelName(level):<7}" for level in (10, 20, 30, 40, 50)}


def line_handler(logger: logging.Logger) -> LineHandler | None:
    """The handler of all lines of this logger, where it is ours and there is no other, and no filter."""
    root = logging.root
    handlers = root.handlers
    if len(handlers) != 1 or type(handlers[0]) is not LineHandler or not logger.propagate:
        return None
    handler = handlers[0]
    if logger.handlers or logger.filters or handler.filters or logger.parent is not _MANIFLEX:
        return None
    return None if _MANIFLEX.handlers or not _MANIFLEX.propagate or handler.level else handler


_MANIFLEX = logging.getLogger("maniflex")


def configure_logging(settings: Config) -> None:
    """Send log lines to standard error, unless the application has set its own handlers up."""
    root = logging.getLogger()
    root.setLevel(settings.log_level.upper())
    if not root.handlers:
        root.addHandler(LineHandler(as_json=settings.log_json, service=settings.service_name))


def logging_config(settings: Config) -> dict[str, Any]:
    """The same for worker processes, which set their logging up from a mapping."""
    handler = {"()": LineHandler, "as_json": settings.log_json, "service": settings.service_name}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"maniflex": handler},
        "root": {"level": settings.log_level.upper(), "handlers": ["maniflex"]},
    }


OnPanic = Callable[[str, BaseException], Any]


class GuardedLogger(logging.Logger):
    """Logs as the logger it stands for. A log handler that raises costs the line, and not what logged it."""

    def __init__(
        self,
        logger: logging.Logger,
        panic_logger: logging.Logger | None = None,
        hooks: Sequence[OnPanic] = (),
        service: str = "",
    ) -> None:
        super().__init__(logger.name)
        self._logger = logger
        self._service = service  # that its lines name
        self._panics = self
        if panic_logger is not None and panic_logger is not logger:
            self._panics = GuardedLogger(panic_logger, service=service)
        self._hooks = hooks
        self._calls: set[asyncio.Task[Any]] = set()

    def isEnabledFor(self, level: int) -> bool:  # the name is logging's
        return self._logger.isEnabledFor(level)

    def makeRecord(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._logger.makeRecord(*args, **kwargs)
        if self._service and not getattr(record, "service", ""):
            record.service = self._service
        return record

    def handle(self, record: logging.LogRecord) -> None:
        try:
            self._logger.handle(record)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # nothing is awaited in it, so none of this is meant for us
            _complain(error)

    def panic(self, what: str, error: BaseException) -> None:
        """Log an exception that background work did not expect, and tell the application's hooks of it."""
        self._panics.error("%s", what, exc_info=error)
        for hook in self._hooks:
            self._call(hook, what, error)

    def _call(self, hook: OnPanic, what: str, error: BaseException) -> None:
        try:
            outcome = hook(what, error)
            if asyncio.iscoroutine(outcome):
                task = asyncio.get_running_loop().create_task(self._finish(outcome))
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)
        except Exception as failure:
            self.error("on_background_panic failed", exc_info=failure)

    async def _finish(self, call: Any) -> None:
        try:
            await call
        except Exception as failure:
            self.error("on_background_panic failed", exc_info=failure)


def log_panic(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log an exception that background work did not expect, by a logger that may know whom to tell."""
    if isinstance(logger, GuardedLogger):
        logger.panic(what, error)
    else:
        logger.error("%s", what, exc_info=error)


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


def server_logger(settings: Config) -> GuardedLogger:
    """Where a server says what becomes of it: its own logger, if it has one; the lines name its service."""
    return GuardedLogger(settings.logger or _MANIFLEX, service=settings.service_name)


# What was slow: each kind once, and then no more than once in ten seconds with how often it was.


PAUSE = 10.0  # seconds
MOST_SHAPES = 500


class SlowLog:
    """The slow requests, or the slow statements of one database."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._shapes: OrderedDict[str, tuple[float, int]] = OrderedDict()  # when it may be said again; unsaid

    def note(self, what: str, shape: str, seconds: float) -> None:
        """Write a line with the shape, unless there was one about the same a moment ago."""
        now = self._clock()
        again_at, unsaid = self._shapes.pop(shape, (0.0, 0))
        if now < again_at:
            self._shapes[shape] = again_at, unsaid + 1
            return
        self._shapes[shape] = now + PAUSE, 0
        if len(self._shapes) > MOST_SHAPES:
            self._shapes.popitem(last=False)
        others = f" (and {unsaid} more since the last such line)" if unsaid else ""
        self._logger.warning(
            "%s: %.3f s%s: %s", what, seconds, others, shape, extra={"duration_ms": round(seconds * 1000, 3)}
        )


# The line of the access log as one JSON object, for a request that was answered well.
#
# Log lines of a busy server are many, so the object is written out by hand. That is right only while no text
# in it needs an escape; a line with one that does goes through the JSON encoder, like all other lines.


class AccessObjects:
    """Makes the lines from their values."""

    def __init__(self, logger: str, service: str, encode: Callable[[Mapping[str, Any]], str]) -> None:
        self._encode = encode
        self._fixed = {"level": "info", "logger": logger}
        self._service = {"service": service} if service else {}
        self._patterns: dict[tuple[Names, bool, bool, bool, bool, bool], str] = {}
        self._second = 0
        self._clock = ""  # that second, as it is written

    def clock(self, now: float) -> str:
        """A moment as it is written, in UTC."""
        return f"{self._clock_of(int(now))}.{int(now % 1 * 1000):03d}+00:00"

    def _clock_of(self, second: int) -> str:
        if second != self._second:
            self._second, self._clock = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return self._clock

    def line(self, values: AccessValues) -> str:
        """One line, with its end."""
        at, names, method, path, status, ms, size, request_id, trace_id, user, tenant, client, record = values
        texts = f"{method}{path}{request_id}{trace_id}{user}{tenant}{client}{record}"
        if not (texts.isprintable() and request_id and client) or '"' in texts or "\\" in texts:
            return self._encode_line(values)
        kind = names, size > 0, trace_id != "", user != "", tenant != "", record != ""
        pattern = self._patterns.get(kind) or self._pattern(*kind)
        second = int(at)
        return pattern % (
            self._clock_of(second), (at - second) * 1000, method, path, status, ms, size, user, method, path,
            status, ms, size, request_id, trace_id, user, tenant, client, record,
        )  # fmt: skip

    def _pattern(
        self,
        names: Names,
        has_size: bool,
        has_trace: bool,
        has_user: bool,
        has_tenant: bool,
        has_record: bool,
    ) -> str:
        """Where the values of such lines stand; one that is empty is passed over by `%.0s`."""
        actor = " %s" if has_user else "%.0s"
        fields = [
            '{"time":"%s.%03d+00:00"', self._text(self._fixed),
            f',"message":"%s %s %d %.1f ms %d B{actor}"', self._text(self._service), ',"method":"%s"',
            self._text({"route": names[0]}), ',"path":"%s","status":%d,"duration_ms":%.3f',
            ',"bytes":%d' if has_size else "%.0s", ',"request_id":"%s"',
            ',"trace_id":"%s"' if has_trace else "%.0s", ',"user_id":"%s"' if has_user else "%.0s",
            ',"tenant_id":"%s"' if has_tenant else "%.0s", ',"client_ip":"%s"',
            self._text({"model": names[1], "operation": names[2]}),
            ',"resource_id":"%s"' if has_record else "%.0s", "}\n",
        ]  # fmt: skip
        if len(self._patterns) >= _MOST_PATTERNS:
            self._patterns.clear()
        pattern = self._patterns[names, has_size, has_trace, has_user, has_tenant, has_record] = "".join(
            fields
        )
        return pattern

    def _text(self, fields: Mapping[str, str]) -> str:
        """Fixed fields as they stand in a pattern."""
        pairs = [f",{self._encode({name: value})[1:-1]}" for name, value in fields.items() if value]
        return "".join(pairs).replace("%", "%%")

    def _encode_line(self, values: AccessValues) -> str:
        at, names, method, path, status, ms, size, request_id, trace_id, user, tenant, client, record = values
        actor = f" {escape_breaks(user)}" if user else ""
        path = escape_breaks(path)
        fields = {
            "method": method, "route": names[0], "path": path, "status": status, "duration_ms": round(ms, 3),
            "bytes": size, "request_id": request_id, "trace_id": trace_id, "user_id": user,
            "tenant_id": tenant, "client_ip": client, "model": names[1], "operation": names[2],
            "resource_id": record,
        }  # fmt: skip
        line = {
            "time": self.clock(at),
            **self._fixed,
            "message": f"{method} {path} {status} {ms:.1f} ms {size} B{actor}",
            **self._service,
            **{name: value for name, value in fields.items() if value},
        }
        return self._encode(line) + "\n"


_MOST_PATTERNS = 10_000


def escape_breaks(text: str) -> str:
    """The text without line breaks, behind which would stand a line that somebody else has written."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
