"""Serve a server on a socket until it is told to stop: uvicorn, with our one deadline."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

import uvicorn

from maniflex._logging import configure_logging, server_logger
from maniflex._service import cancel_remaining_tasks
from maniflex.config import Config
from maniflex.errors import ConfigError
from maniflex.http.access_log import LoggingProtocol
from maniflex.http.asgi import Send
from maniflex.http.protocol import PatientProtocol, SocketOptions
from maniflex.pipeline.context import AsgiScope, Receive
from maniflex.pipeline.exchange import App


class Application(Protocol):
    """An ASGI application that can be told that shutdown begins."""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None: ...

    def begin_shutdown(self) -> None: ...

    def end_streams(self) -> None: ...

    @property
    def websocket_options(self) -> SocketOptions | None:
        """How its WebSocket connections behave; None where it has none."""

    @property
    def places(self) -> Sequence[tuple[str, str]]:
        """What people look for, each with its path."""

    @property
    def metrics_page(self) -> App:
        """`/metrics` alone."""


log = logging.getLogger("maniflex")


class _Uvicorn(uvicorn.Server):
    """uvicorn that says where it listens, tells the application when shutdown begins and ends with 0."""

    def __init__(self, config: uvicorn.Config, app: Application, settings: Config) -> None:
        super().__init__(config)
        self._app = app
        self._settings = settings
        self.is_stopping = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What the start made stays as long as the process. Walking it again at every full collection
        # would stop all requests for 50 ms and more.
        gc.collect()
        gc.freeze()
        _return_large_memory()
        for listener in sockets or () if self.started else ():
            logger = server_logger(self._settings)
            logger.info("listening on %s", _address(listener))
            for name, path in self._app.places:
                logger.info("%s at %s%s", name, _address(listener), path)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with AsyncExitStack() as stack:
            if self._settings.metrics_enabled and self._settings.metrics_port:
                own = self._settings.with_(port=self._settings.metrics_port, metrics_port=0, access_log=False)
                page = listening(self._app.metrics_page, own, "metrics_port=", "metrics")
                await stack.enter_async_context(page)
            await super().serve(sockets)
        await cancel_remaining_tasks(log)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.is_stopping = True
        self._app.begin_shutdown()
        self._app.end_streams()
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own raises the signal once more at the end, which would turn a clean stop into a failure.
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _return_large_memory() -> None:
    """Let glibc give every large block back to the system when it is freed.

    Otherwise it keeps more and more of them after the first, and large bodies and answers add up.
    """
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 256 * 1024)


_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h


def serve(app: Application, config: Config) -> None:
    """Listen until SIGINT or SIGTERM, then drain the running requests."""
    serve_on(app, config, bind(config.host, config.port))


def serve_on(app: Application, config: Config, listener: socket.socket) -> None:
    """The same on a socket that is bound already."""
    configure_logging(config)
    server = _Uvicorn(uvicorn.Config(app, **uvicorn_settings(config, app.websocket_options)), app, config)
    with listener:
        try:
            server.run(sockets=[listener])
        except SystemExit:  # by uvicorn with a code of its own where the start failed
            if server.started and not server.is_stopping:
                raise
    if not server.started and not server.is_stopping:
        raise SystemExit(1)


@asynccontextmanager
async def listening(app: Any, config: Config, option: str, what: str = "probes") -> AsyncIterator[None]:
    """Answer on a port while the block runs; signals and the life of the application are the caller's."""
    with bind(config.host, config.port, option) as listener:
        server = _Beside(uvicorn.Config(app, **uvicorn_settings(config) | {"lifespan": "off"}), what, config)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await serving


class _Beside(uvicorn.Server):
    """uvicorn that says where it answers probes or metrics, and leaves signals alone."""

    def __init__(self, config: uvicorn.Config, what: str, settings: Config) -> None:
        super().__init__(config)
        self._what = what
        self._settings = settings

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or () if self.started else ():
            server_logger(self._settings).info("answers %s on %s", self._what, _address(listener))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def uvicorn_settings(config: Config, sockets: SocketOptions | None = None) -> dict[str, Any]:
    """What uvicorn is told, however it is started; without `sockets` it loads nothing for WebSockets."""
    if sockets is None:
        websockets: dict[str, Any] = {"ws": "none"}
    else:
        websockets = {
            "ws": "maniflex.http.websocket:SocketProtocol",
            "ws_max_size": sockets.max_message_size,
            "ws_per_message_deflate": sockets.compression,
        }
    return {
        **websockets,
        "host": config.host,
        "port": config.port,
        "loop": "uvloop",
        "http": LoggingProtocol if config.access_log else PatientProtocol,
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_keep_alive": config.keep_alive_timeout.total_seconds(),
        "proxy_headers": False,  # trusted_proxies says whose word is taken
        "timeout_graceful_shutdown": max(int(config.shutdown_timeout.total_seconds()), 1),
    }


def bind(host: str, port: int, option: str = "--port or port=") -> socket.socket:
    """A listening address, or one clear sentence why it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        in_use = error.errno == errno.EADDRINUSE
        reason = "is already in use" if in_use else f"cannot be used ({error.strerror})"
        raise ConfigError(f"port {port} on {host} {reason}; choose another with {option}") from None
    return listener


# Notice the signal that ends the process, also when another server handles it.


LONGEST = 3  # times the delay
LOOK_EVERY = 0.25


class Delay:
    """How long a process goes on after the signal: `seconds`, and up to thrice that while clients come."""

    def __init__(self, seconds: float, has_clients: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._has_clients = has_clients
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return self._seconds > 0

    def begin(self, then: Callable[[], object]) -> None:
        """Call `then` when the delay is over."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + LONGEST * self._seconds

        def look() -> None:
            if loop.time() < latest and self._has_clients():
                self._timer = loop.call_later(LOOK_EVERY, look)
            else:
                then()

        self._timer = loop.call_later(self._seconds, look)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def on_stop_signal(
    call: Callable[[], None], delay: Delay | None = None, at_end: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Call `call` when SIGTERM or SIGINT arrives, `at_end` after the delay, then do what was done before.

    Under a server that is not ours (uvicorn, also as a worker) this is the only word we get that
    shutdown begins: the lifespan message comes after the requests have drained. With a delay the server
    learns of the first signal later, and of a second one at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    loop = asyncio.get_running_loop() if delay else None
    is_told = False

    def notice(number: int, frame: FrameType | None) -> None:
        nonlocal is_told
        call()
        handler = before[signal.Signals(number)]
        if not callable(handler):
            at_end()
            return

        def go_on(frame: FrameType | None = None) -> None:
            at_end()
            handler(number, frame)

        if delay and loop is not None and not is_told:
            loop.call_soon_threadsafe(delay.begin, go_on)
        else:
            if delay:
                delay.cancel()
            go_on(frame)
        is_told = True

    ours = [number for number, handler in before.items() if callable(handler)]
    for number in ours:
        signal.signal(number, notice)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is notice:
                signal.signal(number, before[number])
