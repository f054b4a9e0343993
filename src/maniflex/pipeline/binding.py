"""A request body as a declared type: for `bind_json` and the `request=` of actions.

Wherever the type holds a model, its records are bound as on the create route: by API names, and what a
client may not set is not taken from it. That goes for registered and unregistered models alike.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from maniflex import _json
from maniflex._limits import DEFAULT_LIMITS
from maniflex.errors import InvalidJson, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.floods import BoundedValidator
from maniflex.pipeline.client_schema import RECORD, Rewriter

_MOST_BINDERS = 256
_binders: dict[Any, Binder] = {}


def bind(body: bytes, wanted: Any) -> Any:
    """The body as `wanted`, or `ValidationFailed` naming the parts that do not fit."""
    return binder(wanted).bind(body)


def binder(wanted: Any) -> Binder:
    """The binder of a type, made at its first use."""
    key: Any = wanted
    try:
        hash(wanted)
    except TypeError:  # a type that cannot be hashed; its binder keeps it, so that its id stays its own
        key = id(wanted)
    known = _binders.get(key)
    if known is None:
        if len(_binders) >= _MOST_BINDERS:
            _binders.clear()
        known = _binders[key] = Binder(wanted)
    return known


class Binder:
    """Bodies as one type."""

    def __init__(self, wanted: Any) -> None:
        self.type = wanted
        self._is_model = isinstance(wanted, type) and issubclass(wanted, Model)
        adapter: TypeAdapter[Any] = TypeAdapter(wanted)
        adapter.rebuild(raise_errors=True)  # a type that holds a model is built at its first use
        rewriter = Rewriter()
        schema = rewriter.rewrite(adapter.core_schema)
        self.holds_models = schema is not adapter.core_schema
        self.exact = rewriter.exact or "'type': 'decimal'" in repr(schema)
        self._validator = BoundedValidator(schema, holders=rewriter.holders)

    def bind(self, body: bytes, *, most: int = DEFAULT_LIMITS.body_values) -> Any:
        """The body as the type, or `ValidationFailed` naming the parts that do not fit."""
        value = _json.loads(body, exact=self.exact, most=most)
        if self._is_model and type(value) is not dict:
            raise InvalidJson("the body must be a JSON object")
        return self.fit(value)

    def fit(self, value: Any) -> Any:
        """A parsed value as the type, or `ValidationFailed` naming the parts that do not fit."""
        try:
            return self._validator.validate(value)
        except ValidationError as error:
            found = self._validator.errors(value, error)
            raise ValidationFailed(details=[_detail(e) for e in found]) from None


def _detail(error: Any) -> dict[str, str]:
    """One offending part in the words the model routes use."""
    name = ".".join(map(str, error["loc"]))
    named = error.get("ctx", {}).get(RECORD)
    if named is not None:
        message = f'field "{name}" {error["msg"]}' if named else error["msg"]
        return {"field": name, "message": message, "code": error["type"]}
    if error["type"] == "missing":
        return {"field": name, "message": f'field "{name}" is required', "code": "required"}
    return {"field": name, "message": error["msg"], "code": error["type"]}
