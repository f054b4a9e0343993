"""Commands called in a process of somebody else's, such as a test: they end, the process goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.kit.commands import Commands

APP = """
from maniflex import Config, Model, Server

class Post(Model):
    title: str

server = Server(Config.from_env())
server.register(Post)
"""


def test_a_command_does_not_end_the_process_it_was_called_in(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP)
    commands = Commands(tmp_path, sqlite_url, monkeypatch)
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)  # such a thread keeps `maniflex` itself from ending
    thread.start()
    try:
        commands("migrate", "check", "app:server", code=1)
        commands("drain", "app:server")
    finally:
        is_over.set()
        thread.join()
