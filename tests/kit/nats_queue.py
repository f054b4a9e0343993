"""What a queue keeps in NATS, and a NATS server of a test's own."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory
from typing import Self

from maniflex.background.jobs.nats import NatsQueue
from tests.kit.processes import free_port
from tests.kit.waiting import until

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import _nats
from _component import find_program


async def delete_stream(queue: NatsQueue) -> None:
    """Remove everything of the queue."""
    await queue._documents._ask(lambda stream: stream.delete_stream(queue.prefix.replace(".", "_")))


async def count_messages(queue: NatsQueue) -> int:
    """How many messages the stream of the queue holds."""
    name = queue.prefix.replace(".", "_")
    info = await queue._documents._ask(lambda stream: stream.stream_info(name))
    return int(info.state.messages)


class PrivateNats:
    """A NATS server of one test, which may be killed and started again on its files."""

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="maniflex-nats-")
        self._port = free_port()
        self._server: Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def streams(self) -> Path:
        """Where the server keeps the files of its streams; there while it has any."""
        return Path(self._directory.name, "jetstream", "$G", "streams")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.kill()
        self._directory.cleanup()

    def start(self) -> None:
        """Come up, and answer before this returns."""
        program = find_program(_nats.PROGRAM)
        assert program is not None, _nats.HELP
        options = ["-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", self._directory.name]
        self._server = Popen([program, *options], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
        until(lambda: _nats.has_jetstream(self._port), "the NATS server")

    def kill(self) -> None:
        """Die as in a crash."""
        assert self._server is not None
        self._server.kill()
        self._server.wait()
