"""What a forced condition means for a write: the row ends up inside it, or there is no write."""

from __future__ import annotations

import hashlib
import re
from collections.abc import MutableMapping
from typing import Any

from maniflex.errors import UnusableScope, ValidationFailed
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.body import Body
from maniflex.query.operators import Op
from maniflex.sql.where import Scope

SINGLETON_ID = "singleton"


def binding(model: ModelMeta, scope: Scope) -> Scope:
    """The scope, if every part of it binds this model; what cannot be bound is not looked at."""
    for forced in scope:
        if forced.on(model) is None:
            raise UnusableScope(f"{model.name} cannot be bound by {forced.name!r}: it has no such field")
    return scope


def stamp(
    model: ModelMeta, scope: Scope, values: MutableMapping[str, Any], *, only_present: bool = False
) -> None:
    """Bring values about to be written inside the scope; on update only those that are written."""
    bound = [compare for forced in binding(model, scope) if (compare := forced.on(model)) is not None]
    if only_present:
        bound = [compare for compare in bound if compare.field.name in values]
    for compare in bound:
        if compare.op is Op.EQ:
            values[compare.field.name] = compare.value
    for compare in bound:  # all of them, also two that settle one field differently
        if not holds(compare.op, values.get(compare.field.name), compare.value):
            raise ValidationFailed(details=[_outside(compare.field)])


def stamp_body(model: ModelMeta, scope: Scope, body: Body) -> None:
    """Put what the scope settles into a body, before anybody misses it there."""
    for forced in scope:
        compare = forced.on(model)
        if compare is not None and compare.op is Op.EQ:
            body.stamp(compare.field.api, compare.value)


def singleton_id(model: ModelMeta, scope: Scope) -> str:
    """The id of the one row a scope has: each tenant gets its own, always the same."""
    settled = {}
    for forced in scope:
        compare = forced.on(model)
        if compare is not None and compare.op is Op.EQ:
            settled[compare.field.name] = str(compare.value)
    if not settled:
        return SINGLETON_ID
    digest = hashlib.blake2b(repr(sorted(settled.items())).encode(), digest_size=12)
    return f"{SINGLETON_ID}-{digest.hexdigest()}"


def _outside(field: FieldMeta) -> dict[str, str]:
    return {"field": field.api, "message": f'field "{field.api}" has a value that is not allowed here'}


def holds(op: Op, value: Any, wanted: Any) -> bool:
    """Whether a value satisfies a condition; what cannot be told here does not."""
    if op is Op.IS_NULL:
        return value is None
    if op is Op.NOT_NULL:
        return value is not None
    if value is None:
        return False
    match op:
        case Op.EQ:
            return bool(value == wanted)
        case Op.NEQ:
            return bool(value != wanted)
        case Op.GT:
            return bool(value > wanted)
        case Op.GTE:
            return bool(value >= wanted)
        case Op.LT:
            return bool(value < wanted)
        case Op.LTE:
            return bool(value <= wanted)
        case Op.IN:
            return value in wanted
        case Op.NOT_IN:
            return value not in wanted
        case Op.BETWEEN:
            return bool(wanted[0] <= value <= wanted[1])
        case _:
            return _matches(op, value, wanted)


def _matches(op: Op, value: Any, wanted: Any) -> bool:
    """The text operators, as the databases read them: ASCII letters are alike, except to `like`."""
    if not isinstance(value, str):
        return False
    if op is Op.LIKE:
        return _pattern(wanted).fullmatch(value) is not None
    folded, looked_for = _folded(value), _folded(wanted)
    match op:
        case Op.ILIKE:
            return _pattern(looked_for).fullmatch(folded) is not None
        case Op.CONTAINS:
            return looked_for in folded
        case Op.STARTS_WITH:
            return folded.startswith(looked_for)
        case Op.ENDS_WITH:
            return folded.endswith(looked_for)
        case _:
            return False


def _folded(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


def _pattern(like: str) -> re.Pattern[str]:
    parts = re.findall(r"\\.|.", like, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return re.compile("".join(wild.get(p) or re.escape(p[-1]) for p in parts), re.DOTALL)
