"""Forks a process that runs `maniflex` for each message on its standard input, which is a socket.

A message holds the arguments, the directory and the environment, and four files: standard input, output and
errors, and a pipe that is told the process id at once and the exit code in the end.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping

from maniflex.cli.entry import run_program

LATER = (  # what commands import when they need it
    "alembic.command",
    "argon2",
    "asyncpg",
    "jinja2",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.websockets.auto",
)
LONGEST_MESSAGE = 2**20


def serve(requests: socket.socket) -> None:
    """Fork for every message; returns in the forked processes only."""
    pipes: dict[int, int] = {}

    def tell_exit_codes(*_: object) -> None:
        while pipes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            pipe = pipes.pop(pid)
            os.write(pipe, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(pipe)

    signal.signal(signal.SIGCHLD, tell_exit_codes)
    while True:
        message, files, _, _ = socket.recv_fds(requests, LONGEST_MESSAGE, 4)
        if not message:
            os._exit(0)
        # Its end is to be heard of when its pipe is known, not before.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid:
            pipes[pid] = files.pop()
            os.write(pipes[pid], f"{pid}\n".encode())
        else:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            become(files, **json.loads(message))
        for file in (*files, *(() if pid else pipes.values())):
            os.close(file)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        if not pid:
            return


def become(files: list[int], *, arguments: list[str], cwd: str, environment: dict[str, str]) -> None:
    """Take on what a started process would have had from its beginning."""
    os.setsid()
    os.chdir(cwd)
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    own_places = search_path(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    rest = sys.path[len(own_places) :]
    sys.path[:] = [os.path.dirname(arguments[0]), *search_path(environment), *rest]


def search_path(environment: Mapping[str, str]) -> list[str]:
    places = environment.get("PYTHONPATH")
    return places.split(os.pathsep) if places else []


if __name__ == "__main__":
    for name in LATER:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=0))
    run_program()
