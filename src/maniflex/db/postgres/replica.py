"""How a replica is: whether it answers, how far it has come, and which reads it may serve.

Positions are those of the primary's log (WAL), as numbers. The primary is asked once a second where it is;
by that the age of what the replica shows is known without comparing the clocks of two machines. It is known
from when the replica has come to where the primary first was.

A server that is promoted begins a new timeline of the log. A replica may have got more of the old one, and
its positions then say nothing about the new one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from maniflex.db.current import ReplicaReader
from maniflex.sql.statement import Sql

# The next record's place, not the last one on disk: a commit that does not wait for the disk is before it.
# Where a page has nothing but its header yet, the last record ended before that, and no replica gets further.
POSITION = Sql(
    "SELECT place - CASE"
    " WHEN place % pg_size_bytes(current_setting('wal_segment_size')) = 40 THEN 40"
    " WHEN place % current_setting('wal_block_size')::int = 24 THEN 24 ELSE 0 END"
    " FROM (SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint AS place) AS log"
)
REPLAYED = Sql(
    "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
    " - '0/0'::pg_lsn)::bigint"
)
_TIMELINE = "('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int"
PLACE = Sql(f"SELECT {_TIMELINE}, ({POSITION.text})")
# The same, when the server was started (which tells servers apart), and whether it takes writes.
PRIMARY_STATE = Sql(f"{PLACE.text}, pg_postmaster_start_time()")
REPLICA_STATE = f"SELECT ({REPLAYED.text}), pg_postmaster_start_time(), NOT pg_is_in_recovery()"
CLUSTER = Sql("SELECT system_identifier, current_database() FROM pg_control_system()")
MOST_SAMPLES = 3600
PAGE_HEADER = 40  # at most; by this a position may or may not be behind the last record

log = logging.getLogger("maniflex.db")


class Place(NamedTuple):
    """A place in the log of a primary."""

    timeline: int
    position: int


class Replica:
    """What is known of one replica; `max_lag` of 0 takes it however far it is behind."""

    def __init__(self, label: str, max_lag: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.label = label
        self.is_up = False
        self.lag = 0.0  # seconds
        self._max_lag = max_lag
        self._clock = clock
        self._place = Place(0, 0)  # of the primary
        self._sampled_at = 0.0
        self._until = 0  # how far the replica has to come for its lag to be known; 0 if it is
        self._ahead: deque[tuple[float, int]] = deque()  # when the primary was where the replica is not yet
        self._is_reported_late = self._is_reported_away = False

    @property
    def is_usable(self) -> bool:
        return self.is_up and not self.is_late and not (self._until and self._max_lag)

    @property
    def is_late(self) -> bool:
        return 0 < self._max_lag < self.lag

    def may_serve(self, reader: ReplicaReader) -> bool:
        """Whether the reader may ask the replica, which must then have come to `reader.position`."""
        if reader.needs_primary or reader.open_writes or not self.is_usable:
            return False
        if reader.timeline and reader.timeline != self._place.timeline:  # of a primary we do not know yet
            return False
        if reader.written_at:
            if self._sampled_at < reader.written_at:  # where that write is has not been asked yet
                return False
            reader.position, reader.written_at = max(reader.position, self._place.position), 0.0
        return True

    def note_primary(self, asked_at: float, place: Place) -> None:
        """All that was committed before `asked_at` is before `place`."""
        timeline, position = self._place
        is_other = place.timeline != timeline or place.position < position  # than before, or the first
        if is_other:
            self._ahead.clear()
            self._until = place.position
        if (is_other or place.position > position) and len(self._ahead) < MOST_SAMPLES:
            self._ahead.append((asked_at, place.position))
        self._sampled_at, self._place = asked_at, place

    def has_strayed(self, position: int) -> bool:
        """Whether the replica, at `position` before the primary was asked, has what the primary has not."""
        return position > self._place.position + PAGE_HEADER

    def note_replayed(self, position: int) -> None:
        """The replica answers, and shows all that is before `position`."""
        while self._ahead and self._ahead[0][1] <= position:
            self._ahead.popleft()
        if position >= self._until:
            self._until = 0
        self.lag = self._clock() - self._ahead[0][0] if self._ahead else 0.0
        if not self.is_up:
            log.info("%s: it answers, %.1f s behind", self.label, self.lag)
        self.is_up, self._is_reported_away = True, False
        if self.is_late and not self._is_reported_late:
            log.warning("%s: %.1f s behind; reads go to the primary until it is not", self.label, self.lag)
        self._is_reported_late = self.is_late

    def note_away(self, error: BaseException) -> None:
        """The replica does not answer."""
        if not self._is_reported_away:
            log.warning("%s: it does not answer, so reads go to the primary: %s", self.label, _why(error))
        self._is_reported_away = True
        self.is_up = False


def _why(error: BaseException) -> str:
    place = getattr(error, "place", "")
    return "no answer in time" if isinstance(error, TimeoutError) else place or str(error) or repr(error)
