"""Keys that this process settled, with their answers: final until their time is over, so nothing is asked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from maniflex.middleware.stores.port import ClaimState, KeyClaim

Place = tuple[int, str]  # a store and the name of a key in it
_MOST_BYTES = 4 * 1024 * 1024
_ENTRY = 1000  # bytes that one takes besides its answer
REUSED = KeyClaim(ClaimState.REUSED)


@dataclass(frozen=True, slots=True)
class _SettledKey:
    fingerprint: str
    claim: KeyClaim
    until: datetime
    size: int


class SettledKeys:
    """The latest of them; the oldest make room."""

    def __init__(self) -> None:
        # Not a dict, which looks for its first key past all those that made room before.
        self.keys: OrderedDict[Place, _SettledKey] = OrderedDict()
        self._bytes = 0

    def find(self, place: Place, fingerprint: str, now: Callable[[], datetime]) -> KeyClaim | None:
        """What a claim would find; None when this process does not know."""
        key = self.keys.get(place)
        if key is None:
            return None
        if key.until <= now():
            self._drop(place)
            return None
        return key.claim if key.fingerprint == fingerprint else REUSED

    def note(self, place: Place, fingerprint: str, answer: bytes | None, until: datetime) -> None:
        self._drop(place)
        size = _ENTRY + len(answer or b"")
        self.keys[place] = _SettledKey(fingerprint, KeyClaim(ClaimState.SETTLED, answer=answer), until, size)
        self._bytes += size
        while self._bytes > _MOST_BYTES:
            self._drop(next(iter(self.keys)))

    def _drop(self, place: Place) -> None:
        key = self.keys.pop(place, None)
        if key is not None:
            self._bytes -= key.size
