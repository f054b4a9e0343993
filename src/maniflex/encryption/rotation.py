"""What a rotation of keys came to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RotationFailure:
    """A value that kept a rotation from writing, or that could not be written; it holds no value."""

    id: str
    field: str
    stage: str  # "open", "digest" or "write"
    reason: str


@dataclass(frozen=True, slots=True)
class RotationReport:
    """What became of the rows of a model."""

    model: str
    total: int = 0  # rows with a value in an encrypted field, behind `after_id`
    rotated: int = 0  # rows that were written, those of an earlier call that was ended included
    skipped: int = 0  # rows that were as they should be, or that somebody else wrote meanwhile
    failures: tuple[RotationFailure, ...] = field(default_factory=tuple)
    last_id: str | None = None  # up to which rows are done
    complete: bool = False  # a last look has found nothing that is left to do
    notes: tuple[str, ...] = ()  # what was done besides, and what has to be done by hand


@dataclass(frozen=True, slots=True)
class KeyCount:
    """How many values of a field are stored under one key."""

    model: str
    field: str
    key_id: str  # empty: plain text
    version: int  # of the envelope; 0: plain text
    count: int
    is_current: bool
    place: str = ""  # the table that holds old texts of the field besides; empty: that of the model
