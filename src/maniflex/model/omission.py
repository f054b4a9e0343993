"""Records stored as JSON to be read back: a secret that JSON leaves out would come back as its default.

Pydantic never writes a secret (`exclude`). That is right for answers, and a loss for JSON that is read back
as the same type. A caller that writes such JSON passes `TO_READ_BACK` as context, and records that would
lose a secret refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

TO_READ_BACK = {"maniflex": "to_read_back"}
BY_ATTRIBUTE = {"maniflex": "by_attribute"}  # the same, with the names by which a typed payload is read


class RefuseLoss:
    """Serializes the records of one model, unless that would lose a secret of them."""

    def __init__(
        self, model: type[BaseModel], secrets: list[str], names: dict[str, str], serialization: Any
    ) -> None:
        self.message = (
            f"{model.__name__}.{secrets[0]} is a secret, which JSON leaves out;"
            " send the id, or a type of your own"
            if secrets
            else None
        )
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
        return output


def refuse_loss(model: type[BaseModel], schema: Any) -> None:
    """Let the records of the schema's model refuse to be stored without their secrets."""
    ours: frozenset[str] = getattr(model, "__omitted__", frozenset())
    fields = model.__pydantic_fields__
    secrets = [name for name, info in fields.items() if info.exclude and name not in ours]
    names = {info.serialization_alias: name for name, info in fields.items() if info.serialization_alias}
    serialization = schema.get("serialization")
    kind = None if serialization is None else serialization["type"]
    if not (secrets or names) or kind not in (
        None,
        "function-wrap",
    ):  # a plain one says itself what it writes
        return
    if isinstance((serialization or {}).get("function"), RefuseLoss):
        return
    schema["serialization"] = {
        **(serialization or {}),
        "type": "function-wrap",
        "function": RefuseLoss(model, secrets, names, serialization),
        "info_arg": True,
    }


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
