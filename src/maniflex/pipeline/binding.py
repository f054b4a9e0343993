"""A request body as a declared type: for `bind_json` and the `request=` of actions.

Wherever the type holds a model, its records are bound as on the create route: by API names, and what a
client may not set is not taken from it. That goes for registered and unregistered models alike.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from maniflex import _json
from maniflex.config import DEFAULT_LIMITS
from maniflex.errors import InvalidJson, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.class_body import rules_of
from maniflex.model.core_schema import (
    function_of,
    kinds,
    outermost,
    rewrite,
    with_optional,
    without_functions,
)
from maniflex.model.meta import Kind
from maniflex.model.validate import BoundedValidator, is_flood
from maniflex.model.value_rules import api_name, details, part_detail
from maniflex.pipeline.threads import give_way

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
        schema = _as_clients_bind(adapter.core_schema)
        self.holds_models = schema is not adapter.core_schema
        self.exact = "decimal" in kinds(schema)
        self._validator = BoundedValidator(schema)

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


# Pydantic schemas as clients may use them: every model inside one takes what its create route takes.
#
# Where a type holds a model, its schema gets a `ClientRecord` around that.


RECORD = "maniflex_record"  # marks the errors of a record among those of the type around it


class ClientRecord:
    """Binds one record by its create rules: API names in, and nothing a client may not set."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model
        self.name = model.__name__
        self._names: dict[str, str] = {}
        self._json: list[str] = []
        self.filled: list[str] = []  # closed to clients, and required: code fills them
        for name, info in model.__pydantic_fields__.items():
            rules = rules_of(info)
            if rules is None or name == "id":
                continue
            options = rules.spec.options
            if options.get("readonly") or options.get("hidden"):
                if info.is_required():
                    self.filled.append(name)
            else:
                self._names[api_name(name, model)] = name
                if rules.shape.kind is Kind.JSON:
                    self._json.append(name)

    def __call__(self, value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Any:
        give_way()
        if isinstance(value, dict):
            value = {name: value[api] for api, name in self._names.items() if api in value}
            for name in self._json:
                if name in value:
                    value[name] = _json.as_floats(value[name])
        try:
            return validate(value)
        except ValidationError as error:
            if is_flood(error):
                raise  # these are not shown: it is validated again to find the first
            raise self._in_model_words(error) from None

    def _in_model_words(self, error: ValidationError) -> ValidationError:
        lines: list[InitErrorDetails] = []
        for detail in details(error, self._model):
            path, text = detail["field"], detail["message"]
            start = f'field "{path}" '
            context = {"text": text.removeprefix(start), RECORD: text.startswith(start)}
            kind = PydanticCustomError(cast(Any, detail["code"]), "{text}", context)
            lines.append({"type": kind, "loc": (path,) if path else (), "input": None})
        return ValidationError.from_exception_data(self._model.__name__, lines)


def _as_clients_bind(schema: Any) -> Any:
    """The schema with a `ClientRecord` around each model; what holds no model stays as it is."""
    return rewrite(schema, _name_records, _record_schema)


def _record_schema(part: Any) -> CoreSchema | None:
    """What a model's schema becomes; None for another."""
    depth, inner = without_functions(part)
    if inner["type"] != "model" or not issubclass(inner["cls"], Model):
        return None
    model: Any = inner["cls"]
    # Functions that stand around the model besides its own validators are those of a type around it.
    if depth > without_functions(outermost(model.__pydantic_core_schema__))[0]:
        return None
    record = ClientRecord(model)
    schema = {key: value for key, value in part.items() if key != "ref"}
    if record.filled:
        schema = with_optional(schema, record.filled)
    return core_schema.no_info_wrap_validator_function(record, cast(Any, schema), ref=part.get("ref"))


def _name_records(part: dict[str, Any]) -> dict[str, Any]:
    """A model among the choices of a union keeps its name in the paths of errors."""
    if part["type"] != "union":
        return part
    return {**part, "choices": [_name_record(choice) for choice in part["choices"]]}


def _name_record(choice: Any) -> Any:
    record = function_of(choice)
    return (choice, record.name) if isinstance(record, ClientRecord) else choice
