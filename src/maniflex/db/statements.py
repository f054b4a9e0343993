"""What is noticed of statements after they have run: how long they took, and the slow ones in the log.

An adapter calls its one observer after each statement, in the context of the code that asked for it. A
statement is shown by its shape: with every value in it left out.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Protocol

from maniflex._logging import SlowLog
from maniflex.sql.statement import LookupText


class StatementObserver(Protocol):
    """Told of statements that took as long as `after` seconds: most requests have none, and pay nothing."""

    @property
    def after(self) -> float: ...

    def __call__(self, text: str, began: float, ended: float, error: BaseException | None, /) -> None:
        """Text, beginning and end by `perf_counter`, and the error it ended in."""


BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
MOST_DURATIONS = 1000  # that wait to be counted
MOST_LETTERS = 500  # of a shape
_VALUES = re.compile(
    r"'(?:[^']|'')*'"  # a text
    r"|\$(\w*)\$.*?\$\1\$"  # and as PostgreSQL writes long ones
    r"|(?<![\w$:?@.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b",  # a number that is no part of a name or parameter
    re.DOTALL,
)

log = logging.getLogger("maniflex.db")


def shape_of(text: str) -> str:
    """The statement in one line, without the values that are written in it."""
    shape = " ".join(_VALUES.sub("?", text).split())
    return shape if len(shape) <= MOST_LETTERS else shape[:MOST_LETTERS] + "…"


OnStatement = Callable[[str, float, float, BaseException | None], None]


class StatementObservers:
    """One observer that calls several, each of which hears of all statements."""

    after = 0.0

    def __init__(self, observers: Sequence[OnStatement]) -> None:
        self._observers = tuple(observers)

    @classmethod
    def of(cls, observers: Sequence[OnStatement]) -> StatementObserver:
        """One that is alone and says what it wants to know of hears of statements directly."""
        first = observers[0]
        return first if len(observers) == 1 and isinstance(first, OBSERVERS) else cls(observers)

    def __call__(self, text: str, began: float, ended: float, error: BaseException | None) -> None:
        for observer in self._observers:
            observer(text, began, ended, error)


class SlowStatements:
    """Logs statements of one database that took `after` seconds or longer."""

    def __init__(self, label: str, after: float) -> None:
        self.after = after
        self._label = label
        self._log = SlowLog(log)

    def __call__(self, text: str, began: float, ended: float, error: BaseException | None) -> None:
        if ended - began >= self.after:
            self._log.note(f"slow statement on {self._label}", shape_of(text), ended - began)


class StatementDurations:
    """A histogram of how long the statements of one database took."""

    after = 0.0

    def __init__(self, slow: SlowStatements | None = None) -> None:
        """`slow` is told of those that took long enough for it."""
        self._counts = [0] * (len(BUCKETS) + 1)  # by the first bucket that holds them; the longest stand last
        self._total = 0.0
        self._durations: list[float] = []  # not counted yet
        self._slow = slow
        self._slow_after = math.inf if slow is None else slow.after

    def __call__(self, text: str, began: float, ended: float, error: BaseException | None) -> None:
        duration, durations = ended - began, self._durations
        durations.append(duration)
        if duration >= self._slow_after and self._slow is not None:
            self._slow(text, began, ended, error)
        if len(durations) >= MOST_DURATIONS:
            self._fold()

    def _fold(self) -> None:
        durations = self._durations[:]
        del self._durations[: len(durations)]
        self._total += sum(durations)
        for place, count in Counter(map(bisect_left, repeat(BUCKETS), durations)).items():
            self._counts[place] += count

    @property
    def counts(self) -> Sequence[int]:
        """How many there were in each bucket, the longest last."""
        self._fold()
        return self._counts

    @property
    def total(self) -> float:
        """Seconds."""
        self._fold()
        return self._total


OBSERVERS = SlowStatements, StatementDurations


def describe_batch(statements: Sequence[object]) -> str:
    """What a batch is called where a statement has its text."""
    return f"BATCH of {len(statements)}"


# Which statements are known to be quick, so that they need not stand behind slow ones.
#
# A lookup by primary key is quick by its nature. Any other statement is taken for quick after a quick
# run, and no longer after a slow one; on a busy machine even a quick one takes long now and then.


QUICK_SECONDS = 0.05
MOST_TEXTS = 4096


class QuickTexts:
    """Texts of statements whose last run was quick; ask `knows`, tell `note`."""

    __slots__ = ("_within", "texts")

    def __init__(self, within: float = QUICK_SECONDS) -> None:
        self._within = within
        self.texts: set[str] = set()

    def knows(self, text: str) -> bool:
        """Whether the statement is taken for quick."""
        return text in self.texts or type(text) is LookupText

    def note(self, text: str, seconds: float) -> None:
        """Remember how long a run took."""
        if seconds >= self._within:
            self.forget(text)
            return
        self.remember(text)

    def forget(self, text: str) -> None:
        """Take the statement for slow, unless it is a lookup."""
        if type(text) is not LookupText:
            self.texts.discard(text)

    def remember(self, text: str) -> None:
        if len(self.texts) >= MOST_TEXTS:
            self.texts.clear()
        self.texts.add(text)
