"""The table of erasures: what was erased, of whom and by whom."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from maniflex.model.base import Model
from maniflex.model.field import field


class ErasureState(StrEnum):
    """How far an erasure is."""

    RUNNING = "running"
    FINISHED = "finished"


class Erasure(Model, table="erasure", headless=True):
    """One erasure: of whom, by whom, and what came of it: ids and numbers, and no value of a record."""

    subject: str = field(index=True, relation=None)
    user_id: str | None = field(default=None, relation=None)
    actor_id: str | None = field(default=None, relation=None)
    reason: str | None = field(default=None)
    state: ErasureState = field(default=ErasureState.RUNNING)
    counts: dict[str, int] = field(default_factory=dict)  # rows by table
    held: list[list[str]] = field(default_factory=list)  # model and id of what `retention_hold` keeps
    restricted: list[list[str]] = field(default_factory=list)  # anonymised, because others need them
    kept: dict[str, int] = field(default_factory=dict)  # records by model, of `on_erase="keep"`
    finished_at: datetime | None = field(default=None, index=True)
