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
    ErrorDetails,
    SchemaValidator,
    ValidationError,
    core_schema,
    to_jsonable_python,
)

from maniflex._json import json_trouble, text_trouble
from maniflex.errors import MOST_DETAILS, ValidationFailed
from maniflex.model.annotations import classify
from maniflex.model.base import Model, instance_of
from maniflex.model.core_schema import (
    classes_in,
    hasty,
    holds_items,
    patch_schema,
    thorough,
    with_any_values,
    with_optional,
)
from maniflex.model.meta import FieldMeta, Kind
from maniflex.model.value_rules import Detail, detail, details, unknown_field

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
        self._patching = BoundedValidator(patch_schema(self._model.__pydantic_core_schema__))
        self._create = self._creating.validate
        self._patch = self._patching.validate
        decorators = self._model.__pydantic_decorators__
        self.has_model_validators = bool(decorators.model_validators or decorators.root_validators)
        self._merge = self._merge_validator() if self.has_model_validators else None

    def _merge_validator(self) -> Callable[[Any], Any]:
        """The model's own validators around fields that take any value.

        A field of no such name has no value in its rows: a model without a table may have no timestamps.
        """
        return SchemaValidator(
            with_any_values(self._model.__pydantic_core_schema__, self._fields)
        ).validate_python

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


# Values that are wrong in very many places: the first of them are found, and finding them is cheap.
#
# pydantic makes an error for every wrong item of a list; a small body of wrong items would take seconds
# and be answered with megabytes. So a value is validated by a schema whose lists and mappings end at
# their first wrong item. Only when that fails is it validated again, by one that looks at all items until
# it has found enough.


ENOUGH = MOST_DETAILS + 1  # one more, so that it can be said that there are more
_building = threading.Lock()


class BoundedValidator:
    """Validates by a schema, and finds the first errors of a value that is wrong."""

    def __init__(self, schema: Any, *, built: SchemaValidator | None = None) -> None:
        """`built` is a validator of this schema, if there is one."""
        self._schema = schema
        self._classes = classes_in(schema)
        self._has_items = holds_items(schema)
        self._thorough: SchemaValidator | None = None
        if built is None or self._has_items:
            built = self._built(hasty(schema) if self._has_items else schema)
        self.validate = built.validate_python

    def errors(self, value: Any, first: ValidationError) -> list[ErrorDetails]:
        """The errors of a value that `validate` refused with `first`."""
        if not self._has_items and first.error_count() < ENOUGH:
            return first.errors(include_url=False)
        if self._thorough is None:
            self._thorough = self._built(thorough(self._schema, _item, _few_of))
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
        with _as_incomplete(self._classes):
            return SchemaValidator(schema)


def is_flood(error: ValidationError) -> bool:
    """Whether to look at all of the errors would take long."""
    return error.error_count() > 20 * ENOUGH


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


def _few_of(field_names: Collection[str]) -> Callable[[Any], Any]:
    """Look at some of the keys that no field has; each may be an error."""

    def few(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) <= len(field_names) + ENOUGH:
            return value
        places = iter(range(ENOUGH))
        return {
            key: item for key, item in value.items() if key in field_names or next(places, None) is not None
        }

    return few


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
