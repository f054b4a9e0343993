"""A request body as a declared type: for `bind_json` and the `request=` of actions.

Wherever the type holds a model, its records are bound as on the create route: by API names, and what a
client may not set is not taken from it. That goes for registered and unregistered models alike.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError

from maniflex import _json
from maniflex._limits import DEFAULT_LIMITS
from maniflex.errors import InvalidJson, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.messages import part_detail
from maniflex.model.validate import BoundedValidator
from maniflex.pipeline.client_schema import RECORD, Rewriter

_MOST_BINDERS = 256
_OF_CLASS = "__maniflex_binder__"
_binders: dict[Any, Binder] = {}


def bind(body: bytes, declared_type: Any) -> Any:
    """The body as `declared_type`, or `ValidationFailed` naming the parts that do not fit."""
    return binder(declared_type).bind(body)


def binder(declared_type: Any) -> Binder:
    """The binder of a type, made at its first use.

    That of a class is kept by the class, so that both are let go together.
    """
    if isinstance(declared_type, type):
        own: Binder | None = vars(declared_type).get(_OF_CLASS)
        if own is not None:
            return own
        own = Binder(declared_type)
        with suppress(TypeError):  # a class of Python's own
            setattr(declared_type, _OF_CLASS, own)
            return own
    key: Any = declared_type
    try:
        hash(declared_type)
    except TypeError:  # a type that cannot be hashed; its binder keeps it, so that its id stays its own
        key = id(declared_type)
    entry = _binders.get(key)
    if entry is None:
        if len(_binders) >= _MOST_BINDERS:
            _binders.clear()
        entry = _binders[key] = Binder(declared_type)
    return entry


class Binder:
    """Bodies as one type."""

    def __init__(self, declared_type: Any) -> None:
        self.type = declared_type
        self._is_model = isinstance(declared_type, type) and issubclass(declared_type, Model)
        adapter: TypeAdapter[Any] = TypeAdapter(declared_type)
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
            errors = self._validator.errors(value, error)
            raise ValidationFailed(details=[_detail(e) for e in errors]) from None


def _detail(error: Any) -> dict[str, str]:
    """One offending part in the words the model routes use."""
    name = ".".join(map(str, error["loc"]))
    names_field = error.get("ctx", {}).get(RECORD)
    if names_field is not None:
        message = f'field "{name}" {error["msg"]}' if names_field else error["msg"]
        return {"field": name, "message": message, "code": error["type"]}
    return part_detail(error)
