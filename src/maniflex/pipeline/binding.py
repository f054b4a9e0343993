"""A request body as a declared type: for `bind_json` and the `request=` of actions.

A model is bound as on its create route: what a client may not set is not taken from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from maniflex import _json
from maniflex.errors import InvalidJson, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta


def bind(body: bytes, wanted: Any, models: Mapping[type[Model], ModelMeta]) -> Any:
    """The body as `wanted`, or `ValidationFailed` naming every part that does not fit."""
    if isinstance(wanted, type) and issubclass(wanted, Model):
        return _record(body, models[wanted]) if wanted in models else _as(_adapter(wanted), body)
    try:
        adapter = _adapter(wanted)
    except TypeError:  # a type that cannot be hashed
        adapter = TypeAdapter(wanted)
    return _as(adapter, body)


def _record(body: bytes, meta: ModelMeta) -> Model:
    values = _json.loads(body, exact=meta.exact)
    if type(values) is not dict:
        raise InvalidJson("the body must be a JSON object")
    open_to_clients = {
        name: value
        for name, value in values.items()
        if (field := meta.by_api.get(name)) is not None and field.name not in meta.closed
    }
    return meta.validator.create(open_to_clients)


@lru_cache(maxsize=256)
def _adapter(wanted: Any) -> TypeAdapter[Any]:
    return TypeAdapter(wanted)


@lru_cache(maxsize=256)
def _holds_decimals(adapter: TypeAdapter[Any]) -> bool:
    return "'type': 'decimal'" in repr(adapter.core_schema)


def _as(adapter: TypeAdapter[Any], body: bytes) -> Any:
    return fit(_json.loads(body, exact=_holds_decimals(adapter)), adapter)


def fit(value: Any, adapter: TypeAdapter[Any]) -> Any:
    """The value as the adapter's type, or `ValidationFailed` naming every part that does not fit."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise ValidationFailed(details=[_detail(e) for e in error.errors(include_url=False)]) from None


def _detail(error: Any) -> dict[str, str]:
    """One offending part in the words the model routes use."""
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return {"field": name, "message": f'field "{name}" is required', "code": "required"}
    return {"field": name, "message": error["msg"], "code": error["type"]}
