"""Bodies and records → checked values; every write goes through here, from a client or from code.

Made once per model by `scan`. A failure is `ValidationFailed` with one detail per offending field.
Bodies use API names and ignore what they do not know; code uses attribute names and may not misspell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import (
    CoreSchema,
    ErrorDetails,
    SchemaValidator,
    ValidationError,
    core_schema,
    to_jsonable_python,
)

from maniflex.errors import MOST_DETAILS, ValidationFailed
from maniflex.model.annotations import classify
from maniflex.model.base import Model, instance_of
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
        """The record of a create body that may lack these attributes; a missing one is None in the record."""
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


# Values that are wrong in very many places: the first of them are found, and finding them is cheap.
#
# pydantic makes an error for every wrong item of a list; a small body of wrong items would take seconds
# and be answered with megabytes. So a value is validated by a schema whose lists and mappings end at
# their first wrong item. Only when that fails is it validated again, by one that looks at all items until
# it has found enough.


ENOUGH = MOST_DETAILS + 1  # one more, so that it can be said that there are more
NOT_WALKED = frozenset(
    {"cls", "config", "default", "default_factory", "expected", "members", "metadata", "serialization"}
)
_LISTS = frozenset({"list", "tuple", "set", "frozenset", "deque"})
_MAPPINGS = frozenset({"dict", "frozendict", "ordered-dict", "counter"})
_ITEMS = ("items_schema", "keys_schema", "values_schema")
_FIELDS = frozenset({"model-fields", "typed-dict", "dataclass-args"})
_building = threading.Lock()


class BoundedValidator:
    """Validates by a schema, and finds the first errors of a value that is wrong."""

    def __init__(
        self, schema: Any, *, built: SchemaValidator | None = None, holders: Sequence[Any] = ()
    ) -> None:
        """`built` is a validator of this schema, if there is one; `holders` are classes with another."""
        self._schema = schema
        kinds, classes = _contents(schema)
        self._holders = [*holders, *classes]
        self._has_items = not kinds.isdisjoint(_LISTS | _MAPPINGS)
        self._thorough: SchemaValidator | None = None
        if built is None or self._has_items:
            built = self._built(_transform(schema, _hasty) if self._has_items else schema)
        self.validate = built.validate_python

    def errors(self, value: Any, first: ValidationError) -> list[ErrorDetails]:
        """The errors of a value that `validate` refused with `first`."""
        if not self._has_items and first.error_count() < ENOUGH:
            return first.errors(include_url=False)
        if self._thorough is None:
            self._thorough = self._built(_transform(_label_choices(self._schema), _thorough))
        _here.errors = 0
        try:
            self._thorough.validate_python(value)
        except ValidationError as error:
            first = error
        # Otherwise the errors were passed over: alternatives may have been wrong often enough before.
        if is_flood(first):
            return [
                {"type": "too_many_errors", "loc": (), "msg": "too much of the value is wrong", "input": 0}
            ]
        return first.errors(include_url=False)

    def _built(self, schema: Any) -> SchemaValidator:
        with _as_incomplete(self._holders):
            return SchemaValidator(schema)


def is_flood(error: ValidationError) -> bool:
    """Whether to look at all of the errors would take long."""
    return error.error_count() > 20 * ENOUGH


def _transform(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """A copy of a schema with every part changed."""
    if isinstance(schema, Mapping):
        parts = {key: part if key in NOT_WALKED else _transform(part, change) for key, part in schema.items()}
        return change(parts) if isinstance(parts.get("type"), str) else parts
    if isinstance(schema, list | tuple):
        return type(schema)(_transform(item, change) for item in schema)
    return schema


def _contents(schema: Any) -> tuple[set[str], list[Any]]:
    """The kinds of all parts of a schema, and the classes that have a validator of their own."""
    kinds: set[str] = set()
    classes: list[Any] = []
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping):
            if isinstance(kind := part.get("type"), str):
                kinds.add(kind)
                if kind in ("model", "dataclass"):
                    classes.append(part["cls"])
            parts += [value for key, value in part.items() if key not in NOT_WALKED]
        elif isinstance(part, list | tuple):
            parts += part
    return kinds, classes


def _hasty(part: dict[str, Any]) -> Any:
    return {**part, "fail_fast": True} if part["type"] in _LISTS | _MAPPINGS else part


def _thorough(part: dict[str, Any]) -> Any:
    if part["type"] in _FIELDS:
        return _with_few_keys(part)
    if part["type"] in _LISTS | _MAPPINGS:
        return {**part, **{key: _items(part[key]) for key in _ITEMS if key in part}}
    return part


def _label_choices(schema: Any) -> Any:
    """Let alternatives keep their names in the paths of errors, even when their items are wrapped."""
    definitions = schema["definitions"] if schema["type"] == "definitions" else []

    def name(part: dict[str, Any]) -> Any:
        if part["type"] != "union":
            return part
        return {**part, "choices": [_label_choice(choice, definitions) for choice in part["choices"]]}

    return _transform(schema, name)


def _label_choice(choice: Any, definitions: Any) -> Any:
    if isinstance(choice, tuple) or _contents(choice)[0].isdisjoint(_LISTS | _MAPPINGS):
        return choice
    whole: Any = {"type": "definitions", "schema": choice, "definitions": definitions}
    return choice, SchemaValidator(whole if definitions else choice).title


def _items(schema: Any) -> Any:
    if isinstance(schema, list | tuple):  # of a tuple, one for each place
        return [_items(item) for item in schema]
    return core_schema.no_info_wrap_validator_function(_item, schema)


class _ErrorCount(threading.local):
    errors = 0  # errors in the value that this thread validates thoroughly


_here = _ErrorCount()


def _item(value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Any:
    before = _here.errors
    if before >= ENOUGH:
        return value  # the result is not used
    try:
        valid_value = validate(value)
    except ValidationError as error:
        _here.errors = max(_here.errors, before + error.error_count())
        raise
    _here.errors = before  # those of alternatives that did not fit are none
    return valid_value


def _with_few_keys(part: dict[str, Any]) -> Any:
    """Look at some of the keys that no field has; each may be an error."""
    field_names = {name for item in _fields(part) for name in item}

    def few(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) <= len(field_names) + ENOUGH:
            return value
        places = iter(range(ENOUGH))
        return {
            key: item for key, item in value.items() if key in field_names or next(places, None) is not None
        }

    ref = part.get("ref")
    inner = {key: item for key, item in part.items() if key != "ref"}
    return core_schema.no_info_before_validator_function(few, cast(Any, inner), ref=ref)


def _fields(part: dict[str, Any]) -> Iterator[Iterator[str]]:
    fields = part["fields"]
    pairs = fields.items() if isinstance(fields, Mapping) else ((item["name"], item) for item in fields)
    for name, item in pairs:
        yield _texts([name, item.get("validation_alias", [])])


def _texts(parts: Any) -> Iterator[str]:
    for part in parts if isinstance(parts, list | tuple) else [parts]:
        if isinstance(part, str):
            yield part
        elif isinstance(part, list | tuple):
            yield from _texts(part)


@contextmanager
def _as_incomplete(classes: Sequence[Any]) -> Iterator[None]:
    """Keep pydantic from using the validators these classes have already instead of our schema."""
    with _building:
        complete = [cls for cls in classes if vars(cls).get("__pydantic_complete__")]
        for cls in complete:
            cls.__pydantic_complete__ = False
        try:
            yield
        finally:
            for cls in complete:
                cls.__pydantic_complete__ = True
