"""A relay that is killed in the middle of a batch has little to repeat: it notes what it did as it goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.kit.outbox import Bench, a_bench
from tests.kit.processes import Program, run_program
from tests.kit.waiting import eventually

MESSAGES = 40
BEFORE_THE_KILL = 25

# The parent says when a handler returns, so that no clock decides how far the relay has come.
RELAY = """
import asyncio, sys
from tests.kit.outbox import a_bench

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

    def __init__(self, program: Program) -> None:
        self._program = program

    def begun(self) -> int:
        """The message whose handler begins now."""
        return int(self._program.hear())

    def go_on(self) -> None:
        """Let the handler return."""
        self._program.say()


@contextmanager
def a_relay(url: str) -> Iterator[Relay]:
    """A relay that is killed when the block ends."""
    with run_program(RELAY, url) as program:
        yield Relay(program)


async def known(bench: Bench, count: int) -> bool:
    """Whether the database knows that so many messages were delivered."""
    return len(await bench.rows(status="delivered")) >= count


async def test_a_relay_killed_in_the_middle_of_a_batch_repeats_only_what_it_did_since_it_last_wrote(
    database_url: str,
) -> None:
    handled: list[int] = []
    async with a_bench(database_url, lock_timeout=30) as bench:
        async with bench.server.transaction():
            await bench.outbox.enqueue_many("note", range(MESSAGES))
        with a_relay(database_url) as relay:
            for n in range(BEFORE_THE_KILL):
                handled.append(relay.begun())
                if n % 5 == 0:  # as if the handlers before had taken longer than writing does
                    await eventually(partial(known, bench, n))
                relay.go_on()
            handled.append(relay.begun())
            await eventually(partial(known, bench, BEFORE_THE_KILL))
            assert len(await bench.rows(status="delivered")) < MESSAGES  # the batch is not through
        with a_relay(database_url) as relay:
            while len(set(handled)) < MESSAGES:
                handled.append(relay.begun())
                relay.go_on()
            await eventually(partial(known, bench, MESSAGES), patience=60)

    # Only the message it was killed over comes again.
    assert len(handled) == MESSAGES + 1
    assert handled.count(BEFORE_THE_KILL) == 2
