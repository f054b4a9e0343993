"""`maniflex run module:server`: serve it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click
import uvicorn
from uvicorn.supervisors import Multiprocess

from maniflex._logging import configure_logging, logging_config
from maniflex.app.server import Server
from maniflex.cli.process import freeze_objects, load, load_sealed
from maniflex.errors import ManiflexError
from maniflex.http.serve import bind, serve_on, uvicorn_settings
from maniflex.http.welcome import RELOAD_ERROR

IDLE = "_MANIFLEX_IDLE_TARGET"
log = logging.getLogger("maniflex")
STARTS_WITHIN = 60  # seconds; a process that is silent for longer is ended and started anew


@click.command(epilog="Example: maniflex run app:server --port 9000 --reload")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--reload", is_flag=True, help="Start again when code, a template or .env changes.")
@click.option(
    "--no-work", is_flag=True, help="Leave runs, schedules, messages and sweeps to other processes."
)
def run(target: str, host: str | None, port: int | None, workers: int, reload: bool, no_work: bool) -> None:
    """Serve the server until it is interrupted."""
    server = load(target)
    if no_work:
        server.config = server.config.with_(background=False)
    config = server.config.with_(
        host=host or server.config.host, port=server.config.port if port is None else port
    )
    if reload and workers > 1:
        raise click.UsageError("--reload serves with one process; leave out --workers")
    if config.metrics_enabled and config.metrics_port and (workers > 1 or reload):
        raise click.UsageError(
            "metrics_port is one port for one process; leave it out, --workers or --reload"
        )
    try:
        server.seal()
        if workers == 1 and not reload:
            freeze_objects()
            server.run(host=config.host, port=config.port)
            return
        if reload:
            with bind(config.host, config.port) as listener:
                serve_and_reload(target, listener, ["--no-work"] if no_work else [])
            return
        bind(config.host, config.port).close()
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    name = target if ":" in target else f"{target}:server"
    settings = {**uvicorn_settings(config, server.websocket_options), "log_config": logging_config(config)}
    if no_work:
        os.environ[IDLE] = name  # the processes uvicorn starts know nothing else of this one
        name, settings["factory"] = f"{__name__}:idle", True
    configure_logging(config)
    for place, path in server.places:
        log.info("%s at http://%s:%s%s", place, config.host, config.port, path)
    serve_by_processes(name, workers, **settings, timeout_worker_healthcheck=STARTS_WITHIN)


def idle() -> Server:
    """The server of a process that uvicorn starts, without its work."""
    server = load(os.environ[IDLE])
    server.config = server.config.with_(background=False)
    return server


# `maniflex run --reload`: serve, and start anew when a source file, a template or `.env` changes.
#
# The code that was saved is tried in a process of its own first. If it does not import or is not declared
# right, the old code goes on serving, and the error is on the terminal and at `/`. The port stays open
# all the time: requests that come between two processes wait.


LOOK_EVERY = 0.3  # seconds
_WATCHED = {".py", ".html", ".htm", ".jinja", ".jinja2", ".j2", ".css", ".js", ".toml"}
_PASSED_OVER = {"__pycache__", "node_modules", "site-packages", "build", "dist"}
_CHILD = "from maniflex.cli.run import serve_child; serve_child()"
_CHECK = "from maniflex.cli.run import check_code; check_code()"


def serve_and_reload(target: str, listener: socket.socket, options: Sequence[str]) -> None:
    """Serve on this port until SIGINT or SIGTERM, always with code that works."""
    with tempfile.TemporaryDirectory(prefix="maniflex-") as directory:
        reloader = Reloader(target, listener, options, Path(directory) / "error.txt")
        before = {number: signal.signal(number, reloader.stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            reloader.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Reloader:
    """The process that watches files; another one serves."""

    def __init__(self, target: str, listener: socket.socket, options: Sequence[str], error: Path) -> None:
        self._target = target
        self._listener = listener
        self._options = options
        self._error = error
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    def stop(self, *args: object) -> None:
        self._stopping.set()

    def run(self) -> None:
        self._child = self._start()
        files_before = snapshot(Path.cwd())
        while not self._stopping.wait(LOOK_EVERY):
            now = snapshot(Path.cwd())
            if now != files_before:
                changed_paths = sorted({path for path, _ in now.items() ^ files_before.items()})
                files_before = now
                self._reload(changed_paths)
        self._end_child()

    def _reload(self, changed: Sequence[str]) -> None:
        click.echo(f"changed: {', '.join(changed[:3])}{' …' if len(changed) > 3 else ''}", err=True)
        check = self._process(_CHECK, stderr=subprocess.PIPE)
        _, output = check.communicate()
        if check.returncode != 0:
            text = output.decode(errors="replace").strip()
            self._error.write_text(text)
            click.echo(f"{text}\nthe code does not start; the old one goes on serving", err=True)
            return
        with suppress(FileNotFoundError):
            self._error.unlink()
        self._end_child()
        self._child = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return self._process(_CHILD)

    def _process(self, code: str, stderr: int | None = None) -> subprocess.Popen[bytes]:
        number = self._listener.fileno()
        return subprocess.Popen(
            [sys.executable, "-c", code, self._target, str(number), *self._options],
            pass_fds=(number,),
            stderr=stderr,
            env={**os.environ, RELOAD_ERROR: str(self._error)},
        )

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.terminate()
            self._child.wait()


def snapshot(directory: Path) -> dict[str, tuple[int, int]]:
    """When each file that matters was changed, and its size."""
    files: dict[str, tuple[int, int]] = {}
    for path in _files(directory):
        with suppress(OSError):  # it went away meanwhile
            about = path.stat()
            files[str(path.relative_to(directory))] = (about.st_mtime_ns, about.st_size)
    return files


def _files(directory: Path) -> Iterator[Path]:
    for root, directories, names in os.walk(directory):
        directories[:] = [d for d in directories if d not in _PASSED_OVER and not d.startswith(".")]
        for name in names:
            if Path(name).suffix in _WATCHED or name == ".env" or name.startswith(".env."):
                yield Path(root, name)


# -- in the processes that it starts


def _load(arguments: Sequence[str]) -> Server:
    server = load_sealed(arguments[0])
    if "--no-work" in arguments[2:]:
        server.config = server.config.with_(background=False)
    return server


def check_code() -> None:
    """End with 1, and say why, if the code cannot be served."""
    try:
        _load(sys.argv[1:])
    except click.ClickException as error:
        sys.exit(f"Error: {error.format_message()}")


def serve_child() -> None:
    """Serve on the port that the watching process holds."""
    try:
        server = _load(sys.argv[1:])
    except click.ClickException as error:
        sys.exit(f"Error: {error.format_message()}")
    serve_on(server, server.config, socket.socket(fileno=int(sys.argv[2])))


# The parent of several processes that serve: uvicorn's, which also stops while it replaces them.
#
# uvicorn handles signals one after the other, so that one to stop would wait until all processes are
# replaced.


class Supervisor(Multiprocess):
    """Starts the processes and looks after them."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def terminate_all(self) -> None:
        # While this process listens, the kernel takes connections that no process will ever answer.
        for listener in self.sockets:
            listener.close()
        super().terminate_all()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.signal_queue.append(number)
        # Here the event may be just about to wait, and cannot be set by the thread that waits.
        threading.Thread(target=self.should_exit.set).start()


def serve_by_processes(target: str, workers: int, **settings: Any) -> None:
    """Serve what `target` names, in so many processes, until a signal ends it."""
    sys.path.insert(0, ".")
    config = uvicorn.Config(target, workers=workers, **settings)
    with suppress(KeyboardInterrupt), config.bind_socket() as listener:
        Supervisor(config, [listener]).run()
