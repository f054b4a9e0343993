"""A process that the tests fork is what they would have started: what it sees, and how it ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.kit.forks import START_ANEW, ForkedProcess
from tests.kit.processes import run_command, serve_process

APP = """
import json, logging, os, signal, sys, threading
from maniflex import Server

server = Server()
seen = {
    "arguments": sys.argv,
    "directory": os.getcwd(),
    "environment": dict(os.environ),
    "files": sorted(os.listdir("/proc/self/fd"), key=int)[:-1],
    "handlers": [str(signal.getsignal(one)) for one in signal.valid_signals()],
    "input": sys.stdin.read(),
    "leads its session": os.getsid(0) == os.getpid(),
    "loggers": repr(logging.getLogger().handlers),
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "path": sys.path,
    "threads": threading.active_count(),
}
print(json.dumps(seen, indent=1, sort_keys=True))
print("to the errors", file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["check", "app:server"], ["check", "nowhere:server"], ["no such"]])
def test_it_sees_what_a_started_one_sees(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.setenv("GIVEN_LATER", "1")
    ends = []
    for is_started in "1", "0":
        monkeypatch.setenv(START_ANEW, is_started)
        end = run_command(*arguments, cwd=tmp_path, stdin="line\nline\n", **{START_ANEW: "?"})
        ends.append((end.returncode, end.stdout.splitlines(), end.stderr))
    assert ends[0] == ends[1]


def test_its_end_by_a_signal_is_told(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from maniflex import Server\nserver = Server()\n")
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)):
        with serve_process(tmp_path, **{START_ANEW: "0"}) as served:
            assert isinstance(served.process, ForkedProcess)
            assert served.process.poll() is None
            served.send(number)
            assert served.ended() == code
            assert served.process.poll() == code
