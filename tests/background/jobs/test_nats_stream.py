"""The stream of a queue in NATS is made where the server fails at first, and a server that cannot says so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from uuid import uuid4

import pytest

from maniflex.background.jobs import Job
from maniflex.background.jobs.nats import NatsQueue
from maniflex.errors import Unavailable
from tests.kit.nats_queue import PrivateNats
from tests.kit.schema import warnings

LOGGER = logging.getLogger("maniflex.jobs")
FAILURE = "error creating store for stream"


@pytest.fixture
def prefix() -> str:
    return f"maniflex-test-{uuid4().hex}"


@pytest.fixture
def server_without_place() -> Iterator[PrivateNats]:
    """A server that finds a file where it wants to keep its streams."""
    with PrivateNats() as server:
        server.streams.parent.mkdir()
        server.streams.touch()
        yield server


async def test_a_stream_that_the_server_has_no_place_for_at_first_is_made(
    server_without_place: PrivateNats, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    def make_place(record: logging.LogRecord) -> bool:
        server_without_place.streams.unlink()
        return True

    queue = NatsQueue(server_without_place.url, prefix=prefix)
    LOGGER.addFilter(make_place)
    try:
        await queue.enqueue(Job("a"))
    finally:
        LOGGER.removeFilter(make_place)

    assert len(await queue.claim(("a",), 1)) == 1
    assert warnings(caplog) == [f"the NATS server could not make the stream {prefix}: {FAILURE}"]
    await queue.close()


async def test_a_server_that_has_no_place_for_the_stream_is_unavailable_until_it_has(
    server_without_place: PrivateNats, prefix: str
) -> None:
    queue = NatsQueue(server_without_place.url, prefix=prefix)

    with pytest.raises(Unavailable, match="the job queue cannot be made right now") as problem:
        await queue.enqueue(Job("a"))
    server_without_place.streams.unlink()
    await queue.enqueue(Job("a"))

    assert FAILURE in str(problem.value.__cause__)
    assert len(await queue.claim(("a",), 10)) == 1
    await queue.close()


async def test_a_stream_that_the_server_refuses_is_asked_for_once(
    nats_url: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = NatsQueue(nats_url, prefix=prefix, replicas=3)

    with pytest.raises(Unavailable):
        await queue.open()

    [warning] = warnings(caplog)
    assert "replicas > 1 not supported in non-clustered mode" in warning
