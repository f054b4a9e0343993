"""Which reads a replica may serve, and how far behind it is."""

from __future__ import annotations

import pytest

from maniflex.db.current import OnPrimary, ReplicaReader, current_reader
from maniflex.db.postgres.replicated import Place, Replica
from maniflex.http.read_positions import read_token, write_token


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def at(replica: Replica, clock: Clock, *, primary: int, replayed: int, timeline: int = 1) -> float:
    """The lag after both were asked."""
    replica.note_primary(clock.now, Place(timeline, primary))
    replica.note_replayed(replayed)
    return replica.lag


def test_the_lag_is_the_age_of_the_first_thing_that_is_missing(clock: Clock) -> None:
    replica = Replica("here", 3, clock)
    assert at(replica, clock, primary=10, replayed=10) == 0
    clock.now += 60
    assert at(replica, clock, primary=10, replayed=10) == 0  # nobody writes
    assert at(replica, clock, primary=20, replayed=10) == 0
    clock.now += 2
    assert at(replica, clock, primary=30, replayed=15) == 2
    assert replica.may_serve(ReplicaReader())
    clock.now += 2
    assert at(replica, clock, primary=40, replayed=15) == 4
    assert not replica.may_serve(ReplicaReader())
    assert at(replica, clock, primary=40, replayed=30) == 0
    assert replica.may_serve(ReplicaReader())


def test_after_a_failover_the_log_may_begin_again_further_back(clock: Clock) -> None:
    replica = Replica("here", 3, clock)
    at(replica, clock, primary=10, replayed=10)
    at(replica, clock, primary=1000, replayed=10)  # never sent to the server that is promoted now
    clock.now += 60
    assert at(replica, clock, primary=20, replayed=20) == 0
    assert replica.is_usable
    clock.now += 60
    assert at(replica, clock, primary=30, replayed=20) == 0


def test_a_limit_of_zero_takes_any_lag(clock: Clock) -> None:
    replica = Replica("here", 0, clock)
    at(replica, clock, primary=10, replayed=0)
    clock.now += 1e6
    assert at(replica, clock, primary=20, replayed=0) == 1e6
    assert replica.is_usable


def test_a_reader_that_wrote_waits_until_the_position_of_its_write_is_known(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maniflex.db.current.time.monotonic", clock)
    replica = Replica("here", 10, clock)
    at(replica, clock, primary=10, replayed=10)
    reader = ReplicaReader()
    assert replica.may_serve(reader)
    reader.begin_write()
    assert not replica.may_serve(reader)  # it may be committed any moment
    clock.now += 1
    reader.end_write()
    assert not replica.may_serve(reader)
    clock.now += 1
    at(replica, clock, primary=30, replayed=10)
    assert (replica.may_serve(reader), reader.position) == (True, 30)  # where a connection has come to 30


def test_a_replica_that_is_away_serves_nobody(clock: Clock) -> None:
    replica = Replica("here", 10, clock)
    assert not replica.may_serve(ReplicaReader())
    at(replica, clock, primary=10, replayed=10)
    assert replica.may_serve(ReplicaReader())
    replica.note_away(TimeoutError())
    assert not replica.may_serve(ReplicaReader())


def test_what_is_written_in_a_block_on_the_primary_counts_outside_of_it() -> None:
    outer = ReplicaReader()
    before = current_reader.set(outer)
    with OnPrimary():
        inner = current_reader.get()
        assert inner is not None
        assert inner.needs_primary
        inner.begin_write()
        inner.end_write()
    assert current_reader.get() is outer
    assert (outer.has_written, outer.needs_primary, outer.open_writes) == (True, False, 0)
    current_reader.reset(before)


def test_a_replica_is_read_from_once_its_age_is_known(clock: Clock) -> None:
    replica = Replica("here", 10, clock)
    at(replica, clock, primary=100, replayed=50)  # an hour old, or a moment
    assert not replica.may_serve(ReplicaReader())
    clock.now += 1
    at(replica, clock, primary=200, replayed=100)
    assert replica.may_serve(ReplicaReader())
    clock.now += 1
    at(replica, clock, primary=210, replayed=200, timeline=2)  # promoted, and the replica may follow or not
    assert not replica.may_serve(ReplicaReader())
    at(replica, clock, primary=210, replayed=210, timeline=2)
    assert replica.may_serve(ReplicaReader())


def test_a_position_of_another_timeline_is_of_a_primary_that_is_not_known_yet(clock: Clock) -> None:
    replica = Replica("here", 10, clock)
    at(replica, clock, primary=100, replayed=100)
    assert replica.may_serve(ReplicaReader(position=90, timeline=1))
    assert not replica.may_serve(ReplicaReader(position=90, timeline=2))


def test_a_replica_ahead_of_the_primary_has_strayed(clock: Clock) -> None:
    replica = Replica("here", 10, clock)
    at(replica, clock, primary=1000, replayed=1000)
    assert not replica.has_strayed(1000)
    assert not replica.has_strayed(1040)  # where a page begins, the two count its header or do not
    assert replica.has_strayed(1100)


@pytest.mark.parametrize("place", [Place(1, 0), Place(7, 0x3000060), Place(2**32 - 1, 2**64 - 1)])
@pytest.mark.parametrize("key", [b"", b"a key", b"long" * 40])
def test_a_place_is_read_from_its_token_by_who_has_the_key(place: Place, key: bytes) -> None:
    token = write_token(place, key)
    assert read_token(token, key) == place
    assert read_token(token, key[1:] + b"another") is None


def test_a_token_is_not_moved_to_another_place() -> None:
    token = write_token(Place(1, 0x3000060), b"key")
    timeline, position, signature = token.split("-")
    assert read_token(f"{timeline}-{position}0-{signature}", b"key") is None
    assert read_token(f"2-{position}-{signature}", b"key") is None
    assert read_token(f"0{token}", b"key") is None


@pytest.mark.parametrize(
    "text",
    ["", "0/3000060", "soon", "0" * 32, "g" * 32, "-" * 32, f"1-2-{'0' * 32}", f"1-2-{chr(0xFF10) * 32}"],
)
def test_anything_else_is_no_place(text: str) -> None:
    assert read_token(text, b"key") is None
