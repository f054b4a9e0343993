"""How long the records of a model are kept: `retention=`, `deleted_retention=` and `retention_hold=`, read.

Give `read_retention` the options of a model and a way to look its fields up; get the rules as schedules
that are due some time behind the field they look at, which the sweeps of scheduled fields serve. Every
mistake is told, as a sentence that begins with the option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from maniflex._json import encode_json
from maniflex._names import did_you_mean
from maniflex._settings import read_duration
from maniflex.model.declared import Kind, ModelOptions, Retention, SoftDelete
from maniflex.model.field import FieldSchedule, FieldValues, ScheduledAction
from maniflex.model.meta import FieldMeta

_ACTIONS = {
    "delete": ScheduledAction.HARD_DELETE,
    "soft_delete": ScheduledAction.SOFT_DELETE,
    "erase": ScheduledAction.ERASE,
}


@dataclass(frozen=True, slots=True)
class DeclaredFields:
    """The fields of a model while it is read."""

    find: Callable[[Any], FieldMeta | None]
    unknown: Callable[[Any], str]  # the sentence about a name that is none
    fit: Callable[[FieldMeta, Any], Any]  # a value as the field takes it, or a problem
    soft_delete: SoftDelete | None
    trouble: Callable[[str], None]
    personal: Sequence[FieldMeta] = ()


def read_retention(
    options: ModelOptions, fields: DeclaredFields
) -> tuple[tuple[FieldSchedule, ...], str | None]:
    """The rules of a model, and the attribute that keeps a record from them."""
    hold = _hold(options.retention_hold, fields)
    schedules = [*_rules(options, hold or "", fields)]
    if options.deleted_retention is not None:
        schedules += _deleted_rule(options.deleted_retention, hold or "", fields)
    return tuple(schedules), hold


def _hold(name: Any, fields: DeclaredFields) -> str | None:
    if name is None:
        return None
    field = fields.find(name)
    if field is None:
        fields.trouble(f"retention_hold: {fields.unknown(name)}")
    elif field.kind is not Kind.BOOL:
        fields.trouble(f"retention_hold: {field.name} must be a bool field")
    elif fields.soft_delete is not None and fields.soft_delete.field == field.name:
        fields.trouble(f"retention_hold: {field.name} marks deleted records")
    else:
        return field.name
    return None


def _rules(options: ModelOptions, hold: str, fields: DeclaredFields) -> Iterator[FieldSchedule]:
    option: Any = options.retention
    several = isinstance(option, Sequence) and not isinstance(option, str)
    for rule in () if option is None else option if several else (option,):
        if not isinstance(rule, Retention):
            rule = Retention(after=rule)
        erased_values = tuple(_erased_values(options, fields)) if rule.action == "erase" else ()
        yield from _rule(rule, hold, erased_values, fields)


def _erased_values(options: ModelOptions, fields: DeclaredFields) -> Iterator[tuple[str, Any]]:
    """What tells a record that is erased from one that is not; nothing where erased records go."""
    if options.subject is None:
        fields.trouble("retention: action='erase' needs subject= of the model, and personal fields")
        return
    if options.on_erase == "delete":
        return
    if not fields.personal:
        fields.trouble("retention: action='erase' has nothing to erase: no field is personal")
    for f in fields.personal:
        value = f.extra.get("erased")
        is_empty = f.kind is Kind.JSON and value in ({}, [])
        if value is None or is_empty:
            yield f.name, None if value is None else encode_json(value)
        elif callable(value) or f.encrypted is not None or f.kind is Kind.JSON:
            fields.trouble(
                f"retention: action='erase' cannot see in the database whether {f.name} is erased;"
                " let it become empty, or give it a plain erased="
            )
        else:
            yield f.name, fields.fit(f, value)


def _rule(
    rule: Retention, hold: str, erased_values: tuple[tuple[str, Any], ...], fields: DeclaredFields
) -> Iterator[FieldSchedule]:
    after = _duration("retention", rule.after, fields)
    since = fields.find(rule.since)
    where = _where(rule.where, fields)
    marker = fields.soft_delete
    if since is None:
        fields.trouble(f"retention: since: {fields.unknown(rule.since)}")
    elif since.kind is not Kind.DATETIME:
        fields.trouble(f"retention: since: {since.name} is no datetime field")
    if rule.action not in _ACTIONS:
        hint = did_you_mean(str(rule.action), _ACTIONS)
        fields.trouble(f"retention: unknown action {rule.action!r}; use {', '.join(_ACTIONS)}{hint}")
    elif rule.action == "soft_delete" and marker is None:
        fields.trouble("retention: action='soft_delete' needs a soft-delete model")
    elif rule.action == "soft_delete" and since is not None and marker and since.name == marker.field:
        fields.trouble(f"retention: {since.name} is set on deleted records only, which are deleted already")
    elif after is not None and since is not None:
        yield FieldSchedule(
            since.name,
            _ACTIONS[rule.action],
            where=where,
            after=after,
            unless=hold,
            erased_values=erased_values,
        )


def _deleted_rule(after: Any, hold: str, fields: DeclaredFields) -> Iterator[FieldSchedule]:
    duration, marker = _duration("deleted_retention", after, fields), fields.soft_delete
    if marker is None:
        fields.trouble("deleted_retention needs a soft-delete model")
    elif not marker.timestamp:
        fields.trouble(f"deleted_retention: {marker.field} does not say when a record was deleted")
    elif duration is not None:
        yield FieldSchedule(marker.field, ScheduledAction.HARD_DELETE, after=duration, unless=hold)


def _duration(option: str, value: Any, fields: DeclaredFields) -> timedelta | None:
    try:
        duration = read_duration(value) if isinstance(value, str) else value
    except ValueError:
        duration = None
    if isinstance(duration, timedelta) and duration > timedelta(0):
        return duration
    fields.trouble(f"{option}: {value!r} is not a duration such as 90d, 2y or timedelta(days=90)")
    return None


def _where(where: Any, fields: DeclaredFields) -> FieldValues:
    if where is None:
        return ()
    if not isinstance(where, Mapping) or not where:
        fields.trouble("retention: where must map a field to the value, or the values, of which the rule is")
        return ()
    conditions: list[tuple[str, tuple[Any, ...]]] = []
    for name, values in where.items():
        field = fields.find(name)
        if field is None:
            fields.trouble(f"retention: where: {fields.unknown(name)}")
        elif field.kind is Kind.JSON or field.encrypted is not None:
            fields.trouble(f"retention: where: {field.name} cannot be compared with a value")
        else:
            choices = values if isinstance(values, (list, tuple, set, frozenset)) else [values]
            if not choices:
                fields.trouble(f"retention: where: {field.name} has no values")
            conditions.append((field.name, tuple(fields.fit(field, value) for value in choices)))
    return tuple(conditions)
