from __future__ import annotations

import os
import re
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from uuid import UUID

import pytest

from maniflex import _ids
from maniflex._ids import new_id, new_ids


def test_an_id_is_a_uuid_of_version_seven() -> None:
    made = UUID(new_id())

    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", new_id())


def test_ids_of_one_millisecond_are_all_different_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ids, "time_ns", lambda: 2_000_000_000_000 * 1_000_000)

    made = [new_id() for _ in range(50_000)]

    assert made == sorted(set(made))


def test_many_made_at_once_are_as_good_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ids, "time_ns", lambda: 2_000_000_000_001 * 1_000_000)

    made = [new_id(), *new_ids(50_000), new_id()]

    assert made == sorted(set(made))
    assert new_ids(0) == []


def test_order_survives_a_clock_that_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 3_000_000_000_000
    made = []
    for step in (0, 5, -3600_000, -1, 1, 6):
        monkeypatch.setattr(_ids, "time_ns", lambda at=moment + step: at * 1_000_000)
        made.append(new_id())

    assert made == sorted(set(made))


def test_order_survives_a_counter_that_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ids, "time_ns", lambda: 4_000_000_000_000 * 1_000_000)
    before = new_id()
    monkeypatch.setattr(_ids._last, "tail", (1 << 48) - 1)

    after = new_id()

    assert before < after
    assert UUID(after).version == 7


def test_each_thread_sees_its_ids_rise_and_none_twice() -> None:
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda _: [new_id() for _ in range(5_000)], range(4)))

    assert all(batch == sorted(batch) for batch in batches)
    assert len({made for batch in batches for made in batch}) == 20_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_repeats_no_id_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ids, "time_ns", lambda: 5_000_000_000_000 * 1_000_000)
    new_id()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "\n".join(new_id() for _ in range(1_000)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as theirs:
        made_there = set(theirs.read().split())
    os.waitpid(child, 0)

    made_here = {new_id() for _ in range(1_000)}

    assert len(made_there) == 1_000
    assert not made_here & made_there


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_shares_no_random_bytes_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would make the same id in the millisecond in which both take the same ones."""
    start = _ids._last.millisecond + 1
    milliseconds: Iterator[int] = iter((start,))
    monkeypatch.setattr(_ids, "time_ns", lambda: next(milliseconds) * 1_000_000)
    new_id()
    later = range(start + 5, start + 15)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        milliseconds = iter(later)
        os.write(writing, "\n".join(new_id() for _ in later).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as theirs:
        made_there = set(theirs.read().split())
    os.waitpid(child, 0)
    milliseconds = iter((start + 4, *later))  # one more than the child, which began anew when it was forked

    assert len(made_there) == 10
    assert not made_there & {new_id() for _ in range(11)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_makes_event_ids_though_a_thread_was_at_it_when_it_was_forked() -> None:
    held, done = Event(), Event()

    def hold() -> None:
        with _ids.event_ids._lock:
            held.set()
            done.wait()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        held.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are threads
            child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # ends it, should it wait for a thread that it does not have
            os._exit(0 if _ids.event_ids() else 1)
        done.set()

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
