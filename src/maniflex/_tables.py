"""Tables by the members of an enum.

A dict of a module or a class whose keys are members has all of them, so that a new member fails
`tests/test_tables.py`, which names the table. One that leaves members out on purpose is a
`PartialTable` and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

K = TypeVar("K", bound=Enum)
V = TypeVar("V")


class PartialTable(dict[K, V]):
    """A table of some members; `others` says what holds for all the rest, also for those to come."""

    __slots__ = ("others",)

    def __init__(self, table: Mapping[K, V], *, others: str) -> None:
        super().__init__(table)
        self.others = others
