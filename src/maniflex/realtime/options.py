"""The words of `server.realtime.enable` and of `Hub`: what each may be, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict
from urllib.parse import urlsplit

from maniflex._callables import is_async
from maniflex.background.declaring import as_duration, duration_problems, switch_problems
from maniflex.errors import DeclarationError
from maniflex.events.patterns import read_patterns
from maniflex.http.protocol import SocketOptions
from maniflex.pipeline.registration import takes

Duration = timedelta | float
MISSING = "WebSockets need a package: pip install 'maniflex[realtime]'; ws=None leaves them out"


class HubOptions(TypedDict, total=False):
    """What `enable` and `Hub` take besides who may connect."""

    ws: str | None
    sse: str | None
    visibility: Callable[[Any, Any], Any] | None
    allow_patterns: Sequence[str]
    origins: Sequence[str]
    ping_interval: Duration
    read_timeout: Duration
    send_buffer: int
    send_timeout: Duration
    max_message_size: int | None
    max_connections: int | None
    max_connections_per_caller: int | None
    max_subscriptions: int | None
    resume_buffer: int
    recheck_interval: Duration
    compression: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """How a hub behaves: times in seconds, sizes in bytes, None where there is no limit."""

    ws: str | None = "/ws"
    sse: str | None = "/sse"
    visibility: Callable[[Any, Any], Any] | None = None
    allow_patterns: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    ping_interval: float = 30.0
    read_timeout: float = 60.0
    send_buffer: int = 64
    send_timeout: float = 5.0
    max_message_size: int | None = 64 * 1024
    max_connections: int | None = 10_000
    max_connections_per_caller: int | None = 50
    max_subscriptions: int | None = 100
    resume_buffer: int = 1024
    recheck_interval: float = 30.0
    compression: bool = False

    @property
    def socket_options(self) -> SocketOptions | None:
        """What the protocol of WebSocket connections is told; None where there are none."""
        if self.ws is None:
            return None
        return SocketOptions(
            self.max_message_size, self.ping_interval, self.read_timeout, self.send_timeout, self.compression
        )


_TIMES = ("ping_interval", "read_timeout", "send_timeout", "recheck_interval")
_LIMITS = ("max_message_size", "max_connections", "max_connections_per_caller", "max_subscriptions")
_COUNTS = ("send_buffer", "resume_buffer")


def read_options(given: HubOptions) -> tuple[HubSettings, list[str]]:
    """The options, and what is wrong with those that were given, one sentence each."""
    values: dict[str, Any] = dict(given)
    problems = [*_path_problems(values), *_number_problems(values)]
    for name in _TIMES:
        if name in values:
            wrong = list(duration_problems(**{name: values[name]}))
            problems += wrong
            values[name] = 1.0 if wrong else as_duration(values[name], name).total_seconds()
    patterns, wrong_patterns = read_patterns(values.get("allow_patterns", ()))
    problems += [f"allow_patterns: {text}" for text in wrong_patterns]
    origins, wrong_origins = _read_origins(values.get("origins", ()))
    problems += wrong_origins
    problems += switch_problems(compression=values.get("compression", False))
    problems += _visibility_problems(values.get("visibility"))
    options = HubSettings(**{**values, "allow_patterns": tuple(patterns), "origins": tuple(origins)})
    is_timed = not any(name in text for text in problems for name in ("ping_interval", "read_timeout"))
    if is_timed and options.read_timeout <= options.ping_interval:
        problems.append("read_timeout must be longer than ping_interval, or every idle client is closed")
    return options, problems


def _path_problems(values: dict[str, Any]) -> Iterator[str]:
    paths = {name: values.get(name, default) for name, default in (("ws", "/ws"), ("sse", "/sse"))}
    for name, path in paths.items():
        is_path = isinstance(path, str) and path.startswith("/") and len(path) > 1
        if path is not None and not (is_path and not set(path) & set("{}?#% ") and not path.endswith("/")):
            yield f"{name}={path!r} is no path such as '/{name}', and not None"
            values[name] = f"/{name}"
    if paths["ws"] is None and paths["sse"] is None:
        yield "ws and sse are both None, so that nobody could connect"
    elif paths["ws"] == paths["sse"]:
        yield f"ws and sse are both {paths['ws']!r}"


def _number_problems(values: dict[str, Any]) -> Iterator[str]:
    for name in (*_LIMITS, *_COUNTS):
        value = values.get(name, 1)
        if value is None and name in _LIMITS:
            continue
        if type(value) is not int or value < 1:
            yield f"{name}={value!r} is no number of 1 or more" + (
                "; None means no limit" if name in _LIMITS else ""
            )
            values[name] = 1


def _visibility_problems(visibility: Any) -> Iterator[str]:
    if visibility is None:
        return
    if is_async(visibility):
        yield "visibility is asked for every event and client and cannot wait; it is a plain function"
    elif not takes(visibility, 2):
        yield "visibility is called with (auth, event), which it does not take"


def _read_origins(origins: Any) -> tuple[list[str], list[str]]:
    """The origins as browsers write them, and what is wrong with those that are none."""
    if isinstance(origins, str) or not isinstance(origins, Iterable):
        return [], [f"origins={origins!r} is no list of origins such as 'https://app.example.com'"]
    texts, problems = [], []
    for origin in origins:
        text = _read_origin(origin)
        if text is None:
            problems.append(f"origins: {origin!r} is no origin such as 'https://app.example.com' or '*'")
        else:
            texts.append(text)
    if "*" in texts and len(texts) > 1:
        problems.append("origins: '*' allows all, so that the others mean nothing")
    return texts, problems


def _read_origin(origin: Any) -> str | None:
    if origin == "*":
        return "*"
    if not isinstance(origin, str):
        return None
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    is_bare = not (parts.path or parts.query or parts.fragment or parts.username is not None)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_bare or "*" in origin:
        return None
    usual = {"http": 80, "https": 443}[parts.scheme]
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port in (None, usual) else f":{port}")


def library_problem(options: HubSettings) -> str | None:
    """What has to be installed for these options."""
    if options.ws is None:
        return None
    try:
        import maniflex.http.websocket  # noqa: F401  # it needs the extra
    except ImportError:
        return MISSING
    return None


def raise_problems(where: str, problems: Sequence[str]) -> None:
    """Refuse a declaration with all its mistakes."""
    if problems:
        raise DeclarationError(*(f"{where}: {one}" for one in problems))
