"""The texts of a form → values of fields: by the type of the part, else by the kind of the field."""

from __future__ import annotations

from typing import Any

from maniflex import _json
from maniflex.errors import InvalidJson, InvalidQuery, MultipartError
from maniflex.model.meta import FieldMeta, Kind
from maniflex.query.values import parse_value

# Others are text in JSON too, which the rules of their fields read.
_READ_HERE = frozenset({Kind.INT, Kind.FLOAT, Kind.DECIMAL, Kind.BOOL})


def json_value(content: bytes, name: str, *, field: FieldMeta | None, exact: bool, most: int) -> Any:
    """The value of a part that is typed as JSON."""
    try:
        value = _json.loads(content, exact, most)
        if field is not None and field.kind is Kind.JSON:
            _json.refuse_long_integers(content, value)
            return _json.as_floats(value) if exact else value
    except InvalidJson as error:
        raise InvalidJson(f"the part {name!r} of the form: {error.message}") from None
    return value


def text_value(content: bytes, name: str, field: FieldMeta | None) -> Any:
    """The value of another part; what cannot be read stays text, for the rules of the field to refuse."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise MultipartError(f"the part {name!r} of the form is no UTF-8") from None
    if field is None or field.kind is Kind.TEXT:
        return text
    if not text and field.nullable:
        return None
    if field.kind not in _READ_HERE:
        return text
    try:
        return parse_value(text, field, name, member=False)
    except InvalidQuery:
        return text


def is_json(content_type: str | None) -> bool:
    """Whether a part says that it is JSON."""
    bare = "" if content_type is None else content_type.partition(";")[0].strip().lower()
    return bare == "application/json" or (bare.startswith("application/") and bare.endswith("+json"))
