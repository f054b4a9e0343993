"""How a replica is: whether it answers, how far it has come, and which reads it may serve.

Positions are those of the primary's log (WAL), as numbers. The primary is asked once a second where it is;
by that the age of what the replica shows is known without comparing the clocks of two machines.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

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
# The same, when the server was started (which tells servers apart), and whether it takes writes.
PRIMARY_STATE = Sql(f"SELECT ({POSITION.text}), pg_postmaster_start_time()")
REPLICA_STATE = f"SELECT ({REPLAYED.text}), pg_postmaster_start_time(), NOT pg_is_in_recovery()"
CLUSTER = Sql("SELECT system_identifier, current_database() FROM pg_control_system()")
MOST_SAMPLES = 3600

log = logging.getLogger("maniflex.db")


class Replica:
    """What is known of one replica; `max_lag` of 0 takes it however far it is behind."""

    def __init__(self, label: str, max_lag: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.label = label
        self.is_up = False
        self.lag = 0.0  # seconds
        self._max_lag = max_lag
        self._clock = clock
        self._position = 0
        self._sampled_at = 0.0
        self._ahead: deque[tuple[float, int]] = deque()  # when the primary was where the replica is not yet
        self._is_reported_late = self._is_reported_away = False

    @property
    def is_usable(self) -> bool:
        return self.is_up and not self.is_late

    @property
    def is_late(self) -> bool:
        return 0 < self._max_lag < self.lag

    def may_serve(self, reader: ReplicaReader) -> bool:
        """Whether the reader may ask the replica, which must then have come to `reader.position`."""
        if reader.needs_primary or reader.open_writes or not self.is_usable:
            return False
        if reader.written_at:
            if self._sampled_at < reader.written_at:  # where that write is has not been asked yet
                return False
            reader.position, reader.written_at = max(reader.position, self._position), 0.0
        return True

    def note_primary(self, asked_at: float, position: int) -> None:
        """All that was committed before `asked_at` is before `position`."""
        if position < self._position:  # of a server that was promoted without the last of the old log
            self._ahead.clear()
        is_ahead = position > self._position and len(self._ahead) < MOST_SAMPLES
        self._sampled_at, self._position = asked_at, position
        if is_ahead:
            self._ahead.append((asked_at, position))

    def note_replayed(self, position: int) -> None:
        """The replica answers, and shows all that is before `position`."""
        while self._ahead and self._ahead[0][1] <= position:
            self._ahead.popleft()
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
