"""Values that are wrong in very many places: the first of them are found, and finding them is cheap.

pydantic makes an error for every wrong item of a list; a small body of wrong items would take seconds and be
answered with megabytes. So a value is validated by a schema whose lists and mappings end at their first wrong
item. Only when that fails is it validated again, by one that looks at all items until it has found enough.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails, SchemaValidator, core_schema

from maniflex.errors import MOST_DETAILS

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
