"""Which rows a schedule still has to serve: the conditions of its indexes and of its statements.

Values stand in the text, because an index on some rows is used only where the statement repeats
its condition word for word. A row leaves the index when it is served, so what has been served
costs a sweep nothing.

Several times may set one field (`featured_from`, `featured_until`). Of those that have passed the
latest decides, and of equal ones the last declared; else they would undo each other for ever. A time whose
`where` does not hold decides nothing. Where
a later time would make the field what it is now, only the clock can tell whether it already did.
Such rows have an index of their own, by that later time, in which those of the past lie behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from maniflex.model.field import FieldSchedule, FieldValues, ScheduledAction, schedules
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.sql.codec import literal
from maniflex.sql.decimal_order import has_order_key, order_column, order_key
from maniflex.sql.statement import Dialect, by_dialect

_OF_DELETED_ROWS = (ScheduledAction.HARD_DELETE, ScheduledAction.ERASE)
Condition = sa.ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Rival:
    """Another schedule of the same field that may have been served since."""

    schedule: FieldSchedule
    wins_ties: bool


@dataclass(frozen=True, slots=True)
class ScheduleIndex:
    """The rows of a schedule that are found by one index."""

    schedule: FieldSchedule
    rivals: tuple[Rival, ...] = ()
    rival: Rival | None = None  # whose value the field has now, at a time after ours


def schedule_indexes(meta: ModelMeta) -> Iterator[ScheduleIndex]:
    """Every index of every schedule of a model."""
    for schedule in schedules(meta):
        rivals = tuple(_rivals(meta, schedule))
        yield ScheduleIndex(schedule, rivals)
        for rival in rivals:
            yield ScheduleIndex(schedule, rivals, rival)


def retention_indexes(meta: ModelMeta) -> Iterator[ScheduleIndex]:
    """Every index of the rules by which records of a model go."""
    for schedule in meta.retention:
        yield ScheduleIndex(schedule)


def _rivals(meta: ModelMeta, schedule: FieldSchedule) -> Iterator[Rival]:
    wins_ties = False
    for other in schedules(meta):
        if other.time == schedule.time:
            wins_ties = True
            continue
        undone = not schedule.conditional or other.to == schedule.from_
        if schedule.target and other.target == schedule.target and other.to != schedule.to and undone:
            yield Rival(other, wins_ties)


class Waiting:
    """The conditions of one index on a table."""

    def __init__(
        self,
        meta: ModelMeta,
        schedule_index: ScheduleIndex,
        table: FromClause,
        dialect: Dialect,
        *,
        keyed: bool = True,
    ) -> None:
        self._meta = meta
        self._keyed = keyed
        self._schedule_index = schedule_index
        self._table = table
        self._dialect = dialect
        self._ours = self._column(schedule_index.schedule.time)

    @property
    def order(self) -> tuple[Any, ...]:
        """The columns of the index, which are those the rows are taken by."""
        later = (
            ()
            if self._schedule_index.rival is None
            else (self._column(self._schedule_index.rival.schedule.time),)
        )
        return (*later, self._ours, self._column("id"))

    @property
    def condition(self) -> Condition:
        """The row waits for its time: it has one, is live and unlocked, and its field is not changed yet."""
        return sa.and_(*self._present(), *self._unchanged_target(), *self._rivalry())

    def due(self, now: Any) -> Condition:
        """The time has come, and no later one has."""
        return sa.and_(self.condition, self._ours <= now, *self._still_to_come(now))

    def _present(self) -> Iterator[Condition]:
        yield self._ours.is_not(None)
        soft_delete = self._meta.soft_delete
        if soft_delete is not None and self._schedule_index.schedule.action not in _OF_DELETED_ROWS:
            marker = self._column(soft_delete.field)
            yield marker.is_(None) if soft_delete.timestamp else marker.is_(sa.false())
        for lock in self._meta.locks:
            yield self._unlike(lock.field, lock.value)
        if self._schedule_index.schedule.unless:
            yield self._unlike(self._schedule_index.schedule.unless, True)
        yield from self._holds(self._schedule_index.schedule.where)
        if self._schedule_index.schedule.erased_values:
            yield sa.or_(
                *(self._is_not_erased(*pair) for pair in self._schedule_index.schedule.erased_values)
            )

    def _holds(self, where: FieldValues) -> Iterator[Condition]:
        for name, values in where:
            yield sa.or_(*(self._like(name, value) for value in values))

    def _is_not_erased(self, name: str, value: Any) -> Condition:
        column = self._column(name)
        if self._field(name).kind is not Kind.JSON or value is None:
            return self._unlike(name, value)
        text = by_dialect(self._dialect, sqlite=column, postgres=sa.cast(column, sa.Text))
        return text.is_distinct_from(sa.literal_column(f"'{value}'"))  # type: ignore[no-any-return]

    def _unchanged_target(self) -> Iterator[Condition]:
        schedule = self._schedule_index.schedule
        if schedule.action is ScheduledAction.SET_FIELD and schedule.conditional:
            yield self._like(schedule.target, schedule.from_)
        elif schedule.action is ScheduledAction.SET_FIELD:
            yield self._unlike(schedule.target, schedule.to)

    def _rivalry(self) -> Iterator[Condition]:
        if self._schedule_index.rival is not None:
            schedule = self._schedule_index.rival.schedule
            yield self._like(schedule.target, schedule.to)
            yield sa.not_(self._before(self._schedule_index.rival))
            yield from self._holds(schedule.where_beside_target)
            return
        for rival in self._schedule_index.rivals:
            yield sa.or_(self._unlike(rival.schedule.target, rival.schedule.to), *self._is_no_rival(rival))

    def _still_to_come(self, now: Any) -> Iterator[Condition]:
        main_rival = self._schedule_index.rival
        if main_rival is None:
            return
        yield self._column(main_rival.schedule.time) > now
        for rival in self._schedule_index.rivals:
            if rival != main_rival and rival.schedule.to == main_rival.schedule.to:
                yield sa.or_(*self._is_no_rival(rival), self._column(rival.schedule.time) > now)

    def _is_no_rival(self, rival: Rival) -> Iterator[Condition]:
        """Why a rival may not decide over a row: it has no time there, an earlier one, or is not meant."""
        yield self._column(rival.schedule.time).is_(None)
        yield self._before(rival)
        for name, values in rival.schedule.where_beside_target:
            yield sa.and_(*(self._unlike(name, value) for value in values))

    def _before(self, rival: Rival) -> Condition:
        theirs = self._column(rival.schedule.time)
        return theirs < self._ours if rival.wins_ties else theirs <= self._ours  # type: ignore[no-any-return]

    def _column(self, name: str) -> Any:
        return self._table.c[self._meta.by_name[name].column]

    def _like(self, name: str, value: Any) -> Condition:
        column = self._comparison_column(name)
        return column.is_(None) if value is None else column == self._text(name, value)  # type: ignore[no-any-return]

    def _unlike(self, name: str, value: Any) -> Condition:
        column, field = self._comparison_column(name), self._field(name)
        if value is None:
            return column.is_not(None)  # type: ignore[no-any-return]
        if field.nullable:
            return column.is_distinct_from(self._text(name, value))  # type: ignore[no-any-return]
        return column != self._text(name, value)  # type: ignore[no-any-return]

    def _comparison_column(self, name: str) -> Any:
        field = self._field(name)
        by_order_key = self._keyed and has_order_key(field, self._dialect)
        return self._table.c[order_column(field.column) if by_order_key else field.column]

    def _text(self, name: str, value: Any) -> sa.ColumnElement[Any]:
        field = self._field(name)
        if self._keyed and has_order_key(field, self._dialect):
            return sa.literal_column(literal(order_key(value), Kind.TEXT, self._dialect))
        return sa.literal_column(literal(value, field.kind, self._dialect))

    def _field(self, name: str) -> FieldMeta:
        return self._meta.by_name[name]
