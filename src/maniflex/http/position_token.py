"""A place in the log of the primary as clients see it: a text that says nothing to them.

How fast the log grows is how much is written, which is not for everybody to know. So the place is scrambled
by a key that all processes of the database share (four rounds of a Feistel network). A text that was made up
is no place, but for one in 4,000 million.
"""

from __future__ import annotations

from hashlib import blake2b

from maniflex.db.postgres.replicated import Place

_ROUNDS = (b"1", b"2", b"3", b"4")
_HALF = 8  # bytes


def write_token(place: Place, key: bytes) -> str:
    """32 hexadecimal digits.

    >>> read_token(write_token(Place(1, 50331744), b"key"), b"key")
    Place(timeline=1, position=50331744)
    """
    left, right = place.timeline, place.position
    for number in _ROUNDS:
        left, right = right, left ^ _mix(right, number, key)
    return f"{left:016x}{right:016x}"


def read_token(text: str, key: bytes) -> Place | None:
    """The place; None for a text that is none.

    >>> read_token("soon", b"key")
    """
    try:
        both = bytes.fromhex(text)
    except ValueError:
        return None
    if len(both) != 2 * _HALF or len(text) != 4 * _HALF:
        return None
    left, right = int.from_bytes(both[:_HALF]), int.from_bytes(both[_HALF:])
    for number in reversed(_ROUNDS):
        left, right = right ^ _mix(left, number, key), left
    return Place(left, right) if left < 2**32 else None


def _mix(half: int, number: bytes, key: bytes) -> int:
    mixed = blake2b(half.to_bytes(_HALF), digest_size=_HALF, key=key[:64], salt=number)
    return int.from_bytes(mixed.digest())
