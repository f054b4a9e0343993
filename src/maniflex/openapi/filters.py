"""The filters of a model as text and as a regular expression, from the same data the parser uses.

The expression matches what the parser takes; deep paths over many relations would make it longer
than a page can load, and then there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from maniflex._limits import Limits
from maniflex.db.backend import operators_of
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.openapi.reachable import Reachable
from maniflex.query.operators import OPERATORS, Operator, Takes, fitting
from maniflex.query.values import comparable

MOST_NAMES = 150

_YEAR = "[1-9][0-9]{3}"
_LEAP = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_NUMBER = r"[+-]?(?:[0-9]{1,100}(?:\.[0-9]{0,100})?|\.[0-9]{1,100})(?:[eE][+-]?[0-9]{1,2})?"
_HEX = "[0-9a-fA-F]"
# What a value looks like behind an operator; None where the parser takes none of the kind.
_VALUES: dict[Kind, str | None] = {
    Kind.TEXT: ".*",
    Kind.INT: "[+-]?[0-9]{1,18}",
    Kind.FLOAT: _NUMBER,
    Kind.DECIMAL: _NUMBER,
    Kind.BOOL: "(?:true|false|1|0)",
    Kind.DATETIME: rf"{_DATE}(?:T{_CLOCK}Z?)?",
    Kind.DATE: _DATE,
    Kind.TIME: _CLOCK,
    Kind.UUID: f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    Kind.BYTES: None,
    Kind.JSON: None,
}
_ITEM = '[^",]*'  # one text of a comma-separated list
_FILLED_ITEM = '[^",]+'  # behind which the list is not an empty one
_PLAIN = r"(?:[^\\\n\r%_]|\\[^\n\r])"  # one character of a pattern that is no wildcard


def filterable(model: ModelMeta) -> list[FieldMeta]:
    return [f for f in model.fields if f.filterable and not f.secret and comparable(f)]


def usable_operators(field: FieldMeta) -> tuple[Operator, ...]:
    """The operators that a field takes; of a file it can only be asked whether there is one."""
    operators = fitting(field.kind)
    return tuple(o for o in operators if o.takes is Takes.NOTHING) if "file" in field.extra else operators


def describe_operators(model: ModelMeta) -> str:
    """Which operators the fields take; a line for those that take the same."""
    alike: dict[tuple[Operator, ...], list[str]] = {}
    for field in filterable(model):
        operators = usable_operators(field)
        if model.options.backend is not None:
            known = operators_of(model.options.backend)
            operators = tuple(o for o in operators if o.op in known)
        if operators:
            alike.setdefault(operators, []).append(f"`{field.api}`")
    lines = [f"- {', '.join(names)}: {', '.join(f'`{o.op}`' for o in ops)}" for ops, names in alike.items()]
    return "\n".join(lines)


def expression(model: ModelMeta, reachable: Reachable, limits: Limits) -> str | None:
    """What matches the filters of a model; None when that would be too long to be of use.

    What a backend takes is told by its operators alone.
    """
    if model.options.backend is not None:
        return None
    alike: dict[tuple[Kind, tuple[object, ...] | None], list[str]] = {}
    empty: list[str] = []
    pairs: list[str] = []
    files: list[str] = []
    for prefix, target, _ in reachable.joinable_paths(model, limits.path_depth):
        fields = filterable(target)
        for field in fields:
            name = _literal(prefix + field.api)
            if "file" in field.extra:
                files.append(name)
                continue
            alike.setdefault((field.kind, field.enum), []).append(name)
            if field.nullable and field.kind is not Kind.TEXT:
                empty.append(name)
        pairs += _pairs(_literal(prefix), [f for f in fields if "file" not in f.extra])
        if len(files) + sum(map(len, alike.values())) > MOST_NAMES:
            return None
    groups = [
        f"{_any(names)}:{_condition_pattern(kind, enum, limits)}" for (kind, enum), names in alike.items()
    ]
    if files:
        groups.append(f"{_any(files)}:{_any([o.op for o in OPERATORS.values() if o.takes is Takes.NOTHING])}")
    if empty:
        exact = [o.op for o in OPERATORS.values() if o.takes is Takes.EXACT]
        groups.append(f"{_any(empty)}:{_any(exact)}:null")
    return f"^(?:{'|'.join(groups + pairs)})$" if groups else None


def _pairs(prefix: str, fields: Sequence[FieldMeta]) -> Iterator[str]:
    """Comparisons of one field with another of its kind."""
    for kind in dict.fromkeys(f.kind for f in fields):
        names = _any([_literal(f.api) for f in fields if f.kind is kind])
        operators = _any([o.op for o in fitting(kind) if o.takes is Takes.FIELD])
        yield f"{prefix}{names}:{operators}:{names}"


def _condition_pattern(kind: Kind, enum: tuple[object, ...] | None, limits: Limits) -> str:
    """What may stand behind the name of a field: an operator and what it takes."""
    choices: dict[str, list[str]] = {}
    for operator in fitting(kind):
        if operator.takes is not Takes.FIELD:
            choices.setdefault(_value_pattern(operator, kind, enum, limits), []).append(operator.op)
    return _any([f"{_any(operators)}{pattern}" for pattern, operators in choices.items()])


def _value_pattern(operator: Operator, kind: Kind, enum: tuple[object, ...] | None, limits: Limits) -> str:
    value = _VALUES[kind]
    assert value is not None, kind  # `filterable` leaves such fields out
    members = None if enum is None else _any([_literal(str(member)) for member in enum])
    match operator.takes:
        case Takes.NOTHING:
            return ""
        case Takes.PATTERN:
            run = f"{_PLAIN}{{0,{limits.pattern_length // 2}}}"
            return f":{run}(?:[%_]{run}){{0,{limits.wildcards}}}"
        case Takes.TEXT:
            return f":.{{0,{limits.pattern_length}}}"
        case Takes.EXACT:
            return f":{members or value}"
        case Takes.ONE:
            return f":{value}"
        case _:
            item = members or (_ITEM if kind is Kind.TEXT else value)
            if operator.takes is Takes.TWO:
                return f":{item},{item}"
            first = _FILLED_ITEM if item is _ITEM else item
            return f":{first}(?:,{item}){{0,{limits.values - 1}}}"


def _literal(text: str) -> str:
    return re.escape(text).replace("\\-", "-")


def _any(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"
