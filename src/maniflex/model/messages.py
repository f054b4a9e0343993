"""What a client is told about a value that breaks its rules: one detail per offence, in plain words.

The only place that reads pydantic's errors. A detail is `{"field", "message", "code"}`: the API name
(dotted into JSON columns), a sentence, a short stable code. The offending value is never repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails, ValidationError
from pydantic_core.core_schema import ErrorType

from maniflex._json import INT_MAX, INT_MIN
from maniflex._names import did_you_mean
from maniflex.errors import ValidationFailed
from maniflex.model.annotations import Shape
from maniflex.model.value_rules import Rules

Detail = dict[str, str]

_SENTENCES: dict[str, tuple[str, str]] = {
    "string_type": ("type", "must be text"),
    "string_unicode": ("text", "must not contain lone surrogates"),
    "string_too_short": ("min_length", "must have at least {min_length} characters"),
    "string_too_long": ("max_length", "must have at most {max_length} characters"),
    "string_pattern_mismatch": ("pattern", "must match the pattern {pattern}"),
    "int_type": ("type", "must be an integer"),
    "int_parsing_size": ("range", "must fit in 64 bits"),
    "float_type": ("type", "must be a number"),
    "finite_number": ("finite", "must be a finite number"),
    "bool_type": ("type", "must be true or false"),
    "greater_than_equal": ("min", "must be at least {ge}"),
    "less_than_equal": ("max", "must be at most {le}"),
    "greater_than": ("min", "must be greater than {gt}"),
    "less_than": ("max", "must be less than {lt}"),
    "multiple_of": ("multiple_of", "must be a multiple of {multiple_of}"),
    "decimal_max_digits": ("digits", "must have at most {max_digits} digits"),
    "decimal_max_places": ("digits", "must have at most {decimal_places} decimals"),
    "decimal_whole_digits": ("digits", "must have at most {whole_digits} digits before the point"),
    "literal_error": ("enum", "must be one of: {expected}"),
    "enum": ("enum", "must be one of: {expected}"),
    "uuid_parsing": ("format", "must be a UUID"),
    "uuid_type": ("type", "must be a UUID"),
    "bytes_type": ("type", "must be base64 text"),
    "bytes_too_short": ("min_length", "must have at least {min_length} bytes"),
    "bytes_too_long": ("max_length", "must have at most {max_length} bytes"),
    "dict_type": ("type", "must be an object"),
    "mapping_type": ("type", "must be an object"),
    "model_type": ("type", "must be an object"),
    "model_attributes_type": ("type", "must be an object"),
    "dataclass_type": ("type", "must be an object"),
    "list_type": ("type", "must be a list"),
    "too_short": ("min_length", "must have at least {min_length} items"),
    "too_long": ("max_length", "must have at most {max_length} items"),
    "extra_forbidden": ("unknown", "is not a known field"),
    "unexpected_keyword_argument": ("unknown", "is not a known field"),
    "recursion_loop": ("depth", "must not contain itself"),
}
# Inside pydantic models, whose own rules may coerce, each kind has several ways to fail.
_FAMILIES = {
    "int": "must be an integer",
    "float": "must be a number",
    "decimal": "must be a decimal number",
    "bool": "must be true or false",
    "datetime": "must be a date and time like 2024-05-31T09:30:00Z",
    "date": "must be a date like 2024-05-31",
    "time": "must be a time like 09:30:00",
    "uuid": "must be a UUID",
}
_BUILT_IN = frozenset(get_args(ErrorType))


def details(error: ValidationError | Iterable[ErrorDetails], model: type[BaseModel]) -> list[Detail]:
    """Every offence of a failed validation, in the order of the fields."""
    errors = error.errors(include_url=False) if isinstance(error, ValidationError) else error
    return [_detail(item, model) for item in errors]


def part_detail(item: ErrorDetails) -> Detail:
    """One offence against a type that is no model, such as the body of an action, in the same words."""
    path = ".".join(map(str, item["loc"]))
    if item["type"] == "missing":
        return detail(path, "required", "is required")
    if item["input"] is None and item["type"].endswith("_type"):
        return detail(path, "not_null", "must not be null")
    sentence = _sentence(item, None)
    if sentence is None:
        return {"field": path, "message": _own_words(item), "code": _custom_code(item)}
    return detail(path, *sentence)


def detail(field: str, code: str, text: str) -> Detail:
    what = f'field "{field}"' if field else "the value"
    return {"field": field, "message": f"{what} {text}", "code": code}


def unknown_field(name: str, known_names: Iterable[str]) -> Detail:
    return detail(name, "unknown", f"does not exist{did_you_mean(name, known_names)}")


def api_name(name: str, model: type[BaseModel]) -> str:
    rules = _rules(name, model)
    return name if rules is None else str(rules.spec.options.get("alias", name))


def by_attribute(values: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Values by attribute name, where some came by alias: type checkers expect `alias=` in `__init__`."""
    fields = model.__pydantic_fields__
    aliases = {api_name(name, model): name for name in fields}
    by_name = {name if name in fields else aliases.get(name, name): value for name, value in values.items()}
    unknown = [name for name in by_name if name not in fields]
    if unknown:
        raise refusal([unknown_field(name, fields) for name in unknown], model)
    return by_name


def refusal(problems: list[Detail], model: type[BaseModel]) -> ValidationFailed:
    """The error for these offences against a model that is not registered anywhere yet."""
    secret = [name for name in model.__pydantic_fields__ if _is_secret(_rules(name, model))]
    names = frozenset(api_name(name, model) for name in secret)
    return ValidationFailed(details=problems, model=model.__name__, secrets=names)


def _is_secret(rules: Rules | None) -> bool:
    options = {} if rules is None else rules.spec.options
    return bool(options.get("hidden") or options.get("writeonly") or options.get("encrypted"))


def _rules(name: Any, model: type[BaseModel]) -> Rules | None:
    info = model.__pydantic_fields__.get(name)
    return next((item for item in info.metadata if isinstance(item, Rules)), None) if info else None


def _detail(item: ErrorDetails, model: type[BaseModel]) -> Detail:
    location = item["loc"]
    if not location:
        return {"field": "", "message": _own_words(item), "code": _custom_code(item)}
    rules = _rules(location[0], model)
    path = ".".join([api_name(str(location[0]), model), *map(str, location[1:])])
    if item["type"] == "missing":
        return detail(path, "required", "is required")
    if item["input"] is None and _forbids_null(item, rules):
        return detail(path, "not_null", "must not be null")
    sentence = _sentence(item, rules.shape if rules and len(location) == 1 else None)
    if sentence is None:
        return {"field": path, "message": _own_words(item), "code": _custom_code(item)}
    return detail(path, *sentence)


def _forbids_null(item: ErrorDetails, rules: Rules | None) -> bool:
    if len(item["loc"]) == 1:
        return rules is not None and not rules.shape.nullable
    return item["type"].endswith("_type")


def _sentence(item: ErrorDetails, shape: Shape | None) -> tuple[str, str] | None:
    """Code and wording of a built-in rule; None for what the application's own validators say."""
    context: Mapping[str, Any] = item.get("ctx", {})
    if item["type"] in ("value_error", "assertion_error"):
        return None
    if item["type"].startswith("ip_"):
        return "format", "must be an IP address"
    if item["type"] not in _BUILT_IN:
        return (item["type"], item["msg"]) if item["msg"].startswith("must ") else None
    if item["type"] in ("literal_error", "enum") and shape is not None and shape.enum is not None:
        return "enum", "must be one of: " + ", ".join(map(str, shape.enum))
    if context.get("le") == INT_MAX or context.get("ge") == INT_MIN:
        return "range", "must fit in 64 bits"
    sentence = _SENTENCES.get(item["type"])
    if sentence is None and (family := item["type"].split("_")[0]) in _FAMILIES:
        return "type", _FAMILIES[family]
    if sentence is None and item["type"].startswith("url_"):
        return "format", f"must be a URL: {item['msg'].replace('Input should be a valid URL, ', '')}"
    if sentence is None:
        return "invalid", item["msg"].replace("Input should be", "must be").replace("Input should", "must")
    code, wording = sentence
    return code, wording.format_map({name: _plain(value) for name, value in context.items()})


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _own_words(item: ErrorDetails) -> str:
    error = item.get("ctx", {}).get("error")
    return str(error) if error is not None and str(error) else item["msg"]


def _custom_code(item: ErrorDetails) -> str:
    return "invalid" if item["type"] in ("value_error", "assertion_error") else item["type"]
