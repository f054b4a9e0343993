"""Records that pydantic writes, wherever it meets them, by what the writer says in the context.

Pydantic never writes a secret (`exclude`). That is right for answers, and a loss for JSON that is read back
as the same type: a secret that JSON leaves out would come back as its default. A caller that writes such
JSON passes `TO_READ_BACK` as context, and records that would lose a secret refuse. A caller that writes an
answer for somebody passes `HiddenFields`, which takes out what that one may not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

TO_READ_BACK = {"maniflex": "to_read_back"}
BY_ATTRIBUTE = {"maniflex": "by_attribute"}  # the same, with the names by which a typed payload is read


class HiddenFields:
    """The context of an answer: it takes the fields out of records that the caller may not see."""

    def take_out(self, model: type, values: dict[str, Any]) -> dict[str, Any]:
        """The values of a record by their keys in answers, without those that are hidden."""
        raise NotImplementedError


class RefuseLoss:
    """Serializes the records of one model, unless that would lose a secret of them."""

    def __init__(
        self, model: type[BaseModel], secrets: list[str], names: Mapping[Any, str], serialization: Any
    ) -> None:
        self.message = (
            f"{model.__name__}.{secrets[0]} is a secret, which JSON leaves out;"
            " send the id, or a type of your own"
            if secrets
            else None
        )
        self._model = model
        self._names = names
        self._serialize: Any = (serialization or {}).get("function")
        self._takes_info = (serialization or {}).get("info_arg", False)

    def __call__(self, record: Any, write: Any, info: Any) -> Any:
        context = info.context
        if self.message is not None and (context is TO_READ_BACK or context is BY_ATTRIBUTE):
            raise PydanticSerializationError(self.message)
        if self._serialize is None:
            output = write(record)
        elif self._takes_info:
            output = self._serialize(record, write, info)
        else:
            output = self._serialize(record, write)
        if context is BY_ATTRIBUTE and isinstance(output, dict):
            return {self._names.get(name, name): value for name, value in output.items()}
        return self._take_out(output, context)

    def write_alone(self, record: Any, info: Any) -> Any:
        """The same where the model has a serializer of its own that says all of what is written."""
        output = self._serialize(record, info) if self._takes_info else self._serialize(record)
        return self._take_out(output, info.context)

    def _take_out(self, output: Any, context: Any) -> Any:
        if not isinstance(context, HiddenFields) or not isinstance(output, dict):
            return output
        keys = {attribute: str(key) for key, attribute in self._names.items()}
        rest = context.take_out(self._model, {str(keys.get(name, name)): name for name in output})
        return {name: output[name] for name in rest.values()}


def refuse_loss(model: type[BaseModel], schema: Any) -> None:
    """Let the records of the schema's model refuse to be stored without their secrets."""
    ours: frozenset[str] = getattr(model, "__omitted__", frozenset())
    fields = model.__pydantic_fields__
    secrets = [name for name, info in fields.items() if info.exclude and name not in ours]
    names = {info.serialization_alias: name for name, info in fields.items() if info.serialization_alias}
    serialization = schema.get("serialization")
    kind = "function-wrap" if serialization is None else serialization["type"]
    function = (serialization or {}).get("function")
    if isinstance(getattr(function, "__self__", function), RefuseLoss):
        return
    if kind == "function-wrap":
        guard: Any = RefuseLoss(model, secrets, names, serialization)
    elif kind == "function-plain":  # it says itself what it writes
        guard = RefuseLoss(model, [], names, serialization).write_alone
    else:
        return
    schema["serialization"] = {**(serialization or {}), "type": kind, "function": guard, "info_arg": True}


def losses(schema: Any) -> Iterator[str]:
    """Why records inside a schema cannot be stored, a sentence per model."""
    if isinstance(schema, Mapping):
        guard = (schema.get("serialization") or {}).get("function")
        if isinstance(guard, RefuseLoss) and guard.message is not None:
            yield guard.message
        for key, part in schema.items():
            if key not in ("serialization", "metadata", "default"):
                yield from losses(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from losses(part)
