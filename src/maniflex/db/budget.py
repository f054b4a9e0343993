"""How many bytes the rows behind one answer may hold: the reading stops when they are more.

Only for reads that clients cause. What an answer finally weighs is known when it is written; a budget
keeps the rows of one that can only be too large from being read at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import length_hint
from typing import Any, NoReturn

from maniflex.errors import AnswerTooLarge

SMALL = 2 * 1024 * 1024  # bytes of rows that need no turn of their own


class Budget:
    """The bytes of one answer: the most there may be, and those of the rows so far.

    With `small`, rows of more than `SMALL` bytes are refused already, to be read again in their turn.
    Small rows may have gone uncounted where counting costs more than they do.
    """

    __slots__ = ("most", "rows", "used")

    def __init__(self, most: int, *, small: bool = False) -> None:
        self.most = most
        self.rows = SMALL if small and most > SMALL else most
        self.used = 0

    @property
    def is_small(self) -> bool:
        """Whether rows were refused that the answer may have."""
        return self.rows < self.most

    def grow(self, used: int) -> None:
        """Let the rows be as many as the answer may have, and go back to `used` bytes of them."""
        self.rows, self.used = self.most, used

    def spend(self, size: int) -> None:
        """Note `size` more bytes of rows; `AnswerTooLarge` when that is too many."""
        self.used += size
        if self.used > self.rows:
            self.refuse()

    def check(self, size: int) -> None:
        """Refuse an answer of `size` bytes when that is too many."""
        if size > self.most:
            self.refuse()

    def refuse(self) -> NoReturn:
        raise AnswerTooLarge(f"the answer is larger than {self.most} bytes; ask for fewer rows or fields")


def rows_size(rows: Iterable[Sequence[Any]]) -> int:
    """The bytes of the texts in these rows, roughly: what makes rows large is text."""
    return sum(map(length_hint, chain.from_iterable(rows)))  # 0 for what has no length
