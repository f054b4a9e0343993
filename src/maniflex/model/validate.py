"""Bodies and records → checked values; every write goes through here, from a client or from code.

Made once per model by `scan`. A failure is `ValidationFailed` with one detail per offending field.
Bodies use API names and ignore what they do not know; code uses attribute names and may not misspell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import (
    CoreSchema,
    SchemaValidator,
    ValidationError,
    core_schema,
    to_jsonable_python,
)

from maniflex.errors import ValidationFailed
from maniflex.model.annotations import classify
from maniflex.model.base import Model, instance_of
from maniflex.model.floods import BoundedValidator
from maniflex.model.messages import Detail, detail, details, unknown_field
from maniflex.model.meta import FieldMeta, Kind
from maniflex.model.value_rules import json_trouble, text_trouble

Fields = dict[str, Any]


class Validator:
    """The rules of one model, ready to be applied."""

    __slots__ = (
        "_create",
        "_creating",
        "_fields",
        "_json",
        "_merge",
        "_model",
        "_patch",
        "_patching",
        "_renames",
        "_secrets",
        "has_model_validators",
    )

    def __init__(self, model: type[Model], fields: Sequence[FieldMeta]) -> None:
        self._model = cast(type[BaseModel], model)
        self._fields = {item.name: item for item in fields}
        self._secrets = frozenset(item.api for item in fields if item.secret)
        self._json = [(item, classify(item.type).is_structured) for item in fields if item.kind is Kind.JSON]
        has_aliases = any(item.api != item.name for item in fields)
        self._renames = tuple((item.api, item.name) for item in fields) if has_aliases else None
        own: Any = self._model.__pydantic_validator__
        self._creating = BoundedValidator(self._model.__pydantic_core_schema__, built=own)
        self._patching = BoundedValidator(_patch_schema(self._model))
        self._create = self._creating.validate
        self._patch = self._patching.validate
        decorators = self._model.__pydantic_decorators__
        self.has_model_validators = bool(decorators.model_validators or decorators.root_validators)
        self._merge = (
            _merge_validator(self._model, self._fields).validate_python if self.has_model_validators else None
        )

    def create(self, body: Mapping[str, Any]) -> Model:
        """The record a create body describes."""
        values = body if self._renames is None else self._by_attribute(body)
        try:
            return cast(Model, self._create(values))
        except ValidationError as error:
            raise self._refusal(details(self._creating.errors(values, error), self._model)) from None

    def create_without(self, names: Collection[str]) -> Callable[[Mapping[str, Any]], Model]:
        """As `create`, for bodies that may lack these attributes; what is not there is None in the record."""
        creating = BoundedValidator(with_optional(self._model.__pydantic_core_schema__, names))

        def create(body: Mapping[str, Any]) -> Model:
            values = body if self._renames is None else self._by_attribute(body)
            try:
                return cast(Model, creating.validate(values))
            except ValidationError as error:
                raise self._refusal(details(creating.errors(values, error), self._model)) from None

        return create

    def patch(self, body: Mapping[str, Any]) -> Fields:
        """The changes a patch body describes, by attribute; what it leaves out stays out."""
        values = body if self._renames is None else self._by_attribute(body)
        try:
            return cast(Fields, self._patch(values))
        except ValidationError as error:
            raise self._refusal(details(self._patching.errors(values, error), self._model)) from None

    def create_from_code(self, values: Mapping[str, Any]) -> Model:
        """The record made of attribute values."""
        return cast(Model, self._from_code(values, self._creating, lambda record: vars(record)))

    def patch_from_code(self, values: Mapping[str, Any]) -> Fields:
        """The changes made of attribute values."""
        return cast(Fields, self._from_code(values, self._patching, lambda changes: changes))

    def record(self, record: Model) -> Model:
        """A record as it stands now, checked again: its attributes may have been assigned since."""
        if not isinstance(record, self._model):
            raise TypeError(f"expected a {self._model.__name__}, not a {type(record).__name__}")
        return self.create_from_code(self._values(record))

    def merge(self, current: Model, changes: Mapping[str, Any]) -> Model:
        """`current` with `changes`, as the model's own validators see and leave it.

        Only they run: a stored value that breaks a rule made later does not stop an unrelated change.
        """
        values = {**self._values(current), **changes}
        if self._merge is None:
            return cast(Model, instance_of(self._model, values))
        try:
            return cast(Model, self._merge(values))
        except ValidationError as error:
            raise self._refusal(details(error, self._model)) from None

    def _values(self, record: Model) -> Fields:
        return {name: value for name, value in vars(record).items() if name in self._fields}

    def _by_attribute(self, body: Mapping[str, Any]) -> Fields:
        assert self._renames is not None
        return {name: body[api] for api, name in self._renames if api in body}

    def _from_code(
        self,
        values: Mapping[str, Any],
        validator: BoundedValidator,
        attributes: Callable[[Any], Mapping[str, Any]],
    ) -> Any:
        problems = self._text_troubles(values)
        if not values.keys() <= self._fields.keys():
            problems += [unknown_field(name, self._fields) for name in values if name not in self._fields]
        try:
            result = validator.validate(values)
        except ValidationError as error:
            problems += details(validator.errors(values, error), self._model)
            raise self._refusal(_once_each(problems)) from None
        if self._json:
            problems += self._json_troubles(attributes(result))
        if problems:
            raise self._refusal(_once_each(problems))
        return result

    def _refusal(self, problems: Sequence[Detail]) -> ValidationFailed:
        return ValidationFailed(details=problems, model=self._model.__name__, secrets=self._secrets)

    def _text_troubles(self, values: Mapping[str, Any]) -> list[Detail]:
        troubles = {name: text_trouble(value) for name, value in values.items() if isinstance(value, str)}
        return [detail(self._api(name), "text", text) for name, text in troubles.items() if text]

    def _json_troubles(self, values: Mapping[str, Any]) -> list[Detail]:
        troubles = {
            item.api: json_trouble(_as_json(values.get(item.name), is_structured))
            for item, is_structured in self._json
        }
        return [detail(api, "json", text) for api, text in troubles.items() if text]

    def _api(self, name: str) -> str:
        item = self._fields.get(name)
        return name if item is None else item.api


def _as_json(value: Any, is_structured: bool) -> Any:
    if not is_structured:
        return value
    try:
        return to_jsonable_python(value)
    except ValueError:  # holds something JSON has no word for; the value itself is refused then
        return value


def _once_each(problems: list[Detail]) -> list[Detail]:
    first_problems: dict[tuple[str, str], Detail] = {}
    for item in problems:
        first_problems.setdefault((item["field"], item["code"]), item)
    return list(first_problems.values())


def _patch_schema(model: type[BaseModel]) -> CoreSchema:
    """The schema of single fields: the model's own, without their defaults."""
    schema = model.__pydantic_core_schema__
    fields, config = inside(schema)
    patch: CoreSchema = core_schema.typed_dict_schema(
        {
            name: core_schema.typed_dict_field(_without_default(item["schema"]), required=False)
            for name, item in fields.items()
        },
        config=config,
    )
    if schema["type"] == "definitions":
        patch = core_schema.definitions_schema(patch, schema["definitions"])
    return patch


def _merge_validator(model: type[BaseModel], names: Collection[str]) -> SchemaValidator:
    """The model's own validators around fields that take any value.

    A field of no such name has no value in its rows: a model without a table may have no timestamps.
    """

    def loosen(schema: Any) -> Any:
        if schema["type"] == "model-fields":
            anything = core_schema.model_field(core_schema.any_schema())
            fields = {name: anything if name in names else part for name, part in schema["fields"].items()}
            return {**schema, "fields": fields}
        return {**schema, "schema": loosen(schema["schema"])}

    return SchemaValidator(loosen(model.__pydantic_core_schema__))


def with_optional(schema: Any, names: Collection[str]) -> Any:
    """The schema of a model whose fields of these names may be absent, and are None then."""
    if schema["type"] != "model-fields":
        return {**schema, "schema": with_optional(schema["schema"], names)}
    optional_fields = {
        name: {**schema["fields"][name], "schema": core_schema.with_default_schema(part, default=None)}
        for name in names
        if (part := schema["fields"][name]["schema"])["type"] != "default"
    }
    return {**schema, "fields": {**schema["fields"], **optional_fields}}


def inside(schema: Any) -> tuple[dict[str, Any], Any]:
    """The field schemas of a model's schema, and its config."""
    config = None
    while schema["type"] != "model-fields":
        config = schema.get("config", config)
        schema = schema["schema"]
    return schema["fields"], config


def _without_default(schema: Any) -> CoreSchema:
    return cast(CoreSchema, schema["schema"] if schema["type"] == "default" else schema)
