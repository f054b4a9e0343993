"""Pydantic's core schemas: the only module that knows what they are made of, and what is asked of them.

A schema is a tree. Its parts are dicts with a `type`; other dicts hold parts by the names of fields, lists
and pairs hold them one after the other, and some keys hold values of the application. `parts` yields every
part, `walk` does so with where it stands, and `rewrite` makes a copy with parts changed. The rest of the
module are the questions and changes that need no more than that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from pydantic import PydanticUserError, TypeAdapter
from pydantic_core import CoreSchema, SchemaSerializer, SchemaValidator, core_schema

S = TypeVar("S")

# Keys that hold no parts, and the one whose parts say how a value is written.
_VALUES = frozenset({"cls", "config", "default", "default_factory", "expected", "members", "metadata"})
_NOT_WALKED = _VALUES | {"serialization"}

FIELDS = frozenset({"model-field", "dataclass-field", "typed-dict-field"})
_WITH_FIELDS = frozenset({"model-fields", "typed-dict", "dataclass-args"})
_CLASSES = frozenset({"model", "dataclass"})
_WITH_ITEMS = frozenset(
    {"list", "tuple", "set", "frozenset", "deque", "dict", "frozendict", "ordered-dict", "counter"}
)


def _is_part(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("type"), str)


def walk(
    schema: Any, state: S, enter: Callable[[Any, S, str], S], definitions: Mapping[str, Any] | None = None
) -> Iterator[tuple[Any, S]]:
    """Every part, from the outside in, with a state that says where it stands.

    `enter` gives the state of a part from that of the part around it and the name of its field. What is
    defined once and referred to is walked for every state in which it is met.
    """
    known = dict(definitions or {})
    seen_pairs: set[tuple[str, S]] = set()

    def at(part: Any, state: S, name: str) -> Iterator[tuple[Any, S]]:
        state = enter(part, state, name)
        yield part, state
        if part["type"] == "definitions":
            known.update((item["ref"], item) for item in part["definitions"])
            yield from at(part["schema"], state, "")
        elif part["type"] == "definition-ref":
            ref = part["schema_ref"]
            if ref in known and (ref, state) not in seen_pairs:
                seen_pairs.add((ref, state))
                yield from at(known[ref], state, "")
        else:
            for key, value in part.items():
                if key not in _NOT_WALKED:
                    yield from inside(value, state)

    def inside(value: Any, state: S, name: str = "") -> Iterator[tuple[Any, S]]:
        if _is_part(value):
            yield from at(value, state, name)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                yield from inside(item, state, str(key))
        elif isinstance(value, list | tuple):
            for item in value:
                yield from inside(item, state)

    yield from inside(schema, state)


def parts(schema: Any) -> Iterator[Any]:
    """Every part of a schema."""
    return (part for part, _ in walk(schema, None, lambda part, state, name: None))


def rewrite(
    schema: Any,
    change: Callable[[dict[str, Any]], Any],
    instead: Callable[[Any], Any] = lambda part: None,
    not_walked: Collection[str] = _NOT_WALKED,
) -> Any:
    """A schema with every part changed, from the inside out; where nothing changes, the same object.

    A part that `instead` gives anything for is replaced by that, and what is inside it is not looked at.
    """
    if _is_part(schema) and (other := instead(schema)) is not None:
        return other
    if isinstance(schema, Mapping):
        copy = {
            key: part if key in not_walked else rewrite(part, change, instead, not_walked)
            for key, part in schema.items()
        }
        is_same = all(copy[key] is part for key, part in schema.items())
        whole: Any = schema if is_same else copy
        return change(whole) if _is_part(whole) else whole
    if isinstance(schema, list | tuple):
        items = [rewrite(item, change, instead, not_walked) for item in schema]
        is_same = all(new is old for new, old in zip(items, schema, strict=True))
        return schema if is_same else type(schema)(items)
    return schema


def change_at(schema: Any, is_there: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """The schema with the first part changed, from the outside in, for which `is_there` holds."""
    if is_there(schema):
        return change(schema)
    return {**schema, "schema": change_at(schema["schema"], is_there, change)}


# -- what a type consists of


def kinds(schema: Any) -> set[str]:
    """The types of all parts."""
    return {part["type"] for part in parts(schema)}


def holds_items(schema: Any) -> bool:
    """Whether there is a list or a mapping in it, of any length."""
    return not kinds(schema).isdisjoint(_WITH_ITEMS)


def classes_in(schema: Any) -> list[Any]:
    """The classes of models and dataclasses in it, which have a validator of their own."""
    return [part["cls"] for part in parts(schema) if part["type"] in _CLASSES]


def validates_by_functions(schema: Any) -> bool:
    """Whether validation calls functions of the application: they may change what they accept."""
    return any(kind.startswith("function-") for kind in kinds(schema))


def serializers(schema: Any) -> Iterator[Any]:
    """The functions by which parts are written."""
    for part in parts(schema):
        if (function := (part.get("serialization") or {}).get("function")) is not None:
            yield function


def outermost(schema: Any) -> Any:
    """The part that a schema with definitions begins with."""
    if schema["type"] != "definitions":
        return schema
    inner = schema["schema"]
    if inner["type"] == "definition-ref":
        return next(item for item in schema["definitions"] if item["ref"] == inner["schema_ref"])
    return inner


def is_of_class(schema: Any) -> bool:
    """Whether values are instances of one model or dataclass."""
    return outermost(schema)["type"] in _CLASSES


def without_functions(schema: Any) -> tuple[int, Any]:
    """How many functions stand around the rest of a schema, and that rest."""
    depth = 0
    while str(schema["type"]).startswith("function-") and "schema" in schema:
        schema, depth = schema["schema"], depth + 1
    return depth, schema


def function_of(schema: Any) -> Any:
    """The function that a part validates by; None for a part without one."""
    function = schema.get("function") if _is_part(schema) else None
    return function["function"] if isinstance(function, Mapping) else function


def definitions_of(schema: Any) -> dict[str, Any]:
    return {item["ref"]: item for item in schema.get("definitions", ())}


def inline_schema(source: Any) -> CoreSchema | None:
    """The whole schema of a type, where pydantic would hand out references; None if it is recursive."""
    try:
        schema = TypeAdapter(source).core_schema
    except PydanticUserError:
        return None
    return None if schema["type"] == "definitions" else schema


# -- the fields of a model


def _has_fields(schema: Any) -> bool:
    return bool(schema["type"] == "model-fields")


def model_fields(schema: Any) -> dict[str, Any]:
    """The schemas of the fields of a model, by name."""
    while not _has_fields(schema):
        schema = schema["schema"]
    return {name: item["schema"] for name, item in schema["fields"].items()}


def patch_schema(schema: Any) -> CoreSchema:
    """The schema of single fields of a model, without their defaults."""
    config, inner = None, schema
    while not _has_fields(inner):
        config, inner = inner.get("config", config), inner["schema"]
    patch: CoreSchema = core_schema.typed_dict_schema(
        {
            name: core_schema.typed_dict_field(
                part["schema"] if part["type"] == "default" else part, required=False
            )
            for name, part in model_fields(schema).items()
        },
        config=config,
    )
    if schema["type"] == "definitions":
        patch = core_schema.definitions_schema(patch, schema["definitions"])
    return patch


def _with_fields(schema: Any, change: Callable[[str, Any], Any]) -> Any:
    """The schema of a model with its fields changed by name."""

    def all_fields(part: Any) -> Any:
        return {**part, "fields": {name: change(name, item) for name, item in part["fields"].items()}}

    return change_at(schema, _has_fields, all_fields)


def with_optional(schema: Any, names: Collection[str]) -> Any:
    """The schema of a model whose fields of these names may be absent, and are None then."""

    def change(name: str, item: Any) -> Any:
        if name not in names or item["schema"]["type"] == "default":
            return item
        return {**item, "schema": core_schema.with_default_schema(item["schema"], default=None)}

    return _with_fields(schema, change)


def with_any_values(schema: Any, names: Collection[str]) -> Any:
    """The schema of a model whose fields of these names take any value."""
    anything = core_schema.model_field(core_schema.any_schema())
    return _with_fields(schema, lambda name, item: anything if name in names else item)


# -- the value rules


_WRAPPERS = frozenset({"nullable", "default", "function-before", "function-after", "function-wrap"})
_SCALARS = frozenset({"str", "int", "float", "bool"})
# Types that pydantic puts together of several schemas, and classes that have rules of their own.
_OWN_RULES = frozenset({"model", "lax-or-strict", "json-or-python", "chain"})


def change_leaf(schema: CoreSchema, change: Callable[[CoreSchema], CoreSchema]) -> CoreSchema:
    """The schema with what stands inside null, defaults and functions changed."""

    def is_leaf(part: Any) -> bool:
        return part["type"] not in _WRAPPERS or not part.get("schema")

    return cast(CoreSchema, change_at(schema, is_leaf, change))


def change_value(schema: CoreSchema, change: Callable[[CoreSchema], CoreSchema]) -> CoreSchema:
    """The schema with what stands inside null changed."""
    return cast(CoreSchema, change_at(schema, lambda part: part["type"] != "nullable", change))


def strictly(schema: Any) -> Any:
    """The same schema without coercion of scalars; inside pydantic models their own rules hold."""
    return rewrite(
        schema,
        lambda part: {**part, "strict": True} if part["type"] in _SCALARS else part,
        lambda part: part if part["type"] in _OWN_RULES else None,
    )


# -- values that are wrong in very many places (`model.validate`)


def hasty(schema: Any) -> Any:
    """The same schema, whose lists and mappings end at their first wrong item."""
    return rewrite(schema, lambda part: {**part, "fail_fast": True} if part["type"] in _WITH_ITEMS else part)


def thorough(schema: Any, item: Any, few_keys: Callable[[Collection[str]], Callable[[Any], Any]]) -> Any:
    """The same schema, where `item` stands around every item, and `few_keys` before what has named fields.

    `few_keys` gets the names that the fields are read by.
    """

    def items(part: Any) -> Any:
        if isinstance(part, list | tuple):  # of a tuple, one for each place
            return [items(one) for one in part]
        return core_schema.no_info_wrap_validator_function(item, part)

    def change(part: dict[str, Any]) -> Any:
        if part["type"] in _WITH_FIELDS:
            inner: Any = {key: value for key, value in part.items() if key != "ref"}
            reader = few_keys({name for names in _names_of_fields(part) for name in names})
            return core_schema.no_info_before_validator_function(reader, inner, ref=part.get("ref"))
        if part["type"] in _WITH_ITEMS:
            keys = ("items_schema", "keys_schema", "values_schema")
            return {**part, **{key: items(part[key]) for key in keys if key in part}}
        return part

    return rewrite(_with_labels(schema), change)


def _with_labels(schema: Any) -> Any:
    """Let alternatives keep their names in the paths of errors, even when they are wrapped."""
    definitions = schema["definitions"] if schema["type"] == "definitions" else []

    def label(choice: Any) -> Any:
        if isinstance(choice, tuple) or kinds(choice).isdisjoint(_WITH_ITEMS | _WITH_FIELDS):
            return choice
        whole: Any = {"type": "definitions", "schema": choice, "definitions": definitions}
        return choice, SchemaValidator(whole if definitions else choice).title

    def change(part: dict[str, Any]) -> Any:
        return {**part, "choices": list(map(label, part["choices"]))} if part["type"] == "union" else part

    return rewrite(schema, change)


def _names_of_fields(part: dict[str, Any]) -> Iterator[Iterator[str]]:
    fields = part["fields"]
    pairs = fields.items() if isinstance(fields, Mapping) else ((item["name"], item) for item in fields)
    for name, item in pairs:
        yield _texts([name, item.get("validation_alias", [])])


def _texts(values: Any) -> Iterator[str]:
    for value in values if isinstance(values, list | tuple) else [values]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from _texts(value)


# -- payloads that are written by the names they are read by


def serializer_by_read_names(schema: Any) -> SchemaSerializer:
    """Writes fields by the names they are read by, and no computed ones."""
    schema = rewrite(schema, _by_read_name, not_walked=_VALUES)
    try:
        make: Any = SchemaSerializer
        return make(schema, None, _use_prebuilt=False)  # type: ignore[no-any-return]  # not in its stub
    except TypeError:  # an older pydantic, which never uses those of the classes
        return SchemaSerializer(schema)


def _by_read_name(part: dict[str, Any]) -> dict[str, Any]:
    if "computed_fields" in part:
        part = {**part, "computed_fields": []}
    if part["type"] in FIELDS:
        part = {key: value for key, value in part.items() if key != "serialization_alias"}
        if names := [path[0] for path in _alias_paths(part) if len(path) == 1]:
            part["serialization_alias"] = names[0]
    return part


def _alias_paths(schema: Any) -> list[Any]:
    """The paths by which a field is read besides its name."""
    alias = schema.get("validation_alias")
    if not alias:
        return []
    return [[alias]] if isinstance(alias, str) else alias if isinstance(alias[0], list) else [alias]


# -- which types come back from a JSON column as they went in
#
# Stored text is written by a type's own serializer and read by its own validation, and the two need not
# agree: a field may be left out, masked or named differently.


@dataclass(frozen=True, slots=True)
class _TypePlace:
    """Where in the type we are."""

    owner: str = ""
    field: str = ""
    # What is not inside a pydantic class is written by what it is at run time: plain names, all values.
    own_serializer: bool = False
    config: Mapping[str, Any] | None = dataclasses.field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.owner}.{self.field}" if self.field else self.owner

    def setting(self, name: str, default: Any = None) -> Any:
        value = (self.config or {}).get(name)
        return default if value is None else value


def roundtrip_problems(schema: Any, definitions: Mapping[str, Any]) -> list[str]:
    """What of a column of this schema the database would not give back."""
    problems = dict.fromkeys(
        (str(place), why)
        for part, place in walk(schema, _TypePlace(), _place_of, definitions)
        for why in _troubles(part, place)
    )
    return [f"{where} would not come back from the database: {why}".lstrip() for where, why in problems]


def _place_of(part: Any, place: _TypePlace, name: str) -> _TypePlace:
    match part["type"]:
        case "model":
            return _TypePlace(part["cls"].__name__, "", True, part.get("config"))
        case "dataclass":
            own = place.own_serializer or hasattr(part["cls"], "__pydantic_serializer__")
            return _TypePlace(part["cls"].__name__, "", own, part.get("config"))
        case "typed-dict":
            cls = part.get("cls")
            return _TypePlace(getattr(cls, "__name__", ""), "", place.own_serializer, part.get("config"))
        case "dataclass-field":
            return replace(place, field=part["name"])
        case "computed-field":
            return replace(place, field=part["property_name"])
        case "model-field" | "typed-dict-field":
            return replace(place, field=name)
        case _:
            return place


def _troubles(part: Any, place: _TypePlace) -> Iterator[str]:
    if why := _written_wrong(part.get("serialization") or {}, place):
        yield why
    match part["type"]:
        case "model-field" | "typed-dict-field" | "dataclass-field":
            yield from _field_troubles(part, place)
        case "json":
            yield "Json is stored as its value but read from text"
        case "computed-field" if place.setting("extra_fields_behavior", "ignore") != "ignore":
            yield f"a computed field is stored, and {place.owner} would take it for an extra one"
        case "bytes" if place.own_serializer:
            stored_as = place.setting("ser_json_bytes", "utf8")
            read_as = place.setting("val_json_bytes", "utf8")
            if stored_as != read_as:
                yield f"bytes are stored as {stored_as} but read as {read_as}"


def _written_wrong(serialization: Mapping[str, Any], place: _TypePlace) -> str | None:
    function = serialization.get("function")
    if function is None:
        return None
    ours = str(getattr(function, "__module__", "")).startswith("pydantic")
    if ours:
        return "a secret is stored as asterisks" if "secret" in function.__name__ else None
    return "it has a serializer of its own" if place.own_serializer else None


def _field_troubles(part: Any, place: _TypePlace) -> Iterator[str]:
    if part.get("init_only"):
        yield "an InitVar is not stored"
    elif place.own_serializer and part.get("serialization_exclude"):
        yield "exclude=True keeps it out of what is stored"
    elif place.own_serializer and part.get("serialization_exclude_if"):
        yield "exclude_if may keep it out of what is stored"
    else:
        alias = part.get("serialization_alias") if place.own_serializer else None
        stored_as, names = alias or place.field, _names_read(part, place)
        if stored_as not in names:
            yield f"it is stored as {stored_as!r} but read as {' or '.join(map(repr, names)) or 'nothing'}"


def _names_read(part: Any, place: _TypePlace) -> list[str]:
    if part.get("validation_alias") is None:
        return [place.field]
    by_alias = place.setting("validate_by_alias", True)
    names = [".".join(map(str, path)) for path in _alias_paths(part)] if by_alias else []
    by_name = place.setting("validate_by_name") or place.setting("populate_by_name")
    return [*names, place.field] if by_name else names
