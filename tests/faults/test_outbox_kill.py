"""A relay that is killed in the middle of a batch has little to repeat: it notes what it did as it goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.background.outboxes import Bench, a_bench, until

MESSAGES = 40
BEFORE_THE_KILL = 25
ROOT = Path(__file__).parents[2]

# The parent says when a handler returns, so that no clock decides how far the relay has come.
RELAY = """
import asyncio, sys
from tests.background.outboxes import a_bench

async def main():
    def declare(outbox):
        @outbox.handler("note")
        async def note(message):
            print(message.payload, flush=True)
            await asyncio.to_thread(sys.stdin.readline)

    async with a_bench(sys.argv[1], declare, auto_migrate=False, work_lease=1.0, outbox_poll_interval=0.2,
                       outbox_batch_size=50, lock_timeout=30) as bench:
        await bench.outbox.worker().run()

asyncio.run(main())
"""


class Relay:
    """A relay in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begun(self) -> int:
        """The message whose handler begins now."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def go_on(self) -> None:
        """Let the handler return."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def a_relay(url: str, folder: Path) -> Iterator[Relay]:
    script = folder / "relay.py"
    script.write_text(RELAY)
    process = subprocess.Popen(
        [sys.executable, script, url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        relay = Relay(process)
        try:
            yield relay
        finally:
            relay.kill()


async def known(bench: Bench, count: int) -> bool:
    """Whether the database knows that so many messages were delivered."""
    return len(await bench.rows(status="delivered")) >= count


async def test_a_relay_killed_in_the_middle_of_a_batch_repeats_only_what_it_did_since_it_last_wrote(
    database_url: str, tmp_path: Path
) -> None:
    handled: list[int] = []
    async with a_bench(database_url, lock_timeout=30) as bench:
        async with bench.server.transaction():
            await bench.outbox.enqueue_many("note", range(MESSAGES))
        with a_relay(database_url, tmp_path) as relay:
            for n in range(BEFORE_THE_KILL):
                handled.append(relay.begun())
                if n % 5 == 0:  # as if the handlers before had taken longer than writing does
                    await until(partial(known, bench, n))
                relay.go_on()
            handled.append(relay.begun())
            await until(partial(known, bench, BEFORE_THE_KILL))
            assert len(await bench.rows(status="delivered")) < MESSAGES  # the batch is not through
        with a_relay(database_url, tmp_path) as relay:
            while len(set(handled)) < MESSAGES:
                handled.append(relay.begun())
                relay.go_on()
            await until(partial(known, bench, MESSAGES), 60)

    # Only the message it was killed over comes again.
    assert len(handled) == MESSAGES + 1
    assert handled.count(BEFORE_THE_KILL) == 2
