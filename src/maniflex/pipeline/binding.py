"""A request body as a declared type: for `bind_json` and the `request=` of actions.

Wherever the type holds a model, its records are bound as on the create route: by API names, and what a
client may not set is not taken from it. That goes for registered and unregistered models alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from maniflex import _json
from maniflex.config import DEFAULT_LIMITS
from maniflex.errors import InvalidJson, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.class_body import rules_of
from maniflex.model.messages import api_name, details, part_detail
from maniflex.model.meta import Kind
from maniflex.model.validate import NOT_WALKED, BoundedValidator, is_flood, with_optional
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


# Pydantic schemas as clients may use them: every model inside one takes what its create route takes.
#
# A schema is a tree of dicts. `Rewriter` copies it and puts a `ClientRecord` around each model it meets;
# what holds no model stays as it is.


RECORD = "maniflex_record"  # marks the errors of a record among those of the type around it


class ClientRecord:
    """Binds one record by its create rules: API names in, and nothing a client may not set."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model
        self._names: dict[str, str] = {}
        self._json: list[str] = []
        self.filled: list[str] = []  # closed to clients, and required: code fills them
        self.exact = False
        for name, info in model.__pydantic_fields__.items():
            rules = rules_of(info)
            if rules is None or name == "id":
                continue
            options = rules.spec.options
            self.exact = self.exact or rules.shape.kind is Kind.DECIMAL
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


class Rewriter:
    """Copies one schema; knows afterwards which classes may have another schema in it than their own."""

    def __init__(self) -> None:
        self.holders: list[type] = []
        self.exact = False
        self._definitions: dict[str, Any] = {}

    def rewrite(self, schema: Any) -> Any:
        if isinstance(schema, Mapping):
            if schema.get("type") == "definitions":
                self._definitions |= {item["ref"]: item for item in schema["definitions"]}
            depth = _functions_around_model(schema)
            if depth is not None and depth <= _own_functions(_model_of(schema)):
                return self._record_schema(schema)
            copy = {
                key: part
                if key in NOT_WALKED
                else self._choices(part)
                if key == "choices"
                else self.rewrite(part)
                for key, part in schema.items()
            }
            if schema.get("type") in ("model", "dataclass"):
                self.holders.append(schema["cls"])  # also unchanged: it may refer to a definition that is not
            return schema if all(copy[key] is part for key, part in schema.items()) else copy
        if isinstance(schema, list | tuple):
            items = [self.rewrite(item) for item in schema]
            same = all(new is old for new, old in zip(items, schema, strict=True))
            return schema if same else type(schema)(items)
        return schema

    def _choices(self, choices: Any) -> Any:
        """The choices of a union; a model keeps its name in the paths of errors."""
        if not isinstance(choices, list):
            return self.rewrite(choices)
        rewritten = self.rewrite(choices)
        return [
            (new, _model_of(target).__name__)
            if new is not old and _functions_around_model(target := self._resolve(old)) is not None
            else new
            for new, old in zip(rewritten, choices, strict=True)
        ]

    def _resolve(self, schema: Any) -> Any:
        is_ref = isinstance(schema, Mapping) and schema.get("type") == "definition-ref"
        return self._definitions.get(schema["schema_ref"], schema) if is_ref else schema

    def _record_schema(self, schema: Any) -> CoreSchema:
        record = ClientRecord(_model_of(schema))
        self.exact = self.exact or record.exact
        inner = {key: part for key, part in schema.items() if key != "ref"}
        if record.filled:
            inner = with_optional(inner, record.filled)
        return core_schema.no_info_wrap_validator_function(record, cast(Any, inner), ref=schema.get("ref"))


def _functions_around_model(schema: Any) -> int | None:
    """How many functions stand around the model this is the schema of; None when it is of none."""
    depth = 0
    while isinstance(schema, Mapping) and str(schema.get("type")).startswith("function-"):
        schema, depth = schema.get("schema"), depth + 1
    is_model = isinstance(schema, Mapping) and schema.get("type") == "model"
    return depth if is_model and issubclass(cast(Any, schema)["cls"], Model) else None


def _model_of(schema: Any) -> type[BaseModel]:
    while schema["type"] != "model":
        schema = schema["schema"]
    return cast(type[BaseModel], schema["cls"])


def _own_functions(model: type[BaseModel]) -> int:
    """How many functions around the model are its own validators."""
    schema: Any = model.__pydantic_core_schema__
    if schema["type"] == "definitions":
        definitions = {item["ref"]: item for item in schema["definitions"]}
        schema = schema["schema"]
        if schema["type"] == "definition-ref":
            schema = definitions[schema["schema_ref"]]
    return _functions_around_model(schema) or 0
