"""Which rows a schedule still has to serve: the conditions of its indexes and of its statements.

Values stand in the text, because an index on some rows is used only where the statement repeats
its condition word for word. A row leaves the index when it is served, so what has been served
costs a sweep nothing.

Several times may set one field (`featured_from`, `featured_until`). Of those that have passed the
latest decides, and of equal ones the last declared; else they would undo each other for ever. Where
a later time would make the field what it is now, only the clock can tell whether it already did.
Such rows have an index of their own, by that later time, in which those of the past lie behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.model.schedule import Action, Schedule, schedules
from maniflex.sql.decimal_order import has_order_key, order_column, order_key
from maniflex.sql.literal import literal
from maniflex.sql.statement import Dialect

Condition = sa.ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Rival:
    """Another schedule of the same field that may have been served since."""

    schedule: Schedule
    wins_ties: bool


@dataclass(frozen=True, slots=True)
class Lane:
    """The rows of a schedule that are found by one index."""

    schedule: Schedule
    rivals: tuple[Rival, ...] = ()
    rival: Rival | None = None  # whose value the field has now, at a time after ours


def lanes(meta: ModelMeta) -> Iterator[Lane]:
    """Every lane of every schedule of a model."""
    for schedule in schedules(meta):
        rivals = tuple(_rivals(meta, schedule))
        yield Lane(schedule, rivals)
        for rival in rivals:
            yield Lane(schedule, rivals, rival)


def _rivals(meta: ModelMeta, schedule: Schedule) -> Iterator[Rival]:
    wins_ties = False
    for other in schedules(meta):
        if other.time == schedule.time:
            wins_ties = True
            continue
        undone = not schedule.conditional or other.to == schedule.from_
        if schedule.target and other.target == schedule.target and other.to != schedule.to and undone:
            yield Rival(other, wins_ties)


class Waiting:
    """The conditions of one lane on a table."""

    def __init__(
        self, meta: ModelMeta, lane: Lane, table: FromClause, dialect: Dialect, *, keyed: bool = True
    ) -> None:
        self._meta = meta
        self._keyed = keyed
        self._lane = lane
        self._table = table
        self._dialect = dialect
        self._ours = self._column(lane.schedule.time)

    @property
    def order(self) -> tuple[Any, ...]:
        """The columns of the index, which are those the rows are taken by."""
        later = () if self._lane.rival is None else (self._column(self._lane.rival.schedule.time),)
        return (*later, self._ours, self._column("id"))

    @property
    def condition(self) -> Condition:
        """Whatever the time: it has one, is there, unlocked, and not what the schedule makes of it."""
        return sa.and_(*self._present(), *self._unserved(), *self._rivalry())

    def due(self, now: Any) -> Condition:
        """The time has come, and no later one has."""
        return sa.and_(self.condition, self._ours <= now, *self._still_to_come(now))

    def _present(self) -> Iterator[Condition]:
        yield self._ours.is_not(None)
        deleted = self._meta.soft_delete
        if deleted is not None and self._lane.schedule.action is not Action.HARD_DELETE:
            marker = self._column(deleted.field)
            yield marker.is_(None) if deleted.timestamp else marker.is_(sa.false())
        for lock in self._meta.locks:
            yield self._unlike(lock.field, lock.value)

    def _unserved(self) -> Iterator[Condition]:
        schedule = self._lane.schedule
        if schedule.action is Action.SET_FIELD and schedule.conditional:
            yield self._like(schedule.target, schedule.from_)
        elif schedule.action is Action.SET_FIELD:
            yield self._unlike(schedule.target, schedule.to)

    def _rivalry(self) -> Iterator[Condition]:
        if self._lane.rival is not None:
            schedule = self._lane.rival.schedule
            yield self._like(schedule.target, schedule.to)
            yield sa.not_(self._before(self._lane.rival))
            return
        for rival in self._lane.rivals:
            theirs, to = self._column(rival.schedule.time), rival.schedule.to
            yield sa.or_(self._unlike(rival.schedule.target, to), theirs.is_(None), self._before(rival))

    def _still_to_come(self, now: Any) -> Iterator[Condition]:
        chosen = self._lane.rival
        if chosen is None:
            return
        yield self._column(chosen.schedule.time) > now
        for rival in self._lane.rivals:
            if rival != chosen and rival.schedule.to == chosen.schedule.to:
                theirs = self._column(rival.schedule.time)
                yield sa.or_(theirs.is_(None), self._before(rival), theirs > now)

    def _before(self, rival: Rival) -> Condition:
        theirs = self._column(rival.schedule.time)
        return theirs < self._ours if rival.wins_ties else theirs <= self._ours  # type: ignore[no-any-return]

    def _column(self, name: str) -> Any:
        return self._table.c[self._meta.by_name[name].column]

    def _like(self, name: str, value: Any) -> Condition:
        column = self._compared(name)
        return column.is_(None) if value is None else column == self._text(name, value)  # type: ignore[no-any-return]

    def _unlike(self, name: str, value: Any) -> Condition:
        column, field = self._compared(name), self._field(name)
        if value is None:
            return column.is_not(None)  # type: ignore[no-any-return]
        if field.nullable:
            return column.is_distinct_from(self._text(name, value))  # type: ignore[no-any-return]
        return column != self._text(name, value)  # type: ignore[no-any-return]

    def _compared(self, name: str) -> Any:
        field = self._field(name)
        keyed = self._keyed and has_order_key(field, self._dialect)
        return self._table.c[order_column(field.column) if keyed else field.column]

    def _text(self, name: str, value: Any) -> sa.ColumnElement[Any]:
        field = self._field(name)
        if self._keyed and has_order_key(field, self._dialect):
            return sa.literal_column(literal(order_key(value), Kind.TEXT, self._dialect))
        return sa.literal_column(literal(value, field.kind, self._dialect))

    def _field(self, name: str) -> FieldMeta:
        return self._meta.by_name[name]
