"""Keys whose answer this process has given: final until their time is over, so nothing is asked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

import msgspec

from maniflex.middleware.stores.port import ClaimState, KeyClaim
from maniflex.middleware.stores.units import nanoseconds

Place = tuple[int, str]  # the number of a store, and the name of a key in it
_MOST_BYTES = 4 * 1024 * 1024
_ENTRY = 1000  # bytes that one takes besides its answer
REUSED = KeyClaim(ClaimState.REUSED)


class _SettledKey(msgspec.Struct, frozen=True, gc=False):
    fingerprint: str
    claim: KeyClaim
    size: int


class SettledKeys:
    """Those that were asked for last; the others make room."""

    def __init__(self) -> None:
        # Not a dict, which looks for its first key past all those that made room before.
        self.keys: OrderedDict[Place, _SettledKey] = OrderedDict()
        self._bytes = 0

    def find(self, place: Place, fingerprint: str, now: Callable[[], datetime]) -> KeyClaim | None:
        """What a claim would find; None when this process does not know."""
        key = self.keys.get(place)
        if key is None:
            return None
        if key.claim.until <= nanoseconds(now()):
            self._drop(place)
            return None
        self.keys.move_to_end(place)
        return key.claim if key.fingerprint == fingerprint else REUSED

    def note(self, place: Place, fingerprint: str, key: KeyClaim) -> None:
        """Remember a settled key that says how long it counts."""
        keys, answer = self.keys, key.answer
        if place in keys:
            self._drop(place)
        size = _ENTRY if answer is None else _ENTRY + len(answer)
        keys[place] = _SettledKey(fingerprint, key, size)
        self._bytes += size
        while self._bytes > _MOST_BYTES:
            self._bytes -= keys.popitem(last=False)[1].size

    def _drop(self, place: Place) -> None:
        self._bytes -= self.keys.pop(place).size
