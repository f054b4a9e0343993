"""What a handler says for itself: how often it is tried, when, and what stays of its messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from maniflex import DeclarationError
from maniflex.background.outbox.api import Outbox
from maniflex.background.outbox.handlers import MessageHandler
from maniflex.background.outbox.message import Message
from maniflex.testing.clock import FakeClock
from tests.kit.outbox import Seen, a_bench

SECOND = timedelta(seconds=1)


async def fail(message: Message) -> None:
    raise ZeroDivisionError(message.kind)


async def accept(message: Message) -> None:
    """Take the message."""


async def test_a_handler_has_attempts_and_pauses_of_its_own(database_url: str) -> None:
    clock = FakeClock()

    def declare(outbox: Outbox) -> None:
        outbox.handler("twice", max_attempts=2, backoff=lambda failures: 7 * failures)(fail)
        outbox.handler("often")(fail)

    async with a_bench(database_url, declare, clock=clock) as bench:
        await bench.enqueue(("twice", 1), ("often", 1))
        await bench.drain()
        [twice] = await bench.rows(kind="twice")
        assert twice.retry_at == clock.now() + 7 * SECOND

        clock.advance(7 * SECOND)
        await bench.drain()

        [twice], [often] = await bench.rows(kind="twice"), await bench.rows(kind="often")
        assert (twice.status, twice.attempts) == ("dead", 2)
        assert often.status == "pending"


@pytest.mark.parametrize("options", [{"max_attempts": 0}, {"max_attempts": True}, {"backoff": 7}])
async def test_a_wrong_option_stops_the_start(options: dict[str, Any], sqlite_url: str) -> None:
    with pytest.raises(DeclarationError, match=rf"outbox handler 'note': {next(iter(options))}="):
        async with a_bench(sqlite_url, lambda outbox: outbox.handler("note", **options)(accept)):
            pass


async def test_a_handler_of_every_kind_takes_nothing_of_the_framework(database_url: str) -> None:
    seen, mails = Seen("*"), Seen("maniflex.mail")

    async with a_bench(database_url, seen) as bench:
        await bench.enqueue(("maniflex.mail", 1), ("note", 2), ("maniflex.event.billing", 3))
        assert await bench.drain() == 1
        assert seen.payloads == [2]

    def declare_both(outbox: Outbox) -> None:
        seen(outbox)
        mails(outbox)

    async with a_bench(database_url, declare_both) as bench:
        assert await bench.drain() == 1
        assert (seen.payloads, mails.payloads) == ([2], [1])
        assert {row.kind for row in await bench.rows(status="pending")} == {"maniflex.event.billing"}


async def test_a_delivered_message_keeps_no_payload_where_its_handler_says_so(database_url: str) -> None:
    def declare(outbox: Outbox) -> None:
        outbox.handlers.set_handler(MessageHandler.of("secret", accept, forgets_payload=True))
        outbox.handlers.set_handler(MessageHandler.of("shut", fail, forgets_payload=True, max_attempts=1))
        outbox.handler("note")(accept)

    async with a_bench(database_url, declare) as bench:
        await bench.enqueue(("secret", {"text": "s3cret"}), ("note", {"text": "kept"}), ("shut", 7))
        await bench.drain()

        by_kind = {row.kind: (row.status, row.payload) for row in await bench.rows()}
        assert by_kind == {
            "secret": ("delivered", None),
            "note": ("delivered", {"text": "kept"}),
            "shut": ("dead", 7),
        }
